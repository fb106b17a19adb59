"""Tests that a change in statement format also stops the tables that triggers and views change. The history knows the triggers and views
of each position.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import StatementSession
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObject, StoredObjects
from sluice.cdc_engine.table_meta.ddl.stored_object import TRIGGER, VIEW
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts
from tests.table_meta.history.test_statement_format_fidelity import ALL, TABLES, at, stopped

pytestmark = pytest.mark.managed

FACTS = DdlServerFacts(flavour="mysql", charset="utf8mb4")
CAPTURED = {"shop", "depot"}


def begun(folder: Path, objects: StoredObjects | None) -> TableHistory:
    made = TableHistory(folder / "schema.jsonl", lambda base, name: base in CAPTURED and not name.startswith("skip_"))
    made.seed(SchemaSnapshot(FACTS, (), TABLES, stored_objects=objects), at(1))
    return made


@pytest.fixture
def history(tmp_path: Path) -> TableHistory:
    return begun(tmp_path, StoredObjects())


def trigger(on: str, *words: str, calls: bool = False) -> StoredObject:
    return StoredObject(
        what=TRIGGER, database="shop", name=f"on_{on}", table=("shop", on), words=frozenset(words), calls=calls
    )


def changed_by(history: TableHistory, *statements: str, database: str = "shop") -> set[str]:
    """Returns the tables that the last statement stops. The statements before it must change no row."""
    *before, last = statements
    for number, statement in enumerate(before):
        assert history.apply(statement, database, at(2 + number)) == (), statement
    return stopped(history.apply(last, database, at(90)))


INSERT = "INSERT INTO items VALUES (1)"


@pytest.mark.parametrize(
    ("before", "statement", "tables"),
    [
        ((), INSERT, {"items"}),
        (("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW SET NEW.id = now()",), INSERT, {"items"}),
        (
            ("CREATE DEFINER=`a`@`%` TRIGGER t AFTER INSERT ON items FOR EACH ROW INSERT INTO bins (id) VALUES (1)",),
            INSERT,
            {"items", "bins"},
        ),
        (
            (
                "CREATE TRIGGER a AFTER INSERT ON items FOR EACH ROW INSERT INTO skip_me (id) VALUES (1)",
                "CREATE TRIGGER b AFTER INSERT ON skip_me FOR EACH ROW BEGIN DELETE FROM depot.bins; END",
            ),
            INSERT,
            {"items", "bins"},
        ),
        # The foreign keys of the table that the trigger changes are followed too.
        (
            ("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW DELETE FROM orders",),
            INSERT,
            {"items", "orders", "lines", "notes"},
        ),
        (("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW CALL p(1)",), INSERT, ALL),
        (("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW SET @a = f(1)",), INSERT, ALL),
        (("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW SET @a = now (1)",), INSERT, ALL),
        (
            (
                "CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW INSERT INTO bins VALUES (1)",
                "DROP TRIGGER IF EXISTS shop.t",
            ),
            INSERT,
            {"items"},
        ),
        # A trigger's table is renamed after the trigger was created.
        (
            (
                "CREATE TRIGGER t AFTER INSERT ON skip_me FOR EACH ROW INSERT INTO bins VALUES (1)",
                "RENAME TABLE skip_me TO skip_that",
            ),
            "INSERT INTO skip_that VALUES (1)",
            {"bins"},
        ),
        (
            (
                "CREATE TRIGGER t AFTER INSERT ON skip_me FOR EACH ROW INSERT INTO bins VALUES (1)",
                "ALTER TABLE skip_me RENAME TO skip_that",
            ),
            "INSERT INTO skip_that VALUES (1)",
            {"bins"},
        ),
        (("CREATE VIEW elsewhere.v (x) AS SELECT id FROM depot.bins",), "UPDATE elsewhere.v SET x = 1", {"bins"}),
        (
            ("CREATE VIEW v AS SELECT id FROM bins", "CREATE ALGORITHM=MERGE VIEW w AS SELECT * FROM v"),
            "DELETE FROM w",
            {"bins"},
        ),
        (
            ("CREATE VIEW elsewhere.v AS SELECT id FROM bins", "RENAME TABLE elsewhere.v TO elsewhere.w"),
            "DELETE FROM elsewhere.w",
            {"bins"},
        ),
        (
            ("CREATE VIEW elsewhere.v AS SELECT id FROM bins", "DROP VIEW IF EXISTS u, elsewhere.v"),
            "DELETE FROM elsewhere.v",
            set(),
        ),
        (("CREATE VIEW v AS SELECT 1", "ALTER VIEW v AS SELECT id FROM bins"), "DELETE FROM v", {"bins"}),
        # A view that is only read may call a function that writes.
        (("CREATE VIEW v AS SELECT f(1) AS a",), "INSERT INTO items SELECT a FROM v", ALL),
        (("CREATE VIEW v AS SELECT f(1) AS a",), "CREATE TABLE skip_that SELECT a FROM v", ALL),
        (("CREATE VIEW v AS SELECT id FROM bins",), "INSERT INTO items SELECT id FROM v", {"items"}),
        (("CREATE TRIGGER t AFTER INSERT ON",), INSERT, ALL),  # The table of the trigger cannot be read.
        ((), "INSERT INTO elsewhere.temporary_one VALUES (1)", set()),
        ((), "CREATE TABLE skip_that SELECT f(1)", ALL),
        ((), "INSERT INTO mysql.rds_heartbeat2 VALUES (1)", set()),
    ],
)
def test_what_a_change_reaches_fidelity(
    history: TableHistory, before: tuple[str, ...], statement: str, tables: set[str]
) -> None:
    assert changed_by(history, *before, statement) == tables


def test_the_stop_names_the_trigger_fidelity(history: TableHistory) -> None:
    history.apply("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW DELETE FROM bins", "shop", at(2))
    reasons = {change.table: change.reason for change in history.apply(INSERT, "shop", at(3))}
    assert "trigger shop.t may have written to this table" in reasons["bins"]


def test_triggers_that_were_there_before_count_and_survive_a_restart_fidelity(tmp_path: Path) -> None:
    begun(tmp_path, StoredObjects(objects=(trigger("items", "insert", "into", "bins"),)))
    again = TableHistory(tmp_path / "schema.jsonl", lambda base, _: base in CAPTURED)
    assert again.knows_objects(at(1))
    assert changed_by(again, INSERT) == {"items", "bins"}


def test_a_stream_that_goes_back_forgets_later_triggers_fidelity(history: TableHistory) -> None:
    history.apply("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW DELETE FROM bins", "shop", at(5))
    history.rewind(at(4))
    assert changed_by(history, INSERT) == {"items"}


def test_compaction_keeps_a_trigger_of_a_tables_name_fidelity(tmp_path: Path) -> None:
    made = begun(tmp_path, StoredObjects())
    made.apply("CREATE TRIGGER items AFTER INSERT ON items FOR EACH ROW DELETE FROM bins", "shop", at(5))
    made.apply("ALTER TABLE items ADD note int", "shop", at(6))
    made.apply("CREATE VIEW items AS SELECT 1", "depot", at(7))
    made.compact([at(8)])
    again = TableHistory(tmp_path / "schema.jsonl", lambda base, _: base in CAPTURED)
    assert changed_by(again, INSERT) == {"items", "bins"}


def test_objects_that_are_not_all_known_stop_every_table_fidelity(tmp_path: Path) -> None:
    made = begun(tmp_path, StoredObjects(complete=False))
    assert not made.knows_objects(at(1))
    assert stopped(made.apply("INSERT INTO mysql.rds_heartbeat2 VALUES (1)", "shop", at(2))) == set()
    assert changed_by(made, INSERT) == ALL


UNKNOWN = (("shop", "early"), ("shop", "skip_early"), ("elsewhere", "early"))


@pytest.mark.parametrize(
    ("before", "statement", "tables"),
    [
        ((), "SELECT f(1)", {*ALL, "early"}),
        ((), "INSERT INTO items VALUES (f(1))", {*ALL, "early"}),
        ((), "INSERT INTO early VALUES (1)", {"early"}),
        (("CREATE VIEW elsewhere.v AS SELECT id FROM early",), "DELETE FROM elsewhere.v", {"early"}),
        # Sluice does not know the foreign keys of `early`, so a change of `items` also stops `early`, which may be its child.
        ((), INSERT, {"items", "early"}),
        ((), "INSERT INTO elsewhere.temporary_one VALUES (1)", set()),
        ((), "INSERT INTO mysql.rds_heartbeat2 VALUES (1)", set()),
        # After CREATE TABLE, the schema of `early` is known, so `early` is treated like the other tables.
        (("CREATE TABLE early (id int)",), INSERT, {"items"}),
        (("CREATE TABLE early (id int)",), "SELECT f(1)", {*ALL, "early"}),
        (("CREATE OR REPLACE TABLE early (id int)",), INSERT, {"items"}),
        (("DROP TABLE IF EXISTS early", "CREATE TABLE IF NOT EXISTS early (id int)"), INSERT, {"items"}),
        (("RENAME TABLE early TO skip_old", "CREATE TABLE IF NOT EXISTS early (id int)"), INSERT, {"items"}),
        # It is unknown whether this statement creates the table.
        (("CREATE TABLE IF NOT EXISTS early (id int)",), INSERT, {"items", "early"}),
    ],
)
def test_a_table_of_unknown_schema_stops_too_fidelity(
    tmp_path: Path, before: tuple[str, ...], statement: str, tables: set[str]
) -> None:
    """The stream begins in the past, and a later statement has changed or created the table. So the server does not have the schema of
    that time.
    """
    made = TableHistory(tmp_path / "schema.jsonl", lambda base, name: base in CAPTURED and not name.startswith("skip_"))
    made.seed(SchemaSnapshot(FACTS, (), TABLES, stored_objects=StoredObjects(), unknown_tables=UNKNOWN), at(1))
    made.compact([at(1)])
    again = TableHistory(tmp_path / "schema.jsonl", lambda base, name: base in CAPTURED and "skip_" not in name)
    for number, each in enumerate(before):
        again.apply(each, "shop", at(2 + number))
    assert stopped(again.apply(statement, "shop", at(90))) == tables


def test_a_table_of_unknown_schema_stops_without_triggers_and_views_too_fidelity(tmp_path: Path) -> None:
    made = TableHistory(tmp_path / "schema.jsonl", lambda base, _: base in CAPTURED)
    made.seed(SchemaSnapshot(FACTS, (), TABLES, unknown_tables=UNKNOWN), at(1))
    changes = made.apply("SELECT f(1)", "shop", at(2))
    assert stopped(changes) >= {"early", "skip_early"}
    assert made.apply("SELECT f(1)", "shop", at(3)) == ()


def test_a_truncate_that_may_mean_a_temporary_table_stops_a_table_of_unknown_schema_fidelity(tmp_path: Path) -> None:
    made = TableHistory(tmp_path / "schema.jsonl", lambda base, _: base in CAPTURED)
    made.seed(SchemaSnapshot(FACTS, (), TABLES, stored_objects=StoredObjects(), unknown_tables=UNKNOWN), at(1))
    session = StatementSession(thread_specific=True)
    assert stopped(made.apply("TRUNCATE TABLE early", "shop", at(2), session)) == {"early"}
    assert made.apply("TRUNCATE TABLE temporary_one", "shop", at(3), session) == ()


def test_a_table_that_is_created_later_is_not_one_of_unknown_schema_fidelity(history: TableHistory) -> None:
    """The stream is read again from a position before CREATE TABLE. The statement there does not stop the table, which is created later."""
    history.apply("CREATE TABLE late (id int)", "shop", at(5))
    assert stopped(history.apply("SELECT f(1)", "shop", at(3))) == ALL


def test_a_history_that_follows_none_gets_them_later_fidelity(tmp_path: Path) -> None:
    made = begun(tmp_path, None)
    made.apply("CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW DELETE FROM bins", "shop", at(2))
    assert not made.knows_objects(at(3))
    made.note_objects(StoredObjects(objects=(trigger("items", "bins"),)), at(3))
    assert changed_by(made, INSERT) == {"items", "bins"}


def test_a_new_seed_forgets_what_the_server_has_no_more_fidelity(tmp_path: Path) -> None:
    view = StoredObject(what=VIEW, database="shop", name="v", table=("shop", "v"), words=frozenset({"bins"}))
    made = begun(tmp_path, StoredObjects(objects=(trigger("items", "bins"), view)))
    made.seed(SchemaSnapshot(FACTS, (), TABLES, stored_objects=StoredObjects(objects=(view,))), at(3))
    assert changed_by(made, INSERT) == {"items"}
    made.seed(SchemaSnapshot(FACTS, (), TABLES), at(100))
    assert not made.knows_objects(at(100))
