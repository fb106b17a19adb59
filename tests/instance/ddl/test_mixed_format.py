"""Tests a source with binlog_format MIXED. Changes that are logged as row events are captured. A change that is logged as a statement stops
exactly the tables that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import SourceCheckError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from tests.fix_servers import ServerFactory
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.managed]

# At this isolation level, InnoDB can only log changes as rows. So the server logs the statements that follow as row events.
AS_ROWS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
TABLES = ("other", "log", "viewed", "apart", "late")
GRANTS = "SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT"


@contextmanager
def begun(captured: Captured) -> Iterator[Engine]:
    """Runs an engine whose account has the privileges of docs/guides/connect-a-source.md and no others."""
    captured.run(
        "CREATE USER mixed",
        f"GRANT {GRANTS}, TRIGGER, SHOW VIEW ON *.* TO mixed",
    )
    source = f"{{user: mixed, port: {captured.server.port}}}"
    # A re-snapshot would buffer the later rows of a stopped table, so it is switched off.
    captured.describe("snapshot: never", source=source)
    with running(captured) as engine:
        yield engine


def stops(engine: Engine, count: int) -> dict[str, str]:
    def found() -> dict[str, str]:
        there = {each.table: str(each.state) for each in engine.status().stopped_tables}
        return there if len(there) >= count else {}

    return wait_for(f"{count} tables are named", found)


@pytest.mark.parametrize("version", ["mysql-5.7.22", "mysql-8.0.31", "mysql-9", "mariadb-11.4.5"])
def test_a_statement_stops_what_it_changes_and_nothing_else(
    version: str, fresh_server: ServerFactory, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, fresh_server(version, {"binlog_format": "MIXED"}))
    database = captured.database
    captured.run(
        "CREATE DATABASE elsewhere",
        *(f"CREATE TABLE {database}.{name} (n INT PRIMARY KEY)" for name in TABLES),
        f"CREATE TRIGGER {database}.before AFTER INSERT ON {database}.numbers FOR EACH ROW "
        f"INSERT INTO {database}.log (n) VALUES (NEW.n)",
        f"CREATE VIEW elsewhere.look AS SELECT * FROM {database}.viewed",
    )
    with begun(captured) as engine:
        captured.run(AS_ROWS, f"INSERT INTO {database}.numbers VALUES (1, 'a')")
        assert sorted(captured.take(engine, 2)) == [1, 1], "the trigger's row is an event of its own"
        captured.run(
            f"CREATE TRIGGER {database}.later AFTER INSERT ON {database}.apart FOR EACH ROW "
            f"INSERT INTO {database}.late VALUES (NEW.n)",
            f"CREATE VIEW elsewhere.new_look AS SELECT * FROM {database}.viewed",
            "RENAME TABLE elsewhere.look TO elsewhere.old_look",
            f"INSERT INTO {database}.numbers VALUES (2, 'b')",
            "INSERT INTO elsewhere.new_look VALUES (3)",
            f"INSERT INTO {database}.apart VALUES (4)",
        )
        captured.run(AS_ROWS, *(f"INSERT INTO {database}.{name} VALUES (9)" for name in ("log", "viewed", "other")))
        assert captured.take(engine, 1) == [9], "nothing of the stopped tables is handed out, and the other goes on"
        assert stops(engine, 5) == dict.fromkeys(("numbers", "log", "viewed", "apart", "late"), "STATEMENT_FORMAT")


def test_a_statement_in_an_xa_transaction_counts_at_its_commit(fresh_mysql80: ServerFactory, tmp_path: Path) -> None:
    """If the table stopped before the commit, a re-snapshot could end before the commit and miss the rows of the statement. The session
    uses format STATEMENT, because in MIXED MySQL logs XA transactions as rows.
    """
    captured = Captured(tmp_path, fresh_mysql80({"binlog_format": "MIXED"}))
    captured.run(f"CREATE TABLE {captured.database}.other (n INT PRIMARY KEY)")
    with begun(captured) as engine:
        captured.run(
            "SET SESSION binlog_format = 'STATEMENT'",
            *("XA START 'x'", f"INSERT INTO {captured.database}.numbers VALUES (1, 'a')"),
            *("XA END 'x'", "XA PREPARE 'x'"),
        )
        captured.run(AS_ROWS, f"INSERT INTO {captured.database}.numbers VALUES (2, 'b')")
        assert captured.take(engine, 1) == [2]
        assert engine.status().stopped_tables == ()
        captured.run("XA COMMIT 'x'")
        captured.run(AS_ROWS, f"INSERT INTO {captured.database}.other VALUES (3)")
        assert captured.take(engine, 1) == [3]
        assert stops(engine, 1) == {"numbers": "STATEMENT_FORMAT"}


def test_a_start_in_the_past_before_a_trigger_was_dropped_stops_every_table(
    fresh_mysql80: ServerFactory, tmp_path: Path
) -> None:
    """The trigger no longer exists at the start, so the engine cannot know which tables the trigger wrote. An earlier version refused every
    start instead, with the advice to start the engine again.
    """
    captured = Captured(tmp_path, fresh_mysql80({"binlog_format": "MIXED"}))
    database = captured.database
    captured.run(
        f"CREATE TABLE {database}.log (n INT PRIMARY KEY)",
        f"CREATE TRIGGER {database}.gone AFTER INSERT ON {database}.numbers FOR EACH ROW INSERT INTO {database}.log VALUES (NEW.n)",
        "FLUSH BINARY LOGS",
    )
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file = cursor.fetchone()[0]
    captured.run(f"INSERT INTO {database}.numbers VALUES (1, 'a')", f"DROP TRIGGER {database}.gone")
    captured.describe("snapshot: never", f"start: {{file: {file}, offset: 4}}")
    with running(captured) as engine:
        wait_for("the stops are handed out", lambda: engine.hand_out(0.5) or engine.status().stopped_tables)
        assert stops(engine, 2) == dict.fromkeys(("numbers", "log"), "STATEMENT_FORMAT")


def with_unknown_table(captured: Captured, *settings: str) -> None:
    """Configures the destination to start before a function writes to the table `early`. A later statement, CREATE TABLE IF NOT EXISTS,
    names `early`. Another statement creates the table `late`.
    """
    database = captured.database
    early = f"CREATE TABLE IF NOT EXISTS {database}.early (n INT PRIMARY KEY)"
    captured.run(
        early,
        f"CREATE FUNCTION {database}.writes() RETURNS INT DETERMINISTIC "
        f"BEGIN INSERT INTO {database}.early VALUES (1); RETURN 1; END",
        "FLUSH BINARY LOGS",
    )
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file = cursor.fetchone()[0]
    captured.run(f"SELECT {database}.writes()", early, f"CREATE TABLE {database}.late (n INT PRIMARY KEY)")
    captured.describe(*settings, f"start: {{file: {file}, offset: 4}}")


WRITES = {"binlog_format": "MIXED", "log_bin_trust_function_creators": "1"}


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
def test_a_start_in_the_past_stops_tables_whose_schemas_are_not_known_there(
    metadata: str, fresh_mysql80: ServerFactory, tmp_path: Path
) -> None:
    """In an earlier version, `early` got a schema from the later CREATE statement, or from the column names in a table map. So the row that
    the function had written was missing without any message.
    """
    captured = Captured(tmp_path, fresh_mysql80({**WRITES, "binlog_row_metadata": metadata}))
    with_unknown_table(captured, "snapshot: never")
    database = captured.database
    with running(captured) as engine:
        captured.run(AS_ROWS, f"INSERT INTO {database}.early VALUES (2)", f"INSERT INTO {database}.late VALUES (3)")
        assert captured.take(engine, 1) == [3], "nothing of a stopped table is handed out"
        assert stops(engine, 2) == dict.fromkeys(("numbers", "early"), "STATEMENT_FORMAT")


def test_such_a_table_is_re_snapshotted_as_any_other(fresh_mysql80: ServerFactory, tmp_path: Path) -> None:
    captured = Captured(tmp_path, fresh_mysql80(WRITES))
    with_unknown_table(captured)
    records = SnapshotRecords(captured.directory)

    def requested() -> bool:
        if (batch := engine.hand_out(0.2)) is not None:
            engine.ack(batch)  # A re-snapshot begins while no batch is in flight.
        record = records.get(f"{captured.database}.early")
        return record is not None and "STATEMENT_FORMAT" in record.reason

    with running(captured) as engine:
        captured.run(AS_ROWS, f"INSERT INTO {captured.database}.late VALUES (3)")
        wait_for("its re-snapshot is requested", requested)
        wait_for("it continues", lambda: requested() and engine.status().stopped_tables == ())


NO_TABLES = {
    "view": ("CREATE VIEW {}.old AS SELECT 1 AS n", "DROP VIEW {}.new"),
    "sequence": ("CREATE SEQUENCE {}.old", "DROP TABLE {}.new"),
}


@pytest.mark.parametrize("settings", [(), ("snapshot: never",)], ids=["snapshot", "never"])
@pytest.mark.parametrize(
    ("version", "what"), [("mysql-8.0.31", "view"), ("mariadb-11.4.5", "view"), ("mariadb-11.4.5", "sequence")]
)
def test_a_renamed_view_of_a_row_source_does_not_stay_a_stopped_table(
    version: str, what: str, settings: tuple[str, ...], fresh_server: ServerFactory, tmp_path: Path
) -> None:
    """An account without SHOW VIEW cannot see whether the renamed name is a view, so the new name first stops like a table. The stop must
    end, because neither a view nor a sequence is a table.
    """
    captured = Captured(tmp_path, fresh_server(version))
    database = captured.database
    create, drop = (statement.format(database) for statement in NO_TABLES[what])
    captured.run("CREATE USER plain", f"GRANT {GRANTS} ON *.* TO plain", create)
    captured.describe(*settings, source=f"{{user: plain, port: {captured.server.port}}}")

    def stopped_tables(engine: Engine) -> tuple[str, ...]:
        if (batch := engine.hand_out(0.2)) is not None:
            engine.ack(batch)
        return tuple(each.table for each in engine.status().stopped_tables)

    with running(captured) as engine:
        captured.run(
            f"RENAME TABLE {database}.old TO {database}.new", f"INSERT INTO {database}.numbers VALUES (1, 'a')"
        )
        assert captured.take(engine, 1) == [1]
        wait_for("nothing is stopped", lambda: not stopped_tables(engine))
        captured.run(drop, f"CREATE TABLE {database}.new (n INT PRIMARY KEY)", f"INSERT INTO {database}.new VALUES (2)")
        wait_for("a table of that name stops", lambda: stopped_tables(engine) == ("new",))


def test_a_source_that_becomes_mixed_needs_the_grants_and_a_new_start(
    fresh_mysql80: ServerFactory, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, fresh_mysql80())
    database = captured.database
    captured.run(
        "CREATE USER mixed",
        f"GRANT {GRANTS} ON *.* TO mixed",
        f"CREATE TABLE {database}.log (n INT PRIMARY KEY)",
        f"CREATE TRIGGER {database}.before AFTER INSERT ON {database}.numbers FOR EACH ROW "
        f"INSERT INTO {database}.log (n) VALUES (NEW.n)",
    )
    captured.describe("snapshot: never", source=f"{{user: mixed, port: {captured.server.port}}}")

    def end_dump() -> None:
        with captured.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (thread,) in cursor.fetchall():
                cursor.execute(f"KILL {thread}")

    with running(captured) as engine:
        wait_for("it streams", lambda: str(engine.status().state) == "RUNNING")
        captured.run("SET GLOBAL binlog_format = MIXED")
        end_dump()
        wait_for("it is refused", lambda: "GRANT SHOW VIEW, TRIGGER" in engine.status().reason)
        captured.run("GRANT TRIGGER, SHOW VIEW ON *.* TO mixed")
    with running(captured) as engine:
        captured.run(f"INSERT INTO {database}.numbers VALUES (1, 'a')")
        wait_for("the stops are handed out", lambda: engine.hand_out(0.5) or engine.status().stopped_tables)
        assert stops(engine, 2) == dict.fromkeys(("numbers", "log"), "STATEMENT_FORMAT")


@pytest.mark.parametrize(("row_format", "named"), [("MIXED", "GRANT SHOW VIEW, TRIGGER"), ("STATEMENT", "ROW")])
def test_a_format_that_changes_while_it_is_read_ends_the_stream_without_another_connection(
    fresh_mysql80: ServerFactory, tmp_path: Path, row_format: str, named: str
) -> None:
    captured = Captured(tmp_path, fresh_mysql80())
    captured.run("CREATE USER mixed", f"GRANT {GRANTS} ON *.* TO mixed")
    captured.describe("snapshot: never", source=f"{{user: mixed, port: {captured.server.port}}}")
    engine = Engine(captured.config, "shop", watch_seconds=0.2)
    engine.start()
    try:
        captured.insert([1])
        assert captured.take(engine, 1) == [1]
        captured.run(f"SET GLOBAL binlog_format = {row_format}")
        wait_for("the engine ends", lambda: str(engine.status().state) == "SOURCE_CHECK")
        assert f"binlog_format is {row_format}" in engine.status().reason
        assert named in engine.status().reason
    finally:
        engine.stop()


def test_mixed_without_the_grants_is_refused(fresh_mysql80: ServerFactory, tmp_path: Path) -> None:
    captured = Captured(tmp_path, fresh_mysql80({"binlog_format": "MIXED"}))
    captured.run("CREATE USER mixed", f"GRANT {GRANTS} ON *.* TO mixed")
    captured.describe(source=f"{{user: mixed, port: {captured.server.port}}}")
    with pytest.raises(SourceCheckError, match=r"MIXED.*GRANT SHOW VIEW, TRIGGER ON \*\.\* TO this user"):
        Engine(captured.config, "shop").start()
