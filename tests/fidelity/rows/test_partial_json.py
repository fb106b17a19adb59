"""Tests updates of JSON columns with binlog_row_value_options=PARTIAL_JSON. The server then logs only the differences of the values. The
staged rows must equal SELECT.
"""

from __future__ import annotations

import types
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.column_types import Values
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.documents import json_diff
from sluice.cdc_engine.binlog.rows import diffs
from sluice.cdc_engine.binlog.rows.decoder import OPERATION
from sluice.cdc_engine.binlog.rows.locate_diffs import ROW
from sluice.cdc_engine.contracts import Int64s
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import images, run
from tests.fidelity.replay import GONE, folded, pipeline_with, selected
from tests.fidelity.rows.test_row_images import changes

pytestmark = pytest.mark.servers

PAD = "p" * 300  # An update is logged as differences only if these are shorter than the document.
COLUMNS = "a JSON, s VARCHAR(20), g JSON AS (JSON_OBJECT('s', s)) STORED, b JSON, n INT"
DOCS = f"CREATE TABLE docs (id INT PRIMARY KEY, {COLUMNS})"
KEYLESS = f"CREATE TABLE keyless (id INT, {COLUMNS})"
# One value of each kind that a document can contain.
SCALARS = (
    "NULL", "CAST('true' AS JSON)", "CAST('false' AS JSON)", "0", "-32768", "65535", "2147483648", "-9223372036854775808",
    "18446744073709551615", "1.5e0", "1e300", "3e0", "12345678901234567890.123456789", "-0.50", "'text'", "'ü\"'", "REPEAT('long', 100)",
    "DATE '2024-02-29'", "TIME '-12:34:56.789'", "TIMESTAMP '2024-02-29 01:02:03.000456'", "x'00ff'", "b'101'",
    "CAST('[]' AS JSON)", "CAST('{}' AS JSON)", "CAST('[1, {\"z\": [2, null], \"yy\": 1}]' AS JSON)",
    "ST_GeomFromText('POINT(1 2)')", "CAST(2024 AS YEAR)",
)  # fmt: skip
NESTED = f'{{"x": {{"y": [1, 2, "three", {{"deep": {{"est": [[0]]}}}}], "k k": 1}}, "s": 5, "é": 1, "pad": "{PAD}"}}'
ROWS = f"INSERT INTO docs (id, a, s, b, n) VALUES (1, '{NESTED}', 'one', '[1, 2, \"{PAD}\"]', 1), (2, '{NESTED}', 'two', NULL, 2), "
ROWS += f"(3, NULL, 'three', '{NESTED}', 3), (4, '{NESTED}', 'four', '{NESTED}', 4)"
SET_Z, COMPRESSED = "UPDATE docs SET a = JSON_SET(a, '$.z'", "SET binlog_transaction_compression = ON"
PARTIAL, WHOLE = "SET binlog_row_value_options = PARTIAL_JSON", "SET binlog_row_value_options = ''"
CHANGES = (
    "UPDATE docs SET a = JSON_SET(a, '$.x.y[1]', 7)",
    "UPDATE docs SET a = JSON_SET(a, '$.x.y[last]', 8, '$.x.\"k k\"', 'key', '$.\"é\"', 2), b = JSON_SET(b, '$[1]', 9) WHERE id < 4",
    "UPDATE docs SET a = JSON_SET(a, '$.x.y[99]', 'appended', '$.x.z', 'added', '$.bb', 1, '$.aaaa', 2, '$.\"\"', 3)",
    "UPDATE docs SET a = JSON_SET(a, '$.x.y[last-50]', 'first')",
    "UPDATE docs SET a = JSON_SET(a, '$.\"q\\\\\"\\\\\\\\u0041\\\\n\"', JSON_OBJECT('b', 1, 'a', JSON_ARRAY()), '$.$dollar_1', 2)",
    "UPDATE docs SET a = JSON_REMOVE(a, '$.x.y[0]', '$.\"\"', '$.x.z')",
    "UPDATE docs SET a = JSON_REPLACE(a, '$.s', JSON_ARRAY(1, JSON_OBJECT('in', 'side')), '$.none', 1)",
    "UPDATE docs SET a = JSON_SET(a, '$.s[1].in', 'deep', '$.s[0][1]', 'wrapped', '$.\"é\"[0]', 'same', '$.x[0].y[0]', 'through')",
    "UPDATE docs SET a = JSON_SET(a, '$.x', JSON_EXTRACT(a, '$.x'), '$.s[0]', JSON_EXTRACT(a, '$.s[0]'))",
    "UPDATE docs SET a = JSON_SET(a, '$.x.y[0]', JSON_EXTRACT(a, '$.x.y[0]')), n = n + 1",
    "UPDATE docs SET a = JSON_SET(a, '$.s', 6), b = '{\"whole\": 1}' WHERE id = 1",
    "UPDATE docs SET a = JSON_OBJECT('whole', 2), b = JSON_SET(b, '$.x.y', 1) WHERE id = 4",
    "UPDATE docs SET a = IF(id = 1, JSON_SET(a, '$.s', 7), JSON_OBJECT('pad', REPEAT('w', 300))), b = NULL",
    "UPDATE docs SET a = JSON_SET(a, '$.pad', 1)",
    "UPDATE docs SET n = n + 1, s = 'plain'",
    "UPDATE docs SET id = id + 100, a = JSON_SET(a, '$.moved', id) WHERE id < 3",
    f"INSERT INTO docs (id, a) VALUES (50, '{NESTED}'), (51, '\"{PAD}\"'), (52, '[1, 2, \"{PAD}\"]')",
    "UPDATE docs SET a = JSON_SET(a, '$[1]', 'two', '$[5]', 'end') WHERE id > 49",
    "DELETE FROM docs WHERE id IN (3, 51)",
)  # fmt: skip
EVERY_KIND = tuple(
    statement
    for number, value in enumerate(SCALARS)
    for statement in (
        f"UPDATE docs SET a = JSON_SET(a, '$.x.k{number}', {value}), b = JSON_SET(b, '$.s', {value}) WHERE id IN (1, 2, 4)",
        f"UPDATE docs SET a = JSON_SET(a, '$.x.y[{number % 3}]', {value}) WHERE id = 2",
    )
)


def test_documents_logged_as_differences_are_what_select_returns_fidelity(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: set[bytes] = set()
    apply, in_python = diffs.documents, list[bytes]()

    def noted(values: Values, differences: Int64s) -> AnyArray:
        logged.update(values.value(row)[:1] for row in differences[ROW].tolist())
        return apply(values, differences)

    def left(document: bytes, differences: bytes) -> str:
        in_python.append(differences)
        return json_diff.changed(document, differences)

    monkeypatch.setattr(diffs, "documents", noted)
    monkeypatch.setattr(diffs, "json_diff", types.SimpleNamespace(changed=left))
    pipeline = pipeline_with(mysql80, tmp_path, "partial_json", DOCS, KEYLESS)
    keyless = [each.replace("docs", "keyless") for each in (ROWS, *CHANGES[:2])]
    run(
        mysql80,
        "USE partial_json",
        PARTIAL,
        ROWS,
        *EVERY_KIND,
        *CHANGES[:9],
        WHOLE,
        f"{SET_Z}, 0)",
        PARTIAL,
        *CHANGES[9:],
        *keyless,
    )
    run(mysql80, "USE partial_json", PARTIAL, COMPRESSED, "BEGIN", f"{SET_Z}, 1)", f"{SET_Z}, 2)", "COMMIT")
    run(
        mysql80,
        "USE partial_json",
        PARTIAL,
        "XA START 'x'",
        f"{SET_Z}, 3)",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
    )
    staged = pipeline.staged()
    assert folded(images(staged, "docs")) == selected(mysql80, "partial_json", "docs")
    assert left_over(images(staged, "keyless")) == Counter(selected_as_they_are(mysql80, "keyless"))
    assert logged == {b"", b"\0", b"\1", b"\2"}
    assert in_python
    assert all(b"\\" in each for each in in_python), "only a key with escapes is left to Python"


def left_over(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Returns the remaining rows of a table without a key. An image that removes a row must match an existing row."""
    left: Counter[tuple[Any, ...]] = Counter()
    for row in rows.to_pylist():
        values = tuple(value for name, value in row.items() if not name.startswith("_sluice_"))
        left[values] += -1 if row[OPERATION] in GONE else 1
        assert left[values] >= 0
    return +left


def selected_as_they_are(server: DatabaseServer, table: str) -> list[tuple[Any, ...]]:
    with server.connect(database="partial_json") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return list(cursor.fetchall())


def test_differences_from_documents_that_minimal_images_leave_out_stop_their_table_fidelity(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    """With binlog_row_image=MINIMAL, the server leaves the previous document out, but still logs differences to it. This stops the table.
    An update that logs the whole document does not stop it.
    """
    pipeline = pipeline_with(mysql80, tmp_path, "partial_minimal", DOCS, DOCS.replace("docs", "fine"))
    fine = ROWS.replace("docs", "fine")
    minimal = "SET binlog_row_image = MINIMAL"
    whole = ["UPDATE fine SET b = JSON_OBJECT('whole', 1)", "UPDATE fine SET n = 5"]
    run(
        mysql80,
        "USE partial_minimal",
        PARTIAL,
        ROWS,
        fine,
        minimal,
        *whole,
        "UPDATE docs SET b = JSON_SET(b, '$.s', 1)",
    )
    staged = pipeline.staged()
    (stopped,) = staged.stopped
    assert (stopped.table, stopped.state) == ("docs", "IMAGE_NOT_FULL")
    assert "JSON document in column b" in stopped.reason
    assert "binlog_row_image=FULL" in stopped.reason
    assert [segment.partial for segment in changes(staged, "fine")]
