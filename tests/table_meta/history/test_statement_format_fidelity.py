"""Tests row changes that a session logs as statements instead of rows. Exactly the tables that the statement writes stop. The other tables
and the stream continue.
"""

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
ALL = {*LIKEWISE, "bins"}
# The statement that pt-table-checksum writes in format STATEMENT, also on a server with binlog_format=ROW.
CHECKSUM = (
    "REPLACE INTO percona.checksums (db, tbl, chunk, chunk_index, this_cnt, this_crc) "
    "SELECT 'shop', 'orders', '1', NULL, COUNT(*) AS cnt, COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`, "
    "CONCAT(ISNULL(`id`)))) AS UNSIGNED)), 10, 16)), 0) AS crc "
    "FROM `shop`.`orders` FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) /*checksum chunk*/"
)


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


def names_of(statement: str) -> list[str]:
    read = read_statement(statement, "mariadb")
    assert isinstance(read, StatementRowChange)
    return [f"{name.database}.{name.table}".lstrip(".") for name in read.names]


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
    assert names_of(statement) == names


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("INSERT INTO history.events VALUES (1)", ["history.events"]),
        ("INSERT IGNORE data.t VALUES (1)", ["data.t"]),
        ("INSERT INTO quick (a) VALUES (1)", ["quick"]),
        ("REPLACE DELAYED local.t VALUES (1)", ["local.t"]),
        ("UPDATE data, orders SET data.x = 1", ["data", "orders"]),
        ("UPDATE LOW_PRIORITY IGNORE xml SET x = 1", ["xml"]),
        ("UPDATE history.concurrent JOIN local USING (a) SET x = 1", ["history.concurrent", "local"]),
        ("DELETE FROM quick", ["quick"]),
        ("DELETE FROM history.t", ["history.t"]),
        ("DELETE QUICK FROM history WHERE a", ["history"]),
        ("DELETE LOW_PRIORITY QUICK IGNORE FROM data.t", ["data.t"]),
        ("DELETE QUICK IGNORE t FROM data.t JOIN xml", ["data.t", "xml"]),
        ("DELETE history FROM quick AS history, local.u", ["quick", "local.u"]),
        ("LOAD XML CONCURRENT LOCAL INFILE 'x' INTO TABLE xml.data", ["xml.data"]),
        ("LOAD DATA INFILE 'x' INTO TABLE data", ["data"]),
    ],
)
def test_a_table_named_as_a_modifier_fidelity(statement: str, names: list[str]) -> None:
    """DATA, XML, HISTORY, LOCAL, QUICK and CONCURRENT can be names of tables. An earlier version skipped them as modifiers. So
    `INSERT INTO history.events` stopped the tables of the default database, and history.events continued without the row.
    """
    assert names_of(statement) == names


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("UPDATE { OJ shop.orders LEFT OUTER JOIN skip.log ON 1 } SET orders.id = 1", []),
        ("UPDATE t, { OJ u LEFT JOIN v ON 1 } SET t.a = 1", []),
        ("DELETE v FROM { OJ u LEFT JOIN v ON 1 }", []),
    ],
)
def test_an_odbc_join_fidelity(statement: str, names: list[str]) -> None:
    """In an earlier version, the first table of `{ OJ t LEFT JOIN u ON … }` was not among the tables that the statement writes. So this
    table continued without the change.
    """
    assert names_of(statement) == names


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("UPDATE a.t JOIN b.u ON t.from = u.set JOIN c.v ON v.where = u.using SET t.a = 1", ["a.t", "b.u", "c.v"]),
        ("DELETE d.from FROM d.from JOIN d.limit ON d.from.order = d.limit.where", ["d.from", "d.limit"]),
        ("UPDATE .t, u SET t.a = 1", ["t", "u"]),
        ("UPDATE lateral, u SET u.a = 1", ["lateral", "u"]),
        ("UPDATE t JOIN LATERAL (SELECT a FROM v) x SET t.a = 1", ["t", "v"]),
        ("DELETE FROM x USING (d.t AS x JOIN d.u USING (a))", ["d.t", "d.u"]),
        ("UPDATE shop.t FOR PORTION OF p FROM now() TO '2030-01-01' SET a = 1", ["shop.t"]),
        ("DELETE FROM shop.t FOR PORTION OF p FROM DATE '2020-01-01' TO '2030-01-01'", ["shop.t"]),
        ("UPDATE a.t, b.u FOR SYSTEM_TIME FROM now() TO now() SET t.a = 1", ["a.t", "b.u"]),
    ],
)
def test_a_table_next_to_a_name_that_is_no_keyword_there_fidelity(statement: str, names: list[str]) -> None:
    """An earlier version took some names and clauses for keywords: `from`, `set` or `using` as a name, FOR PORTION OF … FROM of MariaDB,
    and a parenthesis after USING. So tables that the statement writes continued without the change.
    """
    assert names_of(statement) == names


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("ANALYZE UPDATE t SET a = 1", ["t"]),
        ("analyze format=json delete from d.t where a = 1", ["d.t"]),
        ("ANALYZE FORMAT = 'json' INSERT INTO t VALUES (1)", ["t"]),
        ("ANALYZE REPLACE t VALUES (1)", ["t"]),
        ("ANALYZE WITH x AS (SELECT 1) UPDATE t SET a = 1", []),
        ("ANALYZE FORMAT=JSON SELECT d.f(1)", []),
        ("SET STATEMENT max_statement_time=3 FOR ANALYZE UPDATE t SET a = 1", ["t"]),
    ],
)
def test_an_analyzed_row_change_fidelity(statement: str, names: list[str]) -> None:
    """MariaDB executes a statement after ANALYZE. An earlier version read it as ANALYZE TABLE, so its table continued without the row."""
    assert names_of(statement) == names


@pytest.mark.parametrize("words", ["", "NO_WRITE_TO_BINLOG ", "LOCAL "])
@pytest.mark.parametrize("rest", ["TABLE orders", "TABLES orders, items", "TABLE orders UPDATE HISTOGRAM ON id"])
def test_statistics_of_a_table_are_no_row_change_fidelity(history: TableHistory, words: str, rest: str) -> None:
    assert history.apply(f"ANALYZE {words}{rest}", "shop", at(2)) == ()


def test_an_analyzed_statement_that_cannot_be_read_stops_the_tables_it_names_fidelity(history: TableHistory) -> None:
    assert stopped(history.apply("ANALYZE SOMETHING orders", "shop", at(2))) == {"orders"}


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
        ("UPDATE orders SET id = 2", {"orders", "lines", "notes"}),  # These tables are changed by foreign keys.
        ("INSERT INTO some_view VALUES (1)", LIKEWISE),
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
    assert history.apply("DO sleep(1)", "elsewhere", at(2)) == ()
    assert history.apply("INSERT INTO t VALUES ('orders')", "elsewhere", at(3)) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT `shop`.`f`(1)",
        "DO f()",
        "CALL p",
        "INSERT INTO skip.log VALUES (shop.f(1))",
        "INSERT INTO skip.log (a, b) VALUES (1, 2), (now(), f (1))",
        "INSERT INTO skip.log SELECT `f`(a) FROM t",
        "INSERT INTO skip.log VALUES (1) ON DUPLICATE KEY UPDATE a = f(1)",
        "UPDATE skip.log JOIN skip.more ON f(1) SET log.a = 1",
        "DELETE FROM skip.log WHERE a = shop.now()",
        "LOAD DATA INFILE 'x' INTO TABLE skip.log (a, @b) SET b = f(@b)",
        "ANALYZE UPDATE skip.log SET a = f(1)",
    ],
)
@pytest.mark.parametrize("database", ["shop", "elsewhere"])
def test_a_call_of_a_stored_function_stops_every_table_fidelity(
    history: TableHistory, statement: str, database: str
) -> None:
    """A stored function may write any table. In an earlier version, only the table in the statement stopped, or the tables of the databases
    in it. Another table continued without the rows that the function changed.
    """
    changes = history.apply(statement, database, at(2))
    assert stopped(changes) == ALL
    assert all("calls a function" in change.reason and change.state == "STATEMENT_FORMAT" for change in changes)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO skip.log (a) VALUES (now(6)), (coalesce(1, 2)), (CAST(1 AS CHAR(10))), (CONVERT(1, DECIMAL(10, 2)))",
        "INSERT INTO skip.log PARTITION (p) (`a`) VALUE (1) AS new (x) ON DUPLICATE KEY UPDATE a = VALUES(a) + (1)",
        "REPLACE DELAYED `skip`.log (a) SELECT * FROM (SELECT 1) AS d (a) WHERE a IN (1) AND (a) OR NOT (a)",
        "REPLACE skip.log SELECT * FROM t USE INDEX FOR GROUP BY (i) WHERE MATCH (a) AGAINST ('x') GROUP BY (a)",
        "INSERT INTO skip.log SELECT row_number() OVER (PARTITION BY a), b = ANY (SELECT 1), EXISTS (SELECT 1) FROM u",
        "INSERT INTO skip.log SELECT * FROM JSON_TABLE('[1]', '$[*]' COLUMNS (a varchar(9) PATH '$')) x",
        "UPDATE skip.log SET a = IF(a, LEFT('f(1)', 2), CASE WHEN (1) THEN (2) ELSE (3) END) WHERE (a, b) = ROW(1, 2)",
        "DELETE FROM skip.log WHERE a < UNIX_TIMESTAMP() - INTERVAL (3) DAY LIMIT 3",
        "LOAD DATA INFILE 'x' INTO TABLE skip.log IGNORE 1 ROWS (a, @b) SET b = UPPER(@b)",
        CHECKSUM,
        "INSERT INTO mysql.rds_heartbeat2(id, value) values (1,1622123) ON DUPLICATE KEY UPDATE value = 1622123",
        "GRANT EXECUTE ON FUNCTION shop.f TO 'a'@'b'",
        "CREATE FUNCTION shop.f(x int) RETURNS int DETERMINISTIC RETURN g(x)",
        "CREATE TRIGGER shop.tr BEFORE INSERT ON orders FOR EACH ROW SET NEW.id = f(1)",
        "SAVEPOINT `f(1)`",
        "XA START X'01',X'02',1",
        "BEGIN",
    ],
)
def test_a_function_of_the_server_stops_nothing_fidelity(history: TableHistory, statement: str) -> None:
    assert history.apply(statement, "elsewhere", at(2)) == ()
