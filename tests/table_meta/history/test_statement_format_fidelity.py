"""Rows that a session changed out of row format: the tables that its statement writes to stop by name, and no other; never the stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.ddl.reader import read_statement
from sluice.cdc_engine.table_meta.ddl.statement import StatementRowChange
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, ForeignKey, Stopped, TableSchema

ID = DeclaredColumn(name="id", type="int", nullable=False)
LIKEWISE = {"orders", "items", "lines", "notes"}


def table(database: str, name: str, parent: str = "") -> TableSchema:
    keys = (ForeignKey(name="k", columns=("id",), parent=(database, parent), referenced=("id",), on_delete="CASCADE"),)
    return TableSchema(
        database=database,
        table=name,
        charset="utf8mb4",
        columns=(ID,),
        key=("id",),
        foreign_keys=keys if parent else (),
    )


TABLES = (
    table("shop", "orders"),
    table("shop", "items"),
    table("shop", "lines", "orders"),
    table("shop", "notes", "lines"),
    table("shop", "skip_me"),
    table("shop", "skip_parent"),
    table("depot", "bins"),
    table("percona", "checksums"),
)


def at(offset: int) -> Position:
    return Position(epoch=1, file="binlog.000001", offset=offset * 16)


@pytest.fixture
def history(tmp_path: Path) -> TableHistory:
    made = TableHistory(
        tmp_path / "schema.jsonl", lambda base, name: base in {"shop", "depot"} and not name.startswith("skip_")
    )
    made.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), TABLES), at(1))
    return made


def stopped(changes: tuple[TableChange, ...]) -> set[str]:
    assert all(change.kind is TableChangeKind.STOPPED for change in changes)
    return {change.table for change in changes}


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("INSERT INTO t VALUES (1)", ["t"]),
        ("/* c */ insert LOW_PRIORITY ignore `a b`.`c``d`(x) values (1)", ["a b.c`d"]),
        ("INSERT INTO shop.t SELECT * FROM a JOIN b USING (x)", ["shop.t"]),
        ("REPLACE INTO percona . checksums SELECT 1", ["percona.checksums"]),
        ("REPLACE t VALUES (1)", ["t"]),
        ("UPDATE LOW_PRIORITY t SET a = 1, b = 2", ["t"]),
        ("UPDATE t AS x SET a = (SELECT max(b), c FROM u)", ["t"]),
        ("DELETE QUICK FROM t WHERE a IN (1, 2)", ["t"]),
        ("DELETE HISTORY FROM t BEFORE SYSTEM_TIME '2020-01-01'", ["t"]),
        ("UPDATE t, u SET t.a = 1", ["t", "u"]),
        ("UPDATE t x LEFT JOIN d.u y ON x.a = y.a SET x.a = 1", ["t", "d.u"]),
        ("UPDATE (t, u) SET t.a = 1", ["t", "u"]),
        ("UPDATE t JOIN (SELECT a, b FROM v WHERE c = 1) AS d USING (a, b) SET t.a = 1", ["t", "v"]),
        ("DELETE x FROM t x JOIN u", ["t", "u"]),
        ("DELETE x, y.* FROM t AS x STRAIGHT_JOIN u AS y WHERE x.a = y.a", ["t", "u"]),
        ("DELETE FROM x USING t x JOIN u USING (a)", ["t", "u"]),
        ("LOAD DATA LOCAL INFILE 'x' REPLACE INTO TABLE d.t FIELDS TERMINATED BY ','", ["d.t"]),
        ("SET STATEMENT max_statement_time=1 FOR DELETE FROM t", ["t"]),
        ("WITH x AS (SELECT 1) UPDATE t SET a = 1", []),
        ("SELECT `shop`.`f`(1)", []),
        ("CALL p()", []),
        ("INSERT INTO (1)", []),
    ],
)
def test_the_tables_that_a_row_change_writes_to_fidelity(statement: str, names: list[str]) -> None:
    read = read_statement(statement, "mysql")
    assert isinstance(read, StatementRowChange)
    assert [f"{name.database}.{name.table}".lstrip(".") for name in read.names] == names


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("INSERT INTO items VALUES (1)", {"items"}),
        ("DELETE FROM shop.notes", {"notes"}),
        ("UPDATE items JOIN depot.bins SET items.id = 2", {"items", "bins"}),
        ("UPDATE items JOIN skip_me SET items.id = 2", {"items"}),
        ("INSERT INTO skip_me SELECT * FROM orders", set()),
        ("REPLACE INTO percona.checksums SELECT 1 FROM shop.orders", set()),
        ("REPLACE INTO percona.unseen SELECT 1 FROM shop.orders", set()),
        ("UPDATE orders SET id = 2", {"orders", "lines", "notes"}),  # by foreign keys
        ("INSERT INTO some_view VALUES (1)", LIKEWISE),
        ("SELECT `shop`.`f`(1)", LIKEWISE),
        ("SELECT depot.f('items')", {*LIKEWISE, "bins"}),
        ("DO f()", LIKEWISE),
        ("WITH x AS (SELECT 1) UPDATE items SET id = 1", LIKEWISE),
    ],
)
def test_the_tables_that_a_row_change_stops_fidelity(history: TableHistory, statement: str, tables: set[str]) -> None:
    changes = history.apply(statement, "shop", at(2))
    assert stopped(changes) == tables
    for change in changes:
        of_parent = change.table in {"lines", "notes"} and "orders" in statement
        assert change.state == ("CASCADE_UNSEEN" if of_parent else "STATEMENT_FORMAT")
        assert "binlog.000001:32@1" in change.reason
        assert "binlog_format=ROW" in change.reason
        assert isinstance(history.state(change.database, change.table, at(2)), Stopped)
    for schema in TABLES:
        if schema.table not in tables:
            assert history.state(schema.database, schema.table, at(2)) == schema


def test_a_row_change_elsewhere_is_no_concern_fidelity(history: TableHistory) -> None:
    assert history.apply("DO f()", "elsewhere", at(2)) == ()
    assert history.apply("INSERT INTO t VALUES ('orders')", "elsewhere", at(3)) == ()
