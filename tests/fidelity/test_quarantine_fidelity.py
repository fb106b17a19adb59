"""Tests values that cannot be decoded. Either the table stops and names the value, or the value goes to quarantine and its row continues
with NULL.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.binlog.rows import refused_values
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.staging import StagingResult
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.quarantine.append import append_quarantine
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.fidelity.pipeline import Pipeline, images, run

pytestmark = pytest.mark.servers

DATABASE = "quarantined"
NAMES = ("notes", "log")
UTF8 = {"body": "utf8mb4"}  # The charset that an application wrote into a column that is declared latin1.


@pytest.fixture(scope="module")
def written(mysql80: DatabaseServer, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Writes two tables with UTF-8 in a latin1 column. One of the values is not valid UTF-8, and one date is invalid."""
    columns = "id int {key}, body varchar(40) character set latin1, day date NOT NULL, note text"
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(
        mysql80,
        f"CREATE TABLE notes ({columns.format(key='PRIMARY KEY')})",
        f"CREATE TABLE log ({columns.format(key='')})",
        database=DATABASE,
    )
    pipeline = Pipeline.of(mysql80, DATABASE, tmp_path_factory.mktemp("quarantine"))
    for table in NAMES:
        run(
            mysql80,
            "SET sql_mode = 'ALLOW_INVALID_DATES'",
            f"INSERT INTO {table} VALUES (1, x'C3A4', '2024-01-01', 'a'), (2, x'FFFE', '2024-02-30', 'b'), (3, NULL, '0000-00-00', 'c')",
            f"UPDATE {table} SET body = x'C3' WHERE id = 1",
            database=DATABASE,
        )
    return pipeline


def staged(pipeline: Pipeline, **policy: object) -> StagingResult:
    return pipeline.staged(policies={f"{DATABASE}.{table}": ValuePolicy(**policy) for table in NAMES})  # type: ignore[arg-type]


def test_a_value_that_cannot_be_decoded_stops_its_table_by_default(written: Pipeline) -> None:
    made = staged(written, charsets=UTF8)
    assert [table.state for table in made.stopped] == ["TYPE_UNSUPPORTED"] * 2
    assert "column body" in made.stopped[0].reason
    assert "is not text in utf8" in made.stopped[0].reason
    assert made.manifest.quarantine is None


@pytest.mark.parametrize("table", NAMES)
def test_under_quarantine_the_row_continues_with_null_fidelity(written: Pipeline, table: str) -> None:
    made = staged(written, charsets=UTF8, undecodable="quarantine", zero_dates="error")
    found = images(made, table)
    inserted = [(row["id"], row["body"], str(row["day"]), row["note"]) for row in found.slice(0, 3).to_pylist()]
    assert inserted == [(1, "ä", "2024-01-01", "a"), (2, None, "None", "b"), (3, None, "None", "c")]
    assert found["body"][-1].as_py() is None
    assert made.manifest.quarantine is not None
    rows = pq.read_table(made.path / made.manifest.quarantine.file).filter(pq_table_is(table)).to_pylist()
    seen = [(row["column"], row["raw"], row["operation"]) for row in rows]
    assert sorted(seen) == sorted(
        [
            ("body", b"\xff\xfe", "insert"),
            ("day", (2024 << 9 | 2 << 5 | 30).to_bytes(3, "little"), "insert"),
            ("day", bytes(3), "insert"),
            ("body", b"\xc3", "update_after"),
        ]
    )
    known = set(zip(found["_sluice_order_key"].to_pylist(), found["id"].to_pylist(), strict=True))
    for row in rows:
        key = json.loads(row["key"])
        assert (row["order_key"], key["id"]) in known
        assert key.keys() == ({"id"} if table == "notes" else {"id", "body", "day", "note"})
        assert key.get(row["column"]) is None
        assert (row["database"], row["table"]) == (DATABASE, table)
        assert row["reason"]


def pq_table_is(table: str) -> pc.Expression:
    return pc.field("table") == table


def test_a_key_that_cannot_be_decoded_stops_its_table_also_under_quarantine(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    run(mysql80, f"DROP DATABASE IF EXISTS {DATABASE}_key", f"CREATE DATABASE {DATABASE}_key")
    run(
        mysql80, "CREATE TABLE t (id varbinary(9) PRIMARY KEY, v varchar(9) charset latin1)", database=f"{DATABASE}_key"
    )
    pipeline = Pipeline.of(mysql80, f"{DATABASE}_key", tmp_path)
    run(mysql80, "INSERT INTO t VALUES (x'FF', 'a')", database=f"{DATABASE}_key")
    policy = ValuePolicy(charsets={"id": "utf8mb4"}, undecodable="quarantine")
    made = pipeline.staged(policies={f"{DATABASE}_key.t": policy})
    assert [(table.state, "column id" in table.reason) for table in made.stopped] == [("TYPE_UNSUPPORTED", True)]


def test_a_table_full_of_such_values_stops(written: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cdc_engine.binlog.rows.decoder.REFUSED_VALUES_MAX", 1)
    made = staged(written, charsets=UTF8, undecodable="quarantine", zero_dates="error")
    assert ["`charsets`" in table.reason for table in made.stopped] == [True, True]
    assert made.manifest.quarantine is None
    assert refused_values.REFUSED_VALUES_MAX > 1


def test_each_table_has_its_own_identity_in_the_quarantine_and_is_appended_once(
    written: Pipeline, tmp_path: Path
) -> None:
    import deltalake  # noqa: PLC0415

    options = {"charsets": UTF8, "undecodable": "quarantine", "zero_dates": "error"}
    first, again = (read_staged_batch(staged(written, **options).path) for _ in range(2))
    path = str(tmp_path / "quarantine")
    assert [append_quarantine(batch, path, {}, BY_HAND) for batch in (first, first, again)] == [8, 0, 0]
    table = deltalake.DeltaTable(path)
    assert table.to_pyarrow_table().num_rows == 8
    rows = table.to_pyarrow_table().to_pylist()
    for name in {(row["database"], row["table"]) for row in rows}:
        last = max(row["order_key"] for row in rows if (row["database"], row["table"]) == name)
        assert table.transaction_version(f"sluice/fidelity//quarantine/{name[0]}.{name[1]}") == last
