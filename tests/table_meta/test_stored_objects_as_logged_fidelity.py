"""Tests statements as servers log them in MIXED: views with their security, statements of temporary tables, and functions that only one
kind of server has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import StatementSession
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.ddl.lexer import tokens
from sluice.cdc_engine.table_meta.ddl.reader import ORACLE
from sluice.cdc_engine.table_meta.ddl.routine_call import CallRules, calls_routine
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, TableSchema
from tests.table_meta.history.test_statement_format_fidelity import ALL, TABLES, at, stopped

pytestmark = pytest.mark.managed

OF_TEMPORARY = StatementSession(thread_specific=True)
SECURITY = "ALGORITHM=UNDEFINED DEFINER=`root`@`localhost` SQL SECURITY DEFINER"
INSERT = "INSERT INTO items VALUES (1)"


def begun(folder: Path, flavour: str = "mysql", objects: StoredObjects | None = StoredObjects()) -> TableHistory:  # noqa: B008
    made = TableHistory(folder / "schema.jsonl", lambda base, name: base in {"shop", "depot"} and "skip" not in name)
    facts = DdlServerFacts(flavour=flavour, charset="utf8mb4")
    made.seed(SchemaSnapshot(facts, (), TABLES, stored_objects=objects), at(1))
    return made


@pytest.mark.parametrize(
    ("definition", "change", "tables"),
    [
        (f"CREATE {SECURITY} VIEW elsewhere.v AS SELECT id FROM bins", "UPDATE elsewhere.v SET id = 1", {"bins"}),
        (f"CREATE OR REPLACE {SECURITY} VIEW elsewhere.v (a) AS SELECT id FROM bins", INSERT, {"items"}),
        (f"ALTER {SECURITY} VIEW elsewhere.v AS SELECT id FROM bins", "DELETE FROM elsewhere.v", {"bins"}),
        # Earlier, `event` in the query was taken for the kind of the created object, and the view was not followed.
        (
            f"CREATE {SECURITY} VIEW elsewhere.v AS SELECT id FROM bins, event",
            "UPDATE elsewhere.v SET id = 1",
            {"bins"},
        ),
        ("CREATE SQL SECURITY INVOKER VIEW elsewhere.v AS SELECT id FROM bins", "DELETE FROM elsewhere.v", {"bins"}),
        # The next two statements name the changed view at a position where no table is expected.
        (
            f"CREATE {SECURITY} VIEW elsewhere.v AS SELECT id FROM depot.bins",
            "WITH x AS (SELECT 1) UPDATE elsewhere.v SET id = 1",
            {"bins"},
        ),
        (
            f"CREATE {SECURITY} VIEW elsewhere.v AS SELECT id FROM depot.bins",
            "UPDATE { OJ elsewhere.v LEFT JOIN elsewhere.w ON 1 } SET v.id = 1",
            {"bins"},
        ),
        # A view can be in one of the server's own databases.
        (
            f"CREATE {SECURITY} VIEW mysql.v AS SELECT id FROM depot.bins",
            "UPDATE mysql.v SET id = 1",
            {"bins"},
        ),
    ],
)
def test_a_view_is_followed_as_servers_log_it_fidelity(
    tmp_path: Path, definition: str, change: str, tables: set[str]
) -> None:
    history = begun(tmp_path)
    assert history.apply(definition, "elsewhere", at(2)) == ()
    assert history.knows_objects(at(2))
    default = "shop" if change == INSERT else "elsewhere"
    assert stopped(history.apply(change, default, at(3))) == tables


@pytest.mark.parametrize(
    ("flavour", "statement", "tables"),
    [
        # MySQL has no sequences, so `nextval` is a stored function there.
        ("mysql", "INSERT INTO items VALUES (nextval('orders'))", ALL),
        ("mariadb", "INSERT INTO items VALUES (nextval(orders_sequence))", {"items"}),
        ("mysql", "INSERT INTO items VALUES (nvl(1, 2))", ALL),
        ("mariadb", "INSERT INTO items VALUES (uuid_to_bin('a'))", ALL),
        ("mysql", "INSERT INTO items VALUES (uuid_to_bin('a'))", {"items"}),
        # MariaDB executes it, and logs the SELECT
        ("mariadb", "CREATE TEMPORARY TABLE x SELECT f(1) AS a", ALL),
        ("mariadb", "CREATE TEMPORARY TABLE x (a INT, KEY (a)) SELECT id FROM orders", set()),
        ("mariadb", "CREATE TEMPORARY TABLE x (a INT, PRIMARY KEY (a), CHECK (f(a)))", set()),
    ],
)
def test_a_function_of_the_other_server_is_a_stored_one_fidelity(
    tmp_path: Path, flavour: str, statement: str, tables: set[str]
) -> None:
    assert stopped(begun(tmp_path, flavour).apply(statement, "shop", at(2))) == tables


def test_a_trigger_in_oracle_mode_may_call_without_a_sign_of_it_fidelity(tmp_path: Path) -> None:
    history = begun(tmp_path, "mariadb")
    trigger = "CREATE TRIGGER t AFTER INSERT ON items FOR EACH ROW BEGIN p; END"
    history.apply(trigger, "shop", at(2), StatementSession(sql_mode=ORACLE))
    assert stopped(history.apply(INSERT, "shop", at(3))) == ALL


@pytest.mark.parametrize("objects", [StoredObjects(), None])
@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("ALTER TABLE items MODIFY id BIGINT", {"items"}),
        ("ALTER TABLE items RENAME TO orders_2", {"items"}),
        ("RENAME TABLE items TO items_2, orders TO orders_2", {"items", "orders"}),
        ("TRUNCATE items", {"items"}),
        ("ALTER TABLE temporary ADD a INT", set()),
        ("RENAME TABLE temporary TO temporary_2", set()),
        ("TRUNCATE temporary", set()),
        ("CREATE TABLE items_2 LIKE items", {"items_2"}),
    ],
)
def test_a_statement_of_a_temporary_table_is_not_followed_fidelity(
    tmp_path: Path, objects: StoredObjects | None, statement: str, tables: set[str]
) -> None:
    """MySQL 5.7 and MariaDB log such a statement with the table's own name, and a captured table may have this name."""
    history = begun(tmp_path, objects=objects)
    changes = history.apply(statement, "shop", at(2), OF_TEMPORARY)
    assert stopped(changes) == tables
    for name in tables & {"items", "orders"}:
        state = history.state("shop", name, at(2))
        assert getattr(state, "schema", None) == next(each for each in TABLES if each.table == name)


@pytest.mark.parametrize(("session", "tables"), [(StatementSession(), {"unknown"}), (OF_TEMPORARY, set())])
def test_a_captured_table_without_a_schema_stops_too_fidelity(
    tmp_path: Path, session: StatementSession, tables: set[str]
) -> None:
    """The history has no schema of a table that was altered after the stream's start. The next table map would make the table known, but
    the row of this statement would be missing.
    """
    assert stopped(begun(tmp_path).apply("INSERT INTO unknown VALUES (1)", "shop", at(2), session)) == tables


def test_a_renamed_view_stops_no_table_of_its_new_name_fidelity(tmp_path: Path) -> None:
    history = begun(tmp_path)
    history.apply(f"CREATE {SECURITY} VIEW v AS SELECT id FROM items", "shop", at(2))
    assert history.apply("RENAME TABLE v TO w", "shop", at(3)) == ()
    assert history.state("shop", "w", at(3)) is None
    assert stopped(history.apply("DELETE FROM w", "shop", at(4))) == {"items"}


def test_a_view_and_a_table_exchange_names_fidelity(tmp_path: Path) -> None:
    history = begun(tmp_path)
    history.apply(f"CREATE {SECURITY} VIEW v AS SELECT id FROM orders", "shop", at(2))
    history.apply("RENAME TABLE v TO w, items TO v", "shop", at(3))
    assert isinstance(history.state("shop", "v", at(3)), TableSchema)
    assert stopped(history.apply("DELETE FROM w", "shop", at(4))) == {"orders", "lines", "notes"}


def test_every_name_of_one_server_alone_is_a_call_on_the_other_fidelity() -> None:
    assert calls_routine(tokens("SELECT nextval(a)"), CallRules(flavour="mysql"))
    assert not calls_routine(tokens("SELECT nextval(a)"), CallRules(flavour="mariadb"))
