"""A source with binlog_format MIXED: row events are followed, and a statement stops the table that it changes, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.instance.engine.engine import Engine
from tests.fix_servers import ServerFactory
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.managed]

# The server logs these as rows: at this level InnoDB has no other form.
AS_ROWS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"


@pytest.mark.parametrize("version", ["mysql-8.0.31", "mysql-9", "mariadb-11.4.5"])
def test_a_statement_stops_its_table_and_no_other(version: str, fresh_server: ServerFactory, tmp_path: Path) -> None:
    captured = Captured(tmp_path, fresh_server(version, {"binlog_format": "MIXED"}))
    captured.describe("snapshot: never")  # otherwise the table is re-snapshotted, and its later rows are buffered
    database = captured.database
    captured.run(f"CREATE TABLE {database}.other (n INT PRIMARY KEY)")
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.run(AS_ROWS, f"INSERT INTO {database}.numbers VALUES (1, 'a')")
        assert captured.take(engine, 1) == [1]
        captured.run(f"INSERT INTO {database}.numbers VALUES (2, 'b')")
        captured.run(
            AS_ROWS, f"INSERT INTO {database}.numbers VALUES (3, 'c')", f"INSERT INTO {database}.other VALUES (4)"
        )
        assert captured.take(engine, 1) == [4], "nothing of the stopped table is handed out, and the other goes on"
        stops = wait_for("it is named", lambda: engine.status().stopped_tables)
        assert [(each.table, str(each.state)) for each in stops] == [("numbers", "STATEMENT_FORMAT")]
        assert "re-snapshot the table" in stops[0].reason
    finally:
        engine.stop()
