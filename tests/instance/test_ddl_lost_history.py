"""A start in the past whose schema history is not there: no row of then is read with the columns of now, on a real server."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cdc_engine.client import read_ledger
from cdc_engine.contracts import OutstandingBatch
from cdc_engine.instance.engine import Engine
from cdc_engine.instance.rooms import SCHEMA_FILE
from console.toolchain.servers import DatabaseServer
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for


def place_now(captured: Captured) -> tuple[str, int]:
    """The end of the server's binlog."""
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset, *_ = cursor.fetchone() or ("", 0)
    return str(file), int(offset)


def read_rows(captured: Captured, engine: Engine, table: str, count: int) -> list[dict[str, object]]:
    """The first `count` staged rows of a table, as an analyst would see them."""
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


@pytest.mark.parametrize("flavour", ["mysql80", "mariadb114"])
@pytest.mark.parametrize("why", ["history lost", "start configured"])
def test_ddl_a_table_altered_since_the_start_stops_and_the_others_are_read(
    flavour: str, why: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(flavour)
    captured = Captured(tmp_path, server)
    captured.run(f"CREATE TABLE {captured.database}.pairs (n INT PRIMARY KEY, a INT, b INT)")
    file, offset = place_now(captured)
    if why == "start configured":
        captured.describe(f"start: {{file: {file}, offset: {offset}}}")
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
