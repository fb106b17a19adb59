"""Tests what a policy and an approval decide about a statement, and which changes the lake gets."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import Alteration, AlterationKind
from sluice.cdc_engine.config import DestinationConfig, SchemaChangesConfig
from sluice.cdc_engine.contracts import StoppedTable, TableChange, TableChangeKind
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.instance.engine.consumer_wiring import review_of
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.policy import (
    DEFAULTS,
    HOLD,
    PLANS,
    STOP,
    Item,
    PendingChange,
    PolicyAnswer,
    SchemaDecisions,
    choices,
    decide,
    items_of,
)
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, TableSchema

COLUMNS = (
    DeclaredColumn(name="id", type="int", nullable=False),
    DeclaredColumn(name="name", type="varchar(20)", charset="utf8mb4", nullable=False),
    DeclaredColumn(name="amount", type="int"),
)
T = TableSchema(database="shop", table="t", charset="utf8mb4", columns=COLUMNS, key=("id",))


def at(offset: int) -> Position:
    return Position(epoch=1, file="mysql-bin.000007", offset=offset, time_us=offset * 1000)


def stop_of(held: TableChange | PendingChange) -> StoppedTable:
    return StoppedTable(
        database=held.database,
        table=held.table,
        state=TableState.DDL_HELD,
        reason=held.reason,
        position=at(150),
        order_key=held.order_key,
    )


# ── the decision ──

KINDS = st.sampled_from(sorted(PLANS))
POLICIES = st.fixed_dictionaries({kind: st.sampled_from([*PLANS[kind], HOLD, STOP]) for kind in PLANS})
WORDS = st.sampled_from(sorted({word for plans in PLANS.values() for word in plans}))


@st.composite
def items(draw: st.DrawFn) -> Item:
    kind = draw(KINDS)
    columns = {each.value for each in AlterationKind}
    alteration = Alteration(kind=AlterationKind(kind), column=draw(st.text(min_size=1))) if kind in columns else None
    return Item(kind=kind, what=kind, alteration=alteration)


@settings(deadline=None)
@given(st.lists(items()), POLICIES, WORDS | st.just(""))
def test_ddl_a_decision_follows_the_policy_and_an_approval_answers_hold_alone(
    wanted: list[Item], policy: dict[str, str], approved: str
) -> None:
    decision = decide(wanted, policy, approved)
    words = [policy[item.kind] for item in wanted]
    if STOP in words:
        assert decision.verdict is PolicyAnswer.STOPPED
    elif HOLD in words and not approved:
        assert decision.verdict is PolicyAnswer.HELD
    else:
        assert decision.verdict is PolicyAnswer.FOLLOW
        for item, word, followed in zip(wanted, words, decision.plans, strict=True):
            assert followed in item.plans
            assert word in {HOLD, followed}
            assert word != HOLD or approved not in item.plans or followed == approved
    reported = [item.alteration for item in wanted if item.alteration is not None]
    if decision.verdict is PolicyAnswer.FOLLOW:
        plans = [word for item, word in zip(wanted, decision.plans, strict=True) if item.alteration is not None]
        assert list(decision.alterations) == [
            dataclasses.replace(each, plan=plan) for each, plan in zip(reported, plans, strict=True)
        ]
    else:
        assert decision.alterations == ()


@settings(deadline=None)
@given(st.lists(items()), POLICIES)
def test_ddl_each_choice_that_is_offered_ends_the_wait(wanted: list[Item], policy: dict[str, str]) -> None:
    policy = {kind: HOLD if word == STOP else word for kind, word in policy.items()}
    offered = choices(wanted, policy)
    assert bool(offered) == (decide(wanted, policy).verdict is PolicyAnswer.HELD)
    assert all(decide(wanted, policy, word).verdict is PolicyAnswer.FOLLOW for word in offered)


def test_ddl_the_configuration_has_the_plans_and_defaults_of_the_policy() -> None:
    assert SchemaChangesConfig().model_dump() == DEFAULTS
    for kind, field in SchemaChangesConfig.model_fields.items():
        words = set(get_args(field.annotation))
        assert words - {HOLD, STOP} == set(PLANS[kind])
        assert {HOLD, STOP} <= words


@pytest.mark.parametrize(
    ("old", "new", "concerns"),
    [
        ("varchar(20)", "varchar(30)", False),
        ("int", "bigint", True),
        ("enum('a')", "enum('a','b')", False),
        ("bigint", "bigint unsigned", True),
    ],
)
def test_ddl_a_wider_type_concerns_the_lake_where_its_own_type_changes(old: str, new: str, concerns: bool) -> None:
    widened = Alteration(kind=AlterationKind.WIDEN, column="c", old_type=old, new_type=new)
    assert bool(items_of([widened])) is concerns


@pytest.mark.found
@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("datetime", "datetime(3)", True),
        ("timestamp(6)", "timestamp", True),
        ("date", "datetime", True),
        ("datetime", "datetime", False),
        ("int", "bigint", False),
    ],
)
def test_ddl_dates_that_the_lake_stores_as_text_get_another_form(
    tmp_path: Path, old: str, new: str, differs: bool
) -> None:
    """Defect 1207: with `zero_dates: text`, MODIFY of DATETIME to DATETIME(3) left texts without a fraction in the lake."""
    wanted = {"name": "d", "source": {"user": "root"}, "include": ".*", "tables": {"shop.t": {"zero_dates": "text"}}}
    conf = review_of(DestinationConfig.model_validate(wanted), tmp_path)
    for table, stops in (("t", differs), ("u", False)):
        history = Reviewed(tmp_path).history(**{**conf.policy("shop", table), "convert": "apply"})
        history.apply(f"ALTER TABLE t ADD made {old} NULL", "shop", at(200))
        changes = history.apply(f"ALTER TABLE t MODIFY made {new} NULL", "shop", at(300))
        assert [each.state for each in changes if "zero_dates: text" in each.reason] == ["DDL_UNSUPPORTED"] * stops


# ── the history ──

Apply = Callable[..., tuple[TableChange, ...]]


@dataclasses.dataclass
class Reviewed:
    """A history with a policy, and the files of its approvals."""

    folder: Path

    def apply(self, statement: str, **words: str) -> tuple[TableChange, ...]:
        """Returns the changes that a statement causes in a new history."""
        return self.history(**words).apply(statement, "shop", at(200))

    def history(self, **words: str) -> TableHistory:
        policy = {**DEFAULTS, **words}
        review = SchemaDecisions(
            destination="d", policy=lambda *_: policy, approved=self.files.approved, note=self.files.note
        )
        path = self.folder / "schema.jsonl"
        path.unlink(missing_ok=True)
        made = TableHistory(path, lambda *_: True, review)
        made.seed(
            SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="utf8mb4"), (("shop", "utf8mb4"),), (T,)), at(100)
        )
        return made

    @property
    def files(self) -> ReviewFiles:
        return ReviewFiles(self.folder)


@pytest.fixture
def reviewed(tmp_path: Path) -> Reviewed:
    return Reviewed(tmp_path)


def reported(changes: tuple[TableChange, ...]) -> list[tuple[str, str, str]]:
    assert all(change.kind is TableChangeKind.SCHEMA for change in changes)
    return [(each.kind.value, each.column, each.plan) for change in changes for each in change.alterations]


@pytest.mark.parametrize(
    ("actions", "words", "expected"),
    [
        ("ADD x int, DROP amount", {}, [("drop", "amount", "keep"), ("add", "x", "apply")]),
        ("DROP amount", {"drop": "apply"}, [("drop", "amount", "apply")]),
        ("MODIFY amount bigint", {}, [("widen", "amount", "rewrite")]),
        ("MODIFY amount bigint", {"widen": "apply"}, [("widen", "amount", "apply")]),
        ("MODIFY name varchar(30)", {"widen": "stop"}, []),
        ("RENAME COLUMN name TO title", {"rename": "new_column"}, [("rename", "name", "new_column")]),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (name)", {"key": "apply"}, [("key", "", "apply")]),
        ("DROP PARTITION p0", {"drop_partition": "ignore"}, None),
    ],
)
def test_ddl_the_lake_gets_the_plans_of_the_policy(
    reviewed: Reviewed, actions: str, words: dict[str, str], expected: list[tuple[str, str, str]] | None
) -> None:
    changes = reviewed.apply(f"ALTER TABLE t {actions}", **words)
    assert (reported(changes) if expected is not None else list(changes)) == (expected or [])


def test_ddl_a_pending_change_names_its_statement_both_plans_and_the_command(reviewed: Reviewed) -> None:
    (change,) = reviewed.apply("ALTER TABLE t RENAME COLUMN name TO title, MODIFY amount tinyint")
    assert (change.kind, change.state, change.order_key) == (TableChangeKind.STOPPED, "DDL_HELD", at(200).order_key)
    for words in (
        "`ALTER TABLE t RENAME COLUMN name TO title, MODIFY amount tinyint` at mysql-bin.000007:200@1",
        "- rename name to title",
        "- convert amount int to tinyint",
        *(meaning for kind in ("rename", "convert") for meaning in PLANS[kind].values()),
        "sluice schema approve d shop.t --plan apply|new_column",
    ):
        assert words in change.reason


def test_ddl_an_approval_lets_just_that_statement_pass(reviewed: Reviewed) -> None:
    (held,) = reviewed.apply("ALTER TABLE t RENAME COLUMN name TO title")
    record = reviewed.files.pending(stop_of(held))
    assert record is not None
    assert (record.choices, record.order_key) == (("apply", "new_column"), at(200).order_key)
    reviewed.files.approve(record, "new_column")
    history = reviewed.history()
    changes = history.apply("ALTER TABLE t RENAME COLUMN name TO title", "shop", at(200))
    assert reported(changes) == [("rename", "name", "new_column")]
    (again,) = history.apply("ALTER TABLE t RENAME COLUMN title TO name", "shop", at(300))
    assert again.state == "DDL_HELD"


def test_ddl_the_history_follows_a_table_with_a_pending_change_and_keeps_its_first_reason(reviewed: Reviewed) -> None:
    history = reviewed.history()
    history.apply("ALTER TABLE t RENAME COLUMN name TO title", "shop", at(200))
    assert history.apply("ALTER TABLE t DROP amount", "shop", at(300)) == ()
    history.rewind(at(150))
    (again,) = history.apply("ALTER TABLE t RENAME COLUMN name TO title", "shop", at(200))
    assert again.state == "DDL_HELD"


@pytest.mark.parametrize(
    ("statement", "words", "expected"),
    [
        ("TRUNCATE t", {}, ["truncate"]),
        ("TRUNCATE t", {"truncate": "ignore"}, []),
        ("TRUNCATE t", {"truncate": "hold"}, ["DDL_HELD"]),
        ("DROP TABLE t", {}, []),
        ("DROP TABLE t", {"drop_table": "apply"}, ["truncate"]),
        ("DROP TABLE t", {"drop_table": "hold"}, ["DDL_HELD"]),
        ("DROP DATABASE shop", {"drop_table": "stop"}, ["DDL_REFUSED"]),
        ("ALTER TABLE t TRUNCATE PARTITION p0", {}, ["DDL_HELD"]),
        ("ALTER TABLE t DROP PARTITION p0", {"drop_partition": "stop"}, ["DDL_REFUSED"]),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u", {"drop_partition": "ignore"}, 2 * ["DDL_UNSUPPORTED"]),
    ],
)
def test_ddl_rows_that_go_without_row_events_go_by_policy(
    reviewed: Reviewed, statement: str, words: dict[str, str], expected: list[str]
) -> None:
    changes = reviewed.apply(statement, **words)
    assert [change.state or change.kind.value for change in changes] == expected


def test_ddl_a_table_that_is_created_again_loses_the_rows_of_the_one_before(reviewed: Reviewed) -> None:
    history = reviewed.history()
    assert history.apply("DROP TABLE t", "shop", at(200)) == ()
    gone, made = history.apply("CREATE TABLE t (id int primary key, amount varchar(9))", "shop", at(300))
    assert (gone.kind, made.kind) == (TableChangeKind.TRUNCATE, TableChangeKind.SCHEMA)
    assert gone.order_key < made.order_key == at(300).order_key
    assert reported((made,)) == [("drop", "name", "keep"), ("convert", "amount", "apply")]


def test_ddl_an_approval_that_cannot_be_read_is_no_approval_and_no_refusal(reviewed: Reviewed) -> None:
    (held,) = reviewed.apply("ALTER TABLE t RENAME COLUMN name TO title")
    record = reviewed.files.pending(stop_of(held))
    assert record is not None
    reviewed.files.approve(record, "apply")
    (path,) = (reviewed.folder / "schema-changes").glob("*.approved.json")
    path.write_text("{")
    with pytest.raises(MetaError, match="cannot be read"):
        reviewed.apply("ALTER TABLE t RENAME COLUMN name TO title")


@pytest.mark.parametrize("name", ["plain", "a.b", "*[x]?", "/../..", "we ird", "a`b", "it's", 64 * "你"])
def test_ddl_a_pending_change_of_a_table_of_any_name_is_approved(reviewed: Reviewed, name: str) -> None:
    item = Item(kind="rename", what="rename a to b")
    held = PendingChange(
        destination="d",
        database=name,
        table=name,
        order_key=7,
        position="here",
        statement="s",
        items=(item,),
        choices=("apply",),
    )
    other = dataclasses.replace(held, table=name[:-1] + "z")
    for each in (held, other):
        reviewed.files.note(each)
    (command,) = re.findall(r"`(sluice schema approve [^|]*) --plan apply`", held.reason)
    assert shlex.split(command) == ["sluice", "schema", "approve", "d", f"{name}.{name}"], (
        "a shell passes the name as one argument"
    )
    record = reviewed.files.pending(stop_of(held))
    assert record is not None
    assert (record.table, record.items) == (name, ((item.what, dict(item.plans)),))
    reviewed.files.approve(record, "apply")
    assert reviewed.files.approved(name, name, 7) == "apply"
    assert reviewed.files.approved(name, other.table, 7) == ""
    assert reviewed.files.pending(stop_of(other)) is not None
    old = dataclasses.replace(stop_of(held), order_key=0)
    assert reviewed.files.pending(old) == record, "a stop that an earlier version stored is found by its reason"
    reworded = dataclasses.replace(stop_of(held), reason="in other words")
    assert reviewed.files.pending(reworded) == record
