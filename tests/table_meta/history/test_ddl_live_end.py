"""Tests a DDL statement that no rule can read. At the live end of the binlog, the server's schema is used. If a later statement changed the
table, the schema is unknown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.instance.answers import SchemaAnswers
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.live_schema import schema_now
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, read_snapshot
from sluice.console.toolchain.database.server import DatabaseServer
from tests.table_meta.replay import Scene, scene

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("server", ["mysql80", "mariadb114"])
def test_ddl_the_servers_schema_answers_until_another_statement_touches_the_table(
    server: str, request: pytest.FixtureRequest
) -> None:
    source: DatabaseServer = request.getfixturevalue(server)
    with scene(source, "meta_live") as played, source.connect() as requested:
        played.run("CREATE TABLE t (id int primary key, a int)")
        played.run("ALTER TABLE t ADD b varchar(3)")
        position = str(played.now())
        (expected,) = played.after[-1][2]
        assert schema_now(requested, "meta_live", "t", position) == expected
        played.run("INSERT INTO t VALUES (1, 2, 'x')")
        played.run("CREATE TABLE other (a int)")
        played.run("GRANT SELECT ON meta_live.t TO CURRENT_USER")
        assert schema_now(requested, "meta_live", "t", position) == expected, "rows and other tables lie between"
        played.run("ALTER TABLE t ADD c int")
        assert schema_now(requested, "meta_live", "t", position) is None, (
            "another statement about the table lies between"
        )
        now = str(played.now())
        assert schema_now(requested, "meta_live", "t", now) is not None
        assert schema_now(requested, "meta_live", "never_was", now) is None
        with played.connection.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
        assert schema_now(requested, "meta_live", "t", now) is None, "the position is not in the current binlog file"


def test_ddl_a_statement_no_rule_reads_is_answered_at_the_live_end_once_and_for_all(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    """The text that the history gets imitates the syntax of a later server. The server itself executed a plain ALTER."""
    unread = "ALTER TABLE t ADD b SPINOR(3)"
    source = Source(destination="shop", host="127.0.0.1", port=mysql80.port, user="root", password=str)
    with scene(mysql80, "meta_unread") as played:
        played.run("CREATE TABLE t (id int primary key)")
        begun = played.now()
        snapshot = read_snapshot(played.connection, played.captured)
        history = answered(tmp_path, source, played, begun, snapshot)
        played.run("ALTER TABLE t ADD b varchar(3) DEFAULT 'x'")
        position = played.now()
        (change,) = history.apply(unread, "meta_unread", position)
        played.run("ALTER TABLE t DROP b")
        history.rewind(begun)
        assert history.apply(unread, "meta_unread", position) == (change,), "read again, after the live end by now"
        behind = answered(tmp_path / "behind", source, played, begun, snapshot)
        (stop,) = behind.apply(unread, "meta_unread", position)
    assert (change.kind, change.fills) == (TableChangeKind.SCHEMA, (("b", "x"),))
    assert change.schema is not None
    assert [column.mysql_type for column in change.schema.columns] == ["int", "varchar(3)"]
    assert (stop.kind, stop.state) == (TableChangeKind.STOPPED, "SCHEMA_UNKNOWN")


def answered(folder: Path, source: Source, played: Scene, begun: Position, snapshot: SchemaSnapshot) -> TableHistory:
    review = SchemaDecisions(resolved=SchemaAnswers(lambda: source, folder).resolved)
    history = TableHistory(folder / "schema.jsonl", played.captured, review)
    history.seed(snapshot, begun)
    return history
