"""Tests RENAME TABLE. The rows of a captured table move to its new name. The rows of a schema change tool's copy also move if Sluice has
followed all rows of the copy. Other tables stop.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.policy import PLANS, SchemaDecisions
from sluice.cdc_engine.table_meta.change.renaming import moved
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, ForeignKey, Stopped, TableSchema

UUID = "6ace8bcef73211ea87e9f875a4d24e90"
UUID_APART = "6ace8bce_f732_11ea_87e9_f875a4d24e90"
LONG = "a_table_with_a_name_that_leaves_no_room_for_what_a_tool_appends"

# Policies that apply every alteration, keep dropped columns, and hold DROP TABLE.
REVIEW = SchemaDecisions(
    policy=lambda *_: {kind: {"drop": "keep", "drop_table": "hold"}.get(kind, "apply") for kind in PLANS}
)
# The default policies of conf/.
DEFAULT = SchemaDecisions(policy=lambda *_: dict.fromkeys(PLANS, "apply") | {"drop": "keep", "drop_table": "ignore"})


def table(name: str) -> TableSchema:
    columns = (
        DeclaredColumn(name="id", type="int", nullable=False),
        DeclaredColumn(name="v", type="varchar(9)", charset="utf8mb4"),
    )
    return TableSchema(database="shop", table=name, charset="utf8mb4", columns=columns, key=("id",))


def at(offset: int) -> Position:
    return Position(epoch=1, file="mysql-bin.000007", offset=offset * 16)


@pytest.fixture(params=["only the table is captured", "all tables are captured"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> TableHistory:
    everything = request.param.startswith("all")
    made = TableHistory(
        tmp_path / "schema.jsonl", lambda _, name: everything or name in {"orders", "items", LONG}, REVIEW
    )
    facts = DdlServerFacts(flavour="mysql", charset="utf8mb4")
    made.seed(
        SchemaSnapshot(facts, (("shop", "utf8mb4"),), (*map(table, ("orders", "items", LONG, "everything")),)), at(100)
    )
    return made


def swapped(history: TableHistory, name: str, copy: str, old: str) -> tuple[TableChange, ...]:
    """Creates and alters the copy of a schema change tool, swaps it with the table, and returns the changes that the swap causes."""
    history.apply(f"CREATE TABLE {copy} LIKE {name}", "shop", at(200))
    history.apply(f"ALTER TABLE {copy} ADD added varchar(3) NOT NULL DEFAULT 'x' AFTER id", "shop", at(210))
    history.apply(f"ALTER TABLE {copy} MODIFY id bigint", "shop", at(220))
    return history.apply(f"RENAME TABLE {name} TO {old}, {copy} TO {name}", "shop", at(300))


@pytest.mark.found
@pytest.mark.parametrize(
    ("name", "copy", "old"),
    [
        ("orders", "_orders_gho", "_orders_del"),
        ("orders", "_orders_gho", "_orders_20260101120000_del"),
        ("orders", "_orders_new", "_orders_old"),
        ("orders", "___orders_new", "___orders_old"),
        (LONG, f"_{LONG[:59]}_gho", f"_{LONG[:59]}_del"),
        ("orders", f"_vt_vrp_{UUID}_20260101120000_", f"_vt_hld_{UUID}_20260102120000_"),
        ("orders", f"_{UUID_APART}_20260101120000_vrepl", f"_vt_HOLD_{UUID}_20260102120000"),
    ],
)
def test_ddl_the_rows_of_a_tools_copy_are_moved_or_the_table_is_read_again(
    history: TableHistory, name: str, copy: str, old: str
) -> None:
    """Defect 26: after the rename, the lake still had the rows of the old table, whatever rows the copy had."""
    (change,) = swapped(history, name, copy, old)
    state = history.state("shop", name, at(300))
    if captures_all(history):
        assert (change.kind, change.table, change.renamed_from) == (TableChangeKind.SCHEMA, name, f"shop.{copy}")
        assert change.schema is not None
        assert [column.name for column in change.schema.columns] == ["id", "added", "v"]
    else:
        assert (change.kind, change.table, change.state) == (TableChangeKind.STOPPED, name, "DDL_UNSUPPORTED")
        assert f"the copy shop.{copy}" in change.reason
        assert isinstance(state, Stopped)
        assert state.schema is not None
        assert [column.name for column in state.schema.columns] == ["id", "added", "v"]
    assert history.apply(f"DROP TABLE IF EXISTS {old}", "shop", at(400)) == ()
    later = history.apply(f"ALTER TABLE {name} ADD more int", "shop", at(500))
    assert [each.table for each in later] == ([name] if captures_all(history) else [])


def captures_all(history: TableHistory) -> bool:
    return "everything" in {each.table for each in history.versions(at(150))}


@pytest.mark.found
@pytest.mark.parametrize(
    "swap", ["RENAME TABLE orders TO _orders_del, _orders_gho TO orders", "ALTER TABLE _orders_gho RENAME orders"]
)
def test_ddl_the_rows_of_a_copy_that_existed_before_the_stream_are_not_moved(tmp_path: Path, swap: str) -> None:
    """Test for defect 26: the lake lacks the rows that a copy had before the stream began. So the rows of the copy are not moved, although
    the copy is captured now.
    """
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, DEFAULT)
    facts = DdlServerFacts(flavour="mysql", charset="utf8mb4")
    history.seed(SchemaSnapshot(facts, (), (table("orders"), table("_orders_gho"))), at(100))
    history.apply("ALTER TABLE _orders_gho ADD added int", "shop", at(200))
    if swap.startswith("ALTER"):
        history.apply("RENAME TABLE orders TO _orders_del", "shop", at(250))
    (change,) = history.apply(swap, "shop", at(300))
    assert (change.table, change.kind, change.renamed_from) == ("orders", TableChangeKind.STOPPED, "shop._orders_gho")
    assert "did not follow every row of the copy" in change.reason


@pytest.mark.found
def test_ddl_the_rows_of_a_copy_that_was_created_while_excluded_are_not_moved(tmp_path: Path) -> None:
    """Defect 26: the copy is captured only when it is swapped in, and its first rows were missing from the lake."""
    path, facts = tmp_path / "schema.jsonl", DdlServerFacts(flavour="mysql", charset="utf8mb4")
    before = TableHistory(path, lambda _, name: name == "orders", DEFAULT)
    before.seed(SchemaSnapshot(facts, (), (table("orders"),)), at(100))
    before.apply("CREATE TABLE _orders_gho LIKE orders", "shop", at(200))
    later = TableHistory(path, lambda *_: True, DEFAULT)
    (change,) = later.apply("RENAME TABLE orders TO _orders_del, _orders_gho TO orders", "shop", at(300))
    assert (change.table, change.kind) == ("orders", TableChangeKind.STOPPED)


def reported(changes: tuple[TableChange, ...]) -> dict[str, tuple[str, str]]:
    """Returns, by table, the kind of its change and the table's previous name."""
    return {change.table: (change.kind.value, change.renamed_from) for change in changes}


def test_ddl_two_captured_tables_that_swap_names_take_their_rows_along(history: TableHistory) -> None:
    history.apply("ALTER TABLE items ADD more int", "shop", at(200))
    changes = history.apply("RENAME TABLE orders TO t, items TO orders, t TO items", "shop", at(300))
    assert reported(changes) == {"orders": ("schema", "shop.items"), "items": ("schema", "shop.orders")}
    columns = {change.table: [column.name for column in change.schema.columns] for change in changes if change.schema}
    assert columns == {"orders": ["id", "v", "more"], "items": ["id", "v"]}
    assert {change.order_key for change in changes} == {at(300).order_key}
    assert not any(change.alterations for change in changes), "the other table's columns come with its rows"
    (later,) = history.apply("ALTER TABLE orders DROP more", "shop", at(400))
    assert (later.kind, later.table, later.renamed_from) == (TableChangeKind.SCHEMA, "orders", "")


def test_ddl_chains_and_cycles_of_captured_tables_take_their_rows_along(tmp_path: Path) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda _, name: name != "t", REVIEW)
    names = ("a", "b", "c")
    history.seed(
        SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), tuple(map(table, names))), at(100)
    )
    cycle = history.apply("RENAME TABLE a TO t, b TO a, c TO b, t TO c", "shop", at(200))
    assert reported(cycle) == {
        "a": ("schema", "shop.b"),
        "b": ("schema", "shop.c"),
        "c": ("schema", "shop.a"),
    }
    chain = history.apply("RENAME TABLE a TO d, b TO a", "shop", at(300))
    assert reported(chain) == {"d": ("schema", "shop.a"), "a": ("schema", "shop.b"), "b": ("stopped", "")}
    assert history.apply("RENAME TABLE a TO t, t TO a", "shop", at(400)) == (), "nothing has another name"


@pytest.mark.found
@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("a TO t, b TO a, t TO b", {"a": ("schema", "shop.b"), "b": ("schema", "shop.a")}),
        ("nix TO t, a TO c, c TO d, t TO nix", {"d": ("schema", "shop.a")}),
    ],
)
def test_ddl_with_if_exists_a_pair_may_rename_the_table_of_an_earlier_pair(
    tmp_path: Path, pairs: str, expected: dict[str, tuple[str, str]]
) -> None:
    """Defect 1074: a pair was skipped if its old name was no table before the statement. After a swap with MariaDB's IF EXISTS, one of the
    tables had the rows of neither.
    """
    history = TableHistory(tmp_path / "schema.jsonl", lambda _, name: name != "t", DEFAULT)
    facts = DdlServerFacts(flavour="mariadb", charset="utf8mb4")
    history.seed(SchemaSnapshot(facts, (), (table("a"), table("b"))), at(100))
    assert reported(history.apply(f"RENAME TABLE IF EXISTS {pairs}", "shop", at(200))) == expected


@pytest.mark.found
@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("a TO x, a TO y", {"x": ("schema", "shop.a")}),
        ("a TO t, b TO a, a TO y, a TO z", {"y": ("schema", "shop.b")}),
        ("a TO x, x TO a, a TO y, x TO z", {"y": ("schema", "shop.a")}),
    ],
)
def test_ddl_with_if_exists_a_name_that_an_earlier_pair_gave_away_is_skipped(
    tmp_path: Path, pairs: str, expected: dict[str, tuple[str, str]]
) -> None:
    """Defect 1122: Sluice followed the second pair of `a TO x, a TO y`, and ignored the first. So the rows went to y, and x stopped."""
    history = TableHistory(tmp_path / "schema.jsonl", lambda _, name: name != "t", DEFAULT)
    facts = DdlServerFacts(flavour="mariadb", charset="utf8mb4")
    history.seed(SchemaSnapshot(facts, (), (table("a"), table("b"))), at(100))
    assert reported(history.apply(f"RENAME TABLE IF EXISTS {pairs}", "shop", at(200))) == expected


@pytest.mark.found
def test_ddl_with_if_exists_foreign_keys_follow_the_pairs_that_were_executed(tmp_path: Path) -> None:
    """Defect 1122: a foreign key to the table a referred to y after `a TO x, a TO y`."""
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, DEFAULT)
    key = ForeignKey(name="f", columns=("id",), parent=("shop", "a"), referenced=("id",), on_delete="CASCADE")
    child = dataclasses.replace(table("child"), foreign_keys=(key,))
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mariadb", charset="utf8mb4"), (), (table("a"), child)), at(100))
    history.apply("RENAME TABLE IF EXISTS a TO x, a TO y", "shop", at(200))
    state = history.state("shop", "child", at(200))
    assert isinstance(state, TableSchema)
    assert state.foreign_keys == (dataclasses.replace(key, parent=("shop", "x")),)


@pytest.mark.found
def test_ddl_with_if_exists_a_stopped_table_without_a_schema_takes_its_stop_along(tmp_path: Path) -> None:
    """Defect 1123: the table counted as one that did not exist. So the new name did not stop, and the lake got only the rows of later
    changes.
    """
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, DEFAULT)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mariadb", charset="utf8mb4"), (), (table("a"),)), at(100))
    assert reported(history.apply("ALTER TABLE a FROBNICATE", "shop", at(200))) == {"a": ("stopped", "")}
    (change,) = history.apply("RENAME TABLE IF EXISTS a TO b, a TO c", "shop", at(300))
    assert (change.table, change.kind, change.renamed_from) == ("b", TableChangeKind.STOPPED, "shop.a")
    assert history.apply("RENAME TABLE IF EXISTS a TO d", "shop", at(400)) == (), "the table has another name now"


@pytest.mark.found
@pytest.mark.parametrize("own_name", ["a", "shop.a", "`shop`.`a`"])
def test_ddl_an_alter_that_renames_the_table_to_its_own_name_is_followed(tmp_path: Path, own_name: str) -> None:
    """Defect 1078: the statement counted as a rename to another name, and its other changes were lost without a message."""
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, REVIEW)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (table("a"),)), at(100))
    (change,) = history.apply(f"ALTER TABLE a ADD x int DEFAULT 7, RENAME TO {own_name}", "shop", at(200))
    assert (change.table, change.kind, change.fills) == ("a", TableChangeKind.SCHEMA, (("x", "7"),))
    state = history.state("shop", "a", at(200))
    assert isinstance(state, TableSchema)
    assert [column.name for column in state.columns] == ["id", "v", "x"]
    assert history.apply(f"ALTER TABLE a RENAME TO {own_name}", "shop", at(300)) == ()


def test_ddl_a_plain_rename_moves_the_rows_to_the_new_name(tmp_path: Path) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, DEFAULT)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (table("a"),)), at(100))
    assert reported(history.apply("ALTER TABLE a RENAME TO b", "shop", at(200))) == {"b": ("schema", "shop.a")}
    assert reported(history.apply("RENAME TABLE b TO other.b", "shop", at(300))) == {"b": ("schema", "shop.b")}
    created = history.apply("CREATE TABLE a (id int PRIMARY KEY)", "shop", at(400))
    assert [change.kind.value for change in created] == ["truncate", "schema"], "rows that the name had before go first"
    assert reported(history.apply("RENAME TABLE other.b TO shop.b", "shop", at(500))) == {"b": ("schema", "other.b")}


def test_ddl_a_rename_that_alters_too_takes_the_rows_first_and_alters_them_then(tmp_path: Path) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, REVIEW)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (table("a"),)), at(100))
    changes = history.apply("ALTER TABLE a ADD x int NOT NULL DEFAULT 7, RENAME TO b", "shop", at(200))
    changes = tuple(change for change in changes if change.table == "b")
    key = at(200).order_key
    assert [(each.renamed_from, each.order_key) for each in changes] == [("shop.a", key - 1), ("", key)]
    schemas = [[column.name for column in each.schema.columns] for each in changes if each.schema]
    assert schemas == [["id", "v"], ["id", "v", "x"]]
    assert changes[1].fills == (("x", "7"),)
    state = TableHistory(tmp_path / "schema.jsonl", lambda *_: True).state("shop", "b", at(200))
    assert isinstance(state, TableSchema)
    assert [column.name for column in state.columns] == ["id", "v", "x"]


def test_ddl_a_table_that_has_stopped_takes_its_stop_along(tmp_path: Path) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda *_: True, DEFAULT)
    history.seed(
        SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (table("a"), table("b"))), at(100)
    )
    history.apply("ALTER TABLE a ENGINE=BLACKHOLE", "shop", at(200))
    changes = history.apply("RENAME TABLE a TO t, b TO a, t TO b", "shop", at(300))
    change, onto_stopped = sorted(changes, key=lambda each: each.table, reverse=True)
    assert (onto_stopped.table, onto_stopped.state, onto_stopped.renamed_from) == ("a", "ROWS_ELSEWHERE", "shop.b")
    assert onto_stopped.schema is not None, "consumers go on with its rows, and look at the rules of both names"
    assert (change.table, change.kind, change.renamed_from) == ("b", TableChangeKind.STOPPED, "shop.a")
    assert "which had stopped (ROWS_ELSEWHERE)" in change.reason
    assert "resume shop.a, and this table continues too" in change.reason
    (later,) = history.apply("RENAME TABLE b TO c", "shop", at(400))
    assert (later.table, later.kind) == ("c", TableChangeKind.STOPPED)


def test_ddl_a_captured_table_that_leaves_the_filter_gets_no_more_changes(tmp_path: Path) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda _, name: name == "a", DEFAULT)
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (table("a"),)), at(100))
    assert history.apply("RENAME TABLE a TO outside", "shop", at(200)) == ()
    (change,) = history.apply("RENAME TABLE outside TO a", "shop", at(300))
    assert (change.kind, change.renamed_from) == (TableChangeKind.STOPPED, "")
    assert "the lake does not have its rows under the new name" in change.reason


def test_ddl_vitess_swaps_over_a_name_of_its_own(history: TableHistory) -> None:
    copy, sentry = f"_vt_vrp_{UUID}_20260101120000_", f"_vt_prg_{UUID}_20260101120001_"
    history.apply(f"CREATE TABLE {copy} LIKE orders", "shop", at(200))
    history.apply(f"ALTER TABLE {copy} ADD added int", "shop", at(210))
    swap = f"RENAME TABLE orders TO {sentry}, {copy} TO orders, {sentry} TO {copy}"
    changes = reported(history.apply(swap, "shop", at(300)))
    assert changes["orders"] == (("schema", f"shop.{copy}") if captures_all(history) else ("stopped", ""))
    assert history.apply(f"RENAME TABLE {copy} TO _vt_hld_{UUID}_20260102120000_", "shop", at(400)) == ()


def test_ddl_a_copy_that_replaces_nothing_is_no_swap(history: TableHistory) -> None:
    history.apply("CREATE TABLE _orders_gho LIKE orders", "shop", at(200))
    history.apply("RENAME TABLE orders TO elsewhere.orders", "shop", at(250))
    changes = history.apply("RENAME TABLE _orders_gho TO orders", "shop", at(300))
    orders = [(each.state, each.kind) for each in changes if each.table == "orders"]
    stopped = [("DDL_HELD", TableChangeKind.STOPPED)] if captures_all(history) else []
    assert orders == stopped, "it waits for a decision on its end; consumers look at the rules of both names"


def test_ddl_the_schema_of_a_table_outside_the_filter_is_known_when_a_rename_captures_it(tmp_path: Path) -> None:
    history = TableHistory(tmp_path / "schema.jsonl", lambda _, name: name == "orders")
    history.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (), (table("outside"),)), at(100))
    assert history.apply("ALTER TABLE outside ADD added int FIRST, DROP v", "shop", at(200)) == ()
    (change,) = history.apply("RENAME TABLE outside TO orders", "shop", at(300))
    assert change.kind is TableChangeKind.STOPPED
    state = TableHistory(tmp_path / "schema.jsonl", lambda *_: True).state("shop", "orders", at(300))
    assert isinstance(state, Stopped)
    assert state.schema is not None
    assert [column.name for column in state.schema.columns] == ["added", "id"]
    assert state.schema.table == "orders"


def test_ddl_pairs_are_executed_from_left_to_right() -> None:
    a, b, c = ("d", "a"), ("d", "b"), ("d", "c")
    assert moved([(a, c), (b, a), (c, b)]) == {a: b, b: a, c: None}
    assert moved([(a, b), (b, a)]) == {a: a, b: None}
