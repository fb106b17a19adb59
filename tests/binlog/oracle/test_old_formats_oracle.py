"""Tests the temporal formats from before MySQL 5.6 from the binlog to the lake. MariaDB still writes them with
mysql56_temporal_format=OFF.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.comparison import expected, printed
from tests.fidelity.pipeline import Pipeline, images, run

pytestmark = pytest.mark.servers

MOMENTS = (
    "'2024-02-29 01:02:03.123456'",
    "'9999-12-31 23:59:59.999999'",
    "'1000-01-01 00:00:00'",
    "'0000-00-00 00:00:00'",
    "NULL",
)
INSTANTS = ("'2024-02-29 01:02:03.123456'", "'2038-01-19 03:14:07.999999'", "'1970-01-01 00:00:01.5'", "0", "NULL")
CLOCKS = ("'-12:34:56.123456'", "'838:59:59.999999'", "'-838:59:59'", "'00:00:00'", "NULL")
COLUMNS = tuple(
    (f"{kind}({digits})" if digits else kind, values)
    for kind, values in (("datetime", MOMENTS), ("timestamp", INSTANTS), ("time", CLOCKS))
    for digits in range(7)
)


@pytest.mark.parametrize("name", ["mariadb114", "mariadb1011"])
def test_old_formats_are_what_select_returns_oracle(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    columns = ", ".join(
        f"c{index} {declared}{' NULL' if 'stamp' in declared else ''}" for index, (declared, _) in enumerate(COLUMNS)
    )
    run(
        server,
        "DROP DATABASE IF EXISTS old_formats",
        "CREATE DATABASE old_formats",
        "SET GLOBAL mysql56_temporal_format = OFF",
    )
    try:
        run(server, f"CREATE TABLE t (id int PRIMARY KEY, {columns})", database="old_formats")
    finally:
        run(server, "SET GLOBAL mysql56_temporal_format = ON")
    pipeline = Pipeline.of(server, "old_formats", tmp_path)
    rows = (f"({row}, {', '.join(values[row] for _, values in COLUMNS)})" for row in range(len(MOMENTS)))
    run(server, f"INSERT INTO t VALUES {', '.join(rows)}", database="old_formats")
    with (
        server.connect(conv={}, use_unicode=False, database="old_formats") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("SELECT * FROM t ORDER BY id")
        selected = list(zip(*cursor.fetchall(), strict=True))[1:]
    found = images(pipeline.staged(), "t")
    assert found.num_rows == len(MOMENTS)
    for index, (declared, _) in enumerate(COLUMNS):
        ours = [printed(value, declared) for value in found[f"c{index}"].to_pylist()]
        assert ours == [expected(raw, declared) for raw in selected[index]], declared
