"""Tests an engine that starts at a past position without a schema history, on a real server. It must not decode rows before a DDL statement
with the columns after it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.acts.stopped_table import resolve
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.engine.kept_state import SCHEMA_FILE
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

STAYS = "snapshot: never"


def end_now(captured: Captured) -> tuple[str, int]:
    """Returns the end of the server's binlog."""
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset, *_ = cursor.fetchone() or ("", 0)
    return str(file), int(offset)


def read_rows(captured: Captured, engine: Engine, table: str, count: int) -> list[dict[str, object]]:
    """Returns the first `count` staged rows of a table, as an analyst would see them."""
    rows: list[dict[str, object]] = []

    def enough() -> bool:
        batch: OutstandingBatch | None = engine.hand_out(0.5)
        if batch is not None:
            for file in sorted((captured.directory / batch.path).glob(f"*{table}*.parquet")):
                rows.extend(pq.read_table(file).to_pylist())
            engine.ack(batch)
        return len(rows) >= count

    wait_for(f"{count} rows of {table} are staged", enough, 60)
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def stops(captured: Captured) -> dict[str, str]:
    return {stopped.table: stopped.state for stopped in read_ledger(captured.directory).stopped_tables}


@pytest.fixture(params=["mysql80", "mariadb114"])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    """Captures a table `pairs` with the columns n, a, b. A setting prevents automatic re-snapshots, so that a stopped
    table stays stopped.
    """
    made = Captured(tmp_path, request.getfixturevalue(request.param))
    made.describe(STAYS)
    made.run(f"CREATE TABLE {made.database}.pairs (n INT PRIMARY KEY, a INT, b INT)")
    return made


@pytest.mark.parametrize("why", ["history lost", "start configured"])
def test_ddl_a_table_altered_since_the_start_stops_and_the_others_are_read(captured: Captured, why: str) -> None:
    file, offset = end_now(captured)
    if why == "start configured":
        captured.describe(STAYS, f"start: {{file: {file}, offset: {offset}}}")
    else:
        engine = Engine(captured.config, "shop")
        engine.start()
        engine.stop()
        (captured.directory / SCHEMA_FILE).unlink()
    captured.run(
        f"INSERT INTO {captured.database}.pairs VALUES (1, 10, 20)",
        f"INSERT INTO {captured.database}.numbers VALUES (1, 'x')",
        f"ALTER TABLE {captured.database}.pairs MODIFY a INT AFTER b",
        f"CREATE TABLE {captured.database}.young (n INT PRIMARY KEY, note TEXT)",
        f"ALTER TABLE {captured.database}.numbers ADD INDEX (filler(10))",
        f"INSERT INTO {captured.database}.young VALUES (7, 'made since')",
        f"INSERT INTO {captured.database}.numbers VALUES (2, 'y')",
    )
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        assert read_rows(captured, engine, "numbers", 2) == [{"n": 1, "filler": "x"}, {"n": 2, "filler": "y"}]
        assert stops(captured) == {"pairs": "SCHEMA_UNKNOWN"}
        captured.run(f"INSERT INTO {captured.database}.young VALUES (8, 'and read on')")
        assert read_rows(captured, engine, "young", 1)[-1] == {"n": 8, "note": "and read on"}
    finally:
        engine.stop()


def test_ddl_a_table_continues_from_its_stop_with_the_schema_that_an_operator_gives(captured: Captured) -> None:
    """The operator decides while the engine runs. Rows before the ALTER, and rows after it, each have the columns that were valid at their
    position.
    """
    file, offset = end_now(captured)
    captured.describe(STAYS, f"start: {{file: {file}, offset: {offset}}}")
    captured.run(
        f"INSERT INTO {captured.database}.pairs VALUES (1, 10, 20)",
        f"ALTER TABLE {captured.database}.pairs MODIFY a INT AFTER b",
        f"INSERT INTO {captured.database}.pairs (n, a, b) VALUES (2, 11, 21)",
        f"INSERT INTO {captured.database}.numbers VALUES (1, 'x')",
    )
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        assert captured.take(engine, 1) == [1]
        assert stops(captured) == {"pairs": "SCHEMA_UNKNOWN"}
        then = "CREATE TABLE `pairs` (`n` int NOT NULL, `a` int, `b` int, PRIMARY KEY (`n`)) DEFAULT CHARSET=utf8mb4"
        resolve(captured.config.destination_dir("shop"), f"{captured.database}.pairs", then)
        assert read_rows(captured, engine, "pairs", 2) == [{"n": 1, "a": 10, "b": 20}, {"n": 2, "b": 21, "a": 11}]
        assert stops(captured) == {}
    finally:
        engine.stop()


def test_ddl_create_if_not_exists_of_a_table_that_exists_does_not_name_its_columns(captured: Captured) -> None:
    """The statements name other columns, but with the same types. A table map without column names would therefore fit them."""
    database = captured.database
    captured.run(
        f"CREATE TABLE {database}.altered (n INT PRIMARY KEY, a INT, b INT)",
        f"CREATE TABLE {database}.replaced (n INT PRIMARY KEY, a INT, b INT)",
    )
    file, offset = end_now(captured)
    captured.describe(STAYS, f"start: {{file: {file}, offset: {offset}}}")
    other_columns = "(n INT PRIMARY KEY, b INT, a INT)"
    captured.run(
        f"CREATE TABLE IF NOT EXISTS {database}.pairs {other_columns}",
        f"INSERT INTO {database}.pairs (n, a, b) VALUES (1, 10, 20)",
        f"CREATE TABLE IF NOT EXISTS {database}.altered {other_columns}",
        f"INSERT INTO {database}.altered (n, a, b) VALUES (1, 10, 20)",
        f"ALTER TABLE {database}.altered ADD COLUMN later INT",
        f"RENAME TABLE {database}.replaced TO {database}.former",
        f"CREATE TABLE IF NOT EXISTS {database}.replaced {other_columns}",
        f"INSERT INTO {database}.replaced (n, a, b) VALUES (1, 10, 20)",
        f"INSERT INTO {database}.numbers VALUES (1, 'x')",
    )
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        rows = {"pairs": list[dict[str, object]](), "altered": [], "replaced": [], "numbers": []}
        while not rows["numbers"]:
            batch = engine.hand_out(5)
            assert batch is not None
            for table, found in rows.items():
                for path in sorted((captured.directory / batch.path).glob(f"*{table}*.parquet")):
                    found.extend(pq.read_table(path).to_pylist())
            engine.ack(batch)
        seen = {
            table: [(row["n"], row["a"], row["b"]) for row in found]
            for table, found in rows.items()
            if table != "numbers"
        }
        assert seen == {"pairs": [(1, 10, 20)], "altered": [], "replaced": [(1, 10, 20)]}
        assert stops(captured) == {"altered": "SCHEMA_UNKNOWN"}
    finally:
        engine.stop()
