"""Tests foreign keys in unusual combinations, on real servers: the staged and derived rows equal SELECT, or the table stops with a reason.

The tests use no Spark. The lake is empty at the beginning.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.batch_manifest.values import StagedTable
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.spark_jobs.cascades.derive import carried_out
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.fidelity.pipeline import Pipeline, run
from tests.fidelity.tables.test_cascade import folded

pytestmark = pytest.mark.servers

DATABASE = "corners"
MARIADB = ("mariadb114",)


def child(columns: str, key: str) -> str:
    return f"CREATE TABLE c ({columns}, FOREIGN KEY {key})"


PARENT = "CREATE TABLE p (id int PRIMARY KEY, code varchar(9), UNIQUE (code))"
CHILD = child("id int PRIMARY KEY, p_id int, n int", "(p_id) REFERENCES p (id) ON DELETE {} ON UPDATE CASCADE")
BELOW = "CREATE TABLE e (id int PRIMARY KEY, c_id int, FOREIGN KEY (c_id) REFERENCES c (id) ON DELETE CASCADE ON UPDATE CASCADE)"
ROWS = (
    "INSERT INTO p VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'd')",
    "INSERT INTO c VALUES (10, 1, 0), (11, 2, 0), (12, 3, 0), (13, NULL, 0), (14, 4, 0)",
)
FUNCTION = "DETERMINISTIC MODIFIES SQL DATA"
BELOW_ROWS = "INSERT INTO e VALUES (100, 10), (101, 11), (102, 12), (103, 13), (104, 14)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corner:
    """Describes a combination of foreign keys. `tables` are created before the stream begins, and `changes` are executed in the stream.
    `stops` has, for each table that must stop, a part of the reason.
    """

    servers: tuple[str, ...] = ("mysql80", "mariadb114")
    tables: tuple[str, ...]
    changes: tuple[str, ...]
    stops: dict[str, str] = dataclasses.field(default_factory=dict)
    image: str = "FULL"
    policies: dict[str, ValuePolicy] = dataclasses.field(default_factory=dict)


TREE = (PARENT, CHILD.format("CASCADE"), BELOW)
NULLED = (PARENT, CHILD.format("SET NULL"), BELOW)
CORNERS = {
    "versioned tables": Corner(
        servers=MARIADB,
        tables=tuple(f"{text} WITH SYSTEM VERSIONING" for text in TREE),
        changes=(
            *ROWS,
            BELOW_ROWS,
            "UPDATE p SET id = 9 WHERE id = 2",
            "DELETE FROM p WHERE id = 1",
            "UPDATE c SET n = 3",
        ),
    ),
    "versioned tables, set null": Corner(
        servers=MARIADB,
        tables=tuple(f"{text} WITH SYSTEM VERSIONING" for text in NULLED),
        changes=(*ROWS, BELOW_ROWS, "DELETE FROM p WHERE id < 3", "UPDATE c SET n = 3", "DELETE FROM c WHERE id = 10"),
    ),
    "XA": Corner(
        tables=TREE,
        changes=(
            *(*ROWS, BELOW_ROWS, "XA START 'x'", "DELETE FROM p WHERE id = 1", "UPDATE p SET id = 20 WHERE id = 2"),
            *("INSERT INTO c VALUES (20, 20, 1)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"),
            *("XA START 'y'", "DELETE FROM p WHERE id = 3", "XA END 'y'", "XA PREPARE 'y'", "XA ROLLBACK 'y'"),
        ),
    ),
    "a temporary table of the parent's name": Corner(
        tables=TREE,
        changes=(
            *(*ROWS, BELOW_ROWS, "CREATE TEMPORARY TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (3)"),
            *("DELETE FROM p WHERE id = 1", "TRUNCATE p", "DROP TEMPORARY TABLE p", "DELETE FROM p WHERE id = 2"),
        ),
    ),
    "a child made by CREATE TABLE … SELECT": Corner(
        servers=MARIADB,
        tables=(PARENT,),
        changes=(
            ROWS[0],
            child("id int PRIMARY KEY, p_id int", "(p_id) REFERENCES p (id) ON DELETE CASCADE")
            + " SELECT id + 10 AS id, id AS p_id FROM p",
            "DELETE FROM p WHERE id = 1",
        ),
    ),
    "a key that may be NULL": Corner(
        tables=(
            PARENT,
            child(
                "id int PRIMARY KEY, code varchar(9)", "(code) REFERENCES p (code) ON DELETE CASCADE ON UPDATE CASCADE"
            ),
        ),
        changes=(
            *(
                ROWS[0],
                "INSERT INTO c VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'd')",
                "UPDATE p SET id = 7 WHERE id = 3",
            ),
            *("DELETE FROM p WHERE code IS NULL", "UPDATE p SET code = 'z' WHERE id = 1", "DELETE FROM p WHERE id = 2"),
            "UPDATE p SET id = 8 WHERE id = 4",
        ),
    ),
    "a generated column in the child's key": Corner(
        servers=("mysql80",),
        tables=(
            PARENT,
            child(
                "p_id int, n int, g int AS (n + 1) STORED, PRIMARY KEY (n, g)",
                "(p_id) REFERENCES p (id) ON DELETE CASCADE",
            ),
        ),
        changes=(ROWS[0], "INSERT INTO c (p_id, n) VALUES (1, 5), (2, 6), (NULL, 7)", "DELETE FROM p WHERE id < 3"),
    ),
    "a generated column that is a foreign key": Corner(
        tables=(
            PARENT,
            child("id int PRIMARY KEY, n int, g int AS (n + 1) STORED", "(g) REFERENCES p (id) ON DELETE CASCADE"),
        ),
        changes=(ROWS[0], "INSERT INTO c (id, n) VALUES (1, 0), (2, 1), (3, NULL)", "DELETE FROM p WHERE id = 2"),
    ),
    "a generated column that is referred to": Corner(
        tables=(
            "CREATE TABLE p (id int PRIMARY KEY, n int, g int AS (n + 1) STORED, UNIQUE (g))",
            child("id int PRIMARY KEY, g int", "(g) REFERENCES p (g) ON DELETE SET NULL ON UPDATE CASCADE"),
        ),
        changes=(
            *("INSERT INTO p (id, n) VALUES (1, 1), (2, 2), (3, 3)", "INSERT INTO c VALUES (1, 2), (2, 3), (3, 4)"),
            *("UPDATE p SET n = 8 WHERE id = 1", "DELETE FROM p WHERE id = 2"),
        ),
    ),
    "a generated column beside one that is set": Corner(
        tables=(
            PARENT,
            child(
                "id int PRIMARY KEY, p_id int, g int AS (id + 1) STORED", "(p_id) REFERENCES p (id) ON DELETE SET NULL"
            ),
        ),
        changes=(ROWS[0], "INSERT INTO c (id, p_id) VALUES (1, 1), (2, 2)", "DELETE FROM p WHERE id = 2"),
        stops={"c": "generated columns"},
    ),
    "a self-reference that is set to NULL": Corner(
        tables=(
            "CREATE TABLE s (id int PRIMARY KEY, up int, t int, FOREIGN KEY (up) REFERENCES s (id) ON DELETE SET NULL ON UPDATE SET NULL)",
        ),
        changes=(
            "INSERT INTO s VALUES (1, NULL, 1), (2, 1, 1), (3, 2, 1), (4, 4, 1), (5, 1, 1)",
            *("DELETE FROM s WHERE id = 4", "UPDATE s SET t = 2 WHERE id = 2", "DELETE FROM s WHERE id = 1"),
            *("UPDATE s SET t = 3", "DELETE FROM s ORDER BY id"),
            "INSERT INTO s VALUES (1, NULL, 1), (2, 1, 1)",
        ),
    ),
    "foreign_key_checks=0 for some of a transaction": Corner(
        tables=NULLED,
        changes=(
            *(*ROWS, BELOW_ROWS, "BEGIN", "DELETE FROM p WHERE id = 1", "SET foreign_key_checks = 0"),
            *("DELETE FROM p WHERE id = 2", "UPDATE c SET id = 50 WHERE id = 12", "SET foreign_key_checks = 1"),
            *("DELETE FROM p WHERE id = 3", "COMMIT", "UPDATE c SET id = 12 WHERE id = 14"),
        ),
    ),
    "statements of several tables": Corner(
        tables=TREE,
        changes=(
            *(*ROWS, BELOW_ROWS, "DELETE p, c FROM p JOIN c ON c.p_id = p.id WHERE p.id = 1"),
            "UPDATE c JOIN e ON e.c_id = c.id SET c.n = 5, c.id = c.id + 100 WHERE c.id = 11",
            "UPDATE p JOIN c ON c.p_id = p.id SET p.id = p.id + 100, c.n = c.n + 1 WHERE p.id < 4",
            "DELETE FROM p USING p JOIN c ON c.p_id = p.id WHERE c.n > 5",
        ),
    ),
    "triggers and procedures": Corner(
        tables=(
            *TREE,
            "CREATE TRIGGER t1 BEFORE DELETE ON p FOR EACH ROW UPDATE c SET n = n + 1 WHERE p_id = OLD.id",
            "CREATE TRIGGER t2 AFTER DELETE ON p FOR EACH ROW INSERT INTO c VALUES (OLD.id + 200, NULL, 1)",
            "CREATE TRIGGER t3 AFTER DELETE ON c FOR EACH ROW UPDATE p SET code = 'gone'",
            "CREATE PROCEDURE drops(IN i int) DELETE FROM p WHERE id = i",
            f"CREATE FUNCTION moves(i int) RETURNS int {FUNCTION} BEGIN UPDATE p SET id = id + 50 WHERE id = i; RETURN i; END",
        ),
        changes=(
            *(*ROWS, BELOW_ROWS, "DELETE FROM p WHERE id = 1", "CALL drops(2)", "SELECT moves(3)"),
            "INSERT INTO c SELECT 300, 53, moves(4)",
        ),
    ),
    "savepoints": Corner(
        tables=NULLED,
        changes=(
            *(*ROWS, BELOW_ROWS, "BEGIN", "DELETE FROM p WHERE id = 1", "SAVEPOINT s", "DELETE FROM p WHERE id = 2"),
            *("ROLLBACK TO s", "DELETE FROM p WHERE id = 3", "COMMIT"),
        ),
    ),
    "a parent key that is not unique": Corner(
        tables=(
            "CREATE TABLE p (id int PRIMARY KEY, k int, KEY (k))",
            child("id int PRIMARY KEY, k int", "(k) REFERENCES p (k) ON DELETE CASCADE"),
        ),
        changes=(
            *(
                "INSERT INTO p VALUES (1, 1), (2, 1), (3, 3), (4, 4)",
                "INSERT INTO c VALUES (1, 1), (2, 1), (3, 3), (4, 4)",
            ),
            *("DELETE FROM p WHERE id = 1", "DELETE FROM p WHERE id = 3"),
        ),
    ),
    "values that are equal by collation": Corner(
        tables=(
            PARENT,
            child("id int PRIMARY KEY, code varchar(9)", "(code) REFERENCES p (code) ON DELETE CASCADE"),
        ),
        changes=(ROWS[0], "INSERT INTO c VALUES (1, 'A'), (2, 'b')", "DELETE FROM p WHERE id = 1"),
        stops={"c": "collation decides whether"},
    ),
    "names in ANSI quotes": Corner(
        tables=(PARENT,),
        changes=(
            *(ROWS[0], "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"),
            'CREATE TABLE "c" ("id" int PRIMARY KEY, "p""id" int)',
            'ALTER TABLE "c" ADD CONSTRAINT "x\\" FOREIGN KEY ("p""id") REFERENCES "p" ("id") ON DELETE CASCADE',
            *("INSERT INTO c VALUES (1, 1), (2, 2)", "DELETE FROM p WHERE id = 1"),
        ),
    ),
    "a child that is emptied": Corner(
        tables=TREE[:2],
        changes=(
            *(*ROWS, "DELETE FROM p WHERE id = 1", "TRUNCATE c", "INSERT INTO c VALUES (50, 2, 0), (51, 3, 0)"),
            "DELETE FROM p WHERE id = 2",
        ),
    ),
    "a child that was altered": Corner(
        tables=NULLED[:2],
        changes=(*ROWS, "ALTER TABLE c ADD x int DEFAULT 5", "DELETE FROM p WHERE id = 2"),
        stops={"c": "altered the table in the same batch"},
    ),
    "a circle of tables": Corner(
        tables=(
            "CREATE TABLE a (id int PRIMARY KEY, b_id int)",
            "CREATE TABLE b (id int PRIMARY KEY, a_id int, FOREIGN KEY (a_id) REFERENCES a (id) ON DELETE CASCADE)",
            "ALTER TABLE a ADD FOREIGN KEY (b_id) REFERENCES b (id) ON DELETE CASCADE",
        ),
        changes=(
            *("INSERT INTO a VALUES (1, NULL), (2, NULL), (3, NULL)", "INSERT INTO b VALUES (1, 1), (2, 2), (3, NULL)"),
            *(
                "UPDATE a SET b_id = id WHERE id < 3",
                "UPDATE a SET b_id = 1 WHERE id = 2",
                "DELETE FROM a WHERE id = 1",
            ),
        ),
    ),
    "images with one column of a foreign key": Corner(
        image="MINIMAL",
        tables=(
            "CREATE TABLE k (a int, b int, PRIMARY KEY (a, b))",
            child(
                "id int PRIMARY KEY, x int, y int, n int",
                "(x, y) REFERENCES k (a, b) ON DELETE SET NULL ON UPDATE CASCADE",
            ),
        ),
        changes=(
            *(
                "INSERT INTO k VALUES (1, 1), (2, 1), (3, 1)",
                "INSERT INTO c VALUES (1, 1, 1, 1), (2, 1, 1, 1), (3, 3, 1, 1)",
            ),
            *("UPDATE c SET x = 2 WHERE id = 1", "UPDATE c SET n = 2 WHERE id = 3", "DELETE FROM k WHERE a = 2"),
            *("UPDATE k SET b = 5 WHERE a = 3", "UPDATE c SET n = 3"),
        ),
    ),
    "a child's key that changes in images without all columns": Corner(
        image="MINIMAL",
        tables=NULLED[:2],
        changes=(*ROWS, "UPDATE c SET id = 50 WHERE id = 10", "DELETE FROM p WHERE id = 1"),
        stops={"c": "changed keys"},
    ),
    "images without the unique key that is referred to": Corner(
        image="MINIMAL",
        tables=(
            "CREATE TABLE p (id int PRIMARY KEY, code varchar(9) NOT NULL, note int, UNIQUE (code))",
            child(
                "id int PRIMARY KEY, code varchar(9)", "(code) REFERENCES p (code) ON DELETE CASCADE ON UPDATE CASCADE"
            ),
        ),
        changes=(
            *("INSERT INTO p VALUES (1, 'a', 1), (2, 'b', 1)", "INSERT INTO c VALUES (1, 'a'), (2, 'b')"),
            *("UPDATE p SET note = 2", "UPDATE p SET id = 5 WHERE id = 1"),
        ),
    ),
    "a row whose image lacks the unique key that is referred to": Corner(
        image="MINIMAL",
        tables=(
            "CREATE TABLE p (id int PRIMARY KEY, code varchar(9) NOT NULL, UNIQUE (code))",
            child("id int PRIMARY KEY, code varchar(9)", "(code) REFERENCES p (code) ON DELETE CASCADE"),
        ),
        changes=(
            "INSERT INTO p VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO c VALUES (1, 'a'), (2, 'b')",
            "DELETE FROM p WHERE id = 1",
        ),
        stops={"c": "IMAGE_NOT_FULL"},
    ),
    "two ways to one row": Corner(
        tables=(
            "CREATE TABLE g (id int PRIMARY KEY)",
            "CREATE TABLE p (id int PRIMARY KEY, g_id int, FOREIGN KEY (g_id) REFERENCES g (id) ON DELETE CASCADE)",
            child("id int PRIMARY KEY, p_id int, g_id int", "(p_id) REFERENCES p (id) ON DELETE SET NULL"),
            "ALTER TABLE c ADD FOREIGN KEY (g_id) REFERENCES g (id) ON DELETE CASCADE",
        ),
        changes=(
            *("INSERT INTO g VALUES (1), (2)", "INSERT INTO p VALUES (1, 1), (2, 2)"),
            *("INSERT INTO c VALUES (1, 1, 1), (2, 1, 2), (3, 2, 1)", "DELETE FROM g WHERE id = 1"),
        ),
    ),
}
DATED = (
    "CREATE TABLE p (d date PRIMARY KEY)",
    child("id int PRIMARY KEY, d date", "(d) REFERENCES p (d) ON DELETE SET NULL ON UPDATE CASCADE"),
)
DATES = (
    "INSERT INTO p VALUES ('2024-01-01'), ('2024-02-02')",
    "INSERT INTO c VALUES (1, '2024-01-01'), (2, '2024-02-02')",
)
TEXT = ValuePolicy(zero_dates="text")
CORNERS |= {
    "dates that are text in a child": Corner(
        tables=DATED,
        changes=(*DATES, "DELETE FROM p WHERE d = '2024-01-01'"),
        policies={"c": TEXT},
        stops={"c": "are text in the lake"},
    ),
    "dates that are text in the parent": Corner(
        tables=DATED, changes=(*DATES, "DELETE FROM p WHERE d = '2024-01-01'"), policies={"p": TEXT}
    ),
    "labels in another order": Corner(
        tables=(
            "CREATE TABLE p (k enum('a', 'b') PRIMARY KEY)",
            child("id int PRIMARY KEY, k enum('b', 'a')", "(k) REFERENCES p (k) ON DELETE SET NULL"),
        ),
        changes=("INSERT INTO p VALUES ('a')", "INSERT INTO c VALUES (1, 'b')", "DELETE FROM p"),
        stops={"c": "compares the numbers"},
    ),
    "dates that are text in a child of other columns": Corner(
        tables=TREE[:2], changes=(*ROWS, "DELETE FROM p WHERE id = 1"), policies={"c": TEXT}
    ),
    "dates that are text on the way": Corner(
        tables=(
            "CREATE TABLE p (id int PRIMARY KEY)",
            child("d date PRIMARY KEY, p_id int", "(p_id) REFERENCES p (id) ON DELETE CASCADE"),
            "CREATE TABLE e (id int PRIMARY KEY, d date, FOREIGN KEY (d) REFERENCES c (d) ON DELETE CASCADE)",
        ),
        changes=(
            *("INSERT INTO p VALUES (1), (2)", "INSERT INTO c VALUES ('2024-01-01', 1), ('2024-02-02', 2)"),
            *("INSERT INTO e VALUES (1, '2024-01-01'), (2, '2024-02-02')", "DELETE FROM p WHERE id = 1"),
        ),
        policies={"c": TEXT},
        stops={"e": "are text in the lake"},
    ),
    "a zero date that others point at": Corner(
        tables=DATED,
        changes=(
            *("SET sql_mode = ''", "INSERT INTO p VALUES ('0000-00-00')", "INSERT INTO c VALUES (1, '0000-00-00')"),
            "UPDATE p SET d = '2024-01-01'",
        ),
        policies={"p": TEXT},
        stops={"c": "is not a valid date"},
    ),
    "a varchar with blanks into a char": Corner(
        tables=(
            "CREATE TABLE p (k varchar(9) CHARACTER SET latin1 PRIMARY KEY)",
            child("id int PRIMARY KEY, k char(9) CHARACTER SET latin1", "(k) REFERENCES p (k) ON UPDATE CASCADE"),
        ),
        changes=("INSERT INTO p VALUES ('a')", "INSERT INTO c VALUES (1, 'a')", "UPDATE p SET k = 'b  '"),
        stops={"c": "treat trailing blanks differently"},
    ),
    "a char into a varchar": Corner(
        tables=(
            "CREATE TABLE p (k char(9) CHARACTER SET latin1 PRIMARY KEY)",
            child("id int PRIMARY KEY, k varchar(12) CHARACTER SET latin1", "(k) REFERENCES p (k) ON UPDATE CASCADE"),
        ),
        changes=("INSERT INTO p VALUES ('a')", "INSERT INTO c VALUES (1, 'a')", "UPDATE p SET k = 'b'"),
        stops={"c": "treat trailing blanks differently"},
    ),
    "a char into a longer one": Corner(
        tables=(
            "CREATE TABLE p (k char(3) PRIMARY KEY)",
            child("id int PRIMARY KEY, k char(9)", "(k) REFERENCES p (k) ON UPDATE CASCADE"),
        ),
        changes=("INSERT INTO p VALUES ('a')", "INSERT INTO c VALUES (1, 'a')", "UPDATE p SET k = 'b'"),
    ),
    "fractions of other lengths": Corner(
        tables=(
            "CREATE TABLE p (k datetime(3) PRIMARY KEY)",
            child("id int PRIMARY KEY, k datetime(4)", "(k) REFERENCES p (k) ON UPDATE CASCADE ON DELETE SET NULL"),
        ),
        changes=(
            *(
                "INSERT INTO p VALUES ('2024-01-01 00:00:00.125'), ('2024-01-02')",
                "INSERT INTO c VALUES (1, '2024-01-01 00:00:00.125'), (2, '2024-01-02')",
            ),
            *(
                "UPDATE p SET k = '2024-01-03 00:00:00.5' WHERE k = '2024-01-02'",
                "DELETE FROM p WHERE k < '2024-01-02'",
            ),
        ),
    ),
}
CASES = [(name, server) for name, corner in CORNERS.items() for server in corner.servers]


def rows_of(server: DatabaseServer, table: str) -> Counter[Any]:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return Counter(cursor.fetchall())


def carried(pipeline: Pipeline, folder: Path, **options: Any) -> tuple[dict[str, StagedTable], dict[str, str]]:
    """Returns the tables of the batch with the changes by foreign keys, and for each stopped table its reason."""
    staged = pipeline.staged(**options)
    batch = read_staged_batch(staged.path)
    session: Any = None
    targets = {table.name: TableTarget(path=str(folder / "none" / table.name)) for table in batch.tables}
    found, refused = carried_out(session, batch, targets, {})
    stops = {each.table: f"{each.state}: {each.reason}" for each in staged.stopped}
    stops |= {name.split(".")[1]: f"{error.state}: {error.reason}" for name, error in refused.items()}
    return {table.table: table for table in found.tables}, stops


def assert_followed(
    corner: Corner, source: DatabaseServer, tmp_path: Path, review: SchemaDecisions | None = None
) -> None:
    """Requires that each table equals SELECT, or stops with the reason that the corner names."""
    run(source, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    run(source, *corner.tables, database=DATABASE)
    pipeline = Pipeline.of(source, DATABASE, tmp_path)
    pipeline.review = review
    run(source, f"SET binlog_row_image = {corner.image}", *corner.changes, database=DATABASE)
    policies = {f"{DATABASE}.{table}": policy for table, policy in corner.policies.items()}
    tables, stops = carried(pipeline, tmp_path, policies=policies)
    assert stops.keys() == corner.stops.keys(), stops
    for table, part in corner.stops.items():
        assert part in stops[table]
    for table in tables.keys() - stops.keys():
        key = next((each.key for each in tables[table].changes), ())
        found, expected = folded(tables[table], key), rows_of(source, table)
        if corner.policies:  # Dates may be text in the lake.
            found, expected = (
                Counter({tuple(map(str, row)): n for row, n in each.items()}) for each in (found, expected)
            )
        assert found == expected, table


@pytest.mark.parametrize(("name", "server"), CASES, ids=[f"{server}: {name}" for name, server in CASES])
def test_cascades_in_odd_company_are_followed_or_stop_by_name(
    name: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert_followed(CORNERS[name], request.getfixturevalue(server), tmp_path)
