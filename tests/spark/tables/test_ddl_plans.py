"""Tests plans of alterations without Spark. The steps run on a dictionary, in which each column has the name of the column from which its
values came.

So the test detects a value in the wrong column, a lost value, and an invented value.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import Alteration, AlterationKind, LakeColumn, SchemaSegment
from sluice.spark_jobs.tables.alterations import (
    AlterationPlan,
    closing_statements,
    giving_statements,
    plan_of,
    removing_statements,
)
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot
from sluice.spark_jobs.tables.retyped_table import can_be_retyped
from sluice.spark_jobs.targets.casting import converted, widens

NAMES = ("a", "b", "c", "d")
TYPES = ("int", "bigint", "string")
KEY = 77


@dataclasses.dataclass
class Change:
    """A statement that alters a table. `before` and `after` map each column to its type. `kept` contains the old columns that the table
    keeps.
    """

    before: dict[str, str]
    after: dict[str, str]
    alterations: tuple[Alteration, ...]
    expected: dict[str, str]  # column afterwards → the column whose values it has, "" for none
    kept: set[str]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    before = {
        name: draw(st.sampled_from(TYPES)) for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    }
    targets = draw(st.permutations(NAMES))
    drops, renames, types, adds = [], [], [], []
    after: dict[str, str] = {}
    expected: dict[str, str] = {}
    kept: set[str] = set()
    for index, (name, old_type) in enumerate(before.items()):
        if draw(st.booleans()):
            plan = draw(st.sampled_from(("keep", "apply")))
            drops.append(Alteration(kind=AlterationKind.DROP, column=name, plan=plan))
            kept |= {name} if plan == "keep" else set()
            continue
        new_name, new_type = targets[index], draw(st.sampled_from(TYPES))
        after[new_name], expected[new_name] = new_type, name
        if new_name != name:
            plan = draw(st.sampled_from(("apply", "new_column")))
            renames.append(Alteration(kind=AlterationKind.RENAME, column=name, new_name=new_name, plan=plan))
            kept |= {name} if plan == "new_column" else set()
        if new_type != old_type:
            kind = AlterationKind.WIDEN if widens(old_type, new_type) else AlterationKind.CONVERT
            plan = draw(
                st.sampled_from(("apply", "rewrite") if kind is AlterationKind.WIDEN else ("apply", "new_column"))
            )
            types.append(Alteration(kind=kind, column=new_name, plan=plan))
            if plan == "new_column" and name not in kept:
                kept.add(name)
                expected[new_name] = ""
    for name in targets[len(before) :]:
        if draw(st.booleans()):
            after[name], expected[name] = draw(st.sampled_from(TYPES)), ""
            adds.append(Alteration(kind=AlterationKind.ADD, column=name))
    return Change(before, after, (*drops, *renames, *types, *adds), expected, kept)


@dataclasses.dataclass
class Played:
    """A table, as a mapping of each column to its type and to the column from which its values came."""

    columns: dict[str, tuple[str, str]]

    @property
    def there(self) -> dict[str, tuple[str, str]]:
        return {name: (name, type_name) for name, (type_name, _) in self.columns.items()}

    def run(self, statements: list[str]) -> None:
        for statement in statements:
            names = re.findall(r"`([^`]*)`", statement)[1:]
            if "RENAME COLUMN" in statement:
                assert names[1] not in self.columns, f"{statement} meets a column of that name"
                self.columns[names[1]] = self.columns.pop(names[0])
            elif "DROP COLUMN" in statement:
                del self.columns[names[0]]
            else:
                old, origin = self.columns[names[0]]
                new = statement.rpartition(" TYPE ")[2]
                assert widens(old, new)
                self.columns[names[0]] = (new, origin)

    def give(self, after: dict[str, str]) -> None:
        for name, type_name in after.items():
            self.columns.setdefault(name, (type_name, ""))

    def copy(self, plan: AlterationPlan) -> None:
        values = {name: self.columns[re.findall(r"`([^`]*)`", expression)[0]][1] for name, expression in plan.copies}
        self.columns |= {name: (self.columns[name][0], value) for name, value in values.items()}


@settings(deadline=None)
@given(changes(), st.sets(st.sampled_from(NAMES)))
def test_ddl_every_column_has_the_values_it_is_to_have(change: Change, left: set[str]) -> None:
    """`left` contains columns that the source dropped earlier and that the table kept."""
    left -= set(change.before)
    table = Played({name: (type_name, name) for name, type_name in change.before.items()})
    table.columns |= {name: ("string", f"{name} of before") for name in left}
    columns = tuple(LakeColumn(name=name, type=type_name) for name, type_name in change.after.items())
    segment = SchemaSegment(order_key=KEY, commit_time_us=0, key=(), columns=columns, alterations=change.alterations)
    plan = plan_of(table.there, tuple(left), segment)
    for _ in range(2):  # A step that the table has passed already changes nothing when it is repeated.
        table.run(removing_statements("t", plan, table.there))
    for _ in range(2):
        table.run(giving_statements("t", plan, table.there))
    table.give(change.after)
    table.copy(plan)
    for _ in range(2):
        table.run(closing_statements("t", plan, table.there))
    assert {name: table.columns[name] for name in change.after} == {
        name: (type_name, change.expected[name]) for name, type_name in change.after.items()
    }
    assert {table.columns[name][1] for name in plan.kept} == change.kept | {f"{name} of before" for name in left}
    assert set(table.columns) == {*change.after, *plan.kept}
    assert AlterationPlan.from_json(plan.to_json()) == dataclasses.replace(plan, retyped=())


def test_ddl_a_plan_that_is_behind_the_table_has_no_steps() -> None:
    """If the ledger was created again, the statement arrives again under another order key, although the table already has its result."""
    segment = SchemaSegment(
        order_key=KEY,
        commit_time_us=0,
        key=(),
        columns=(LakeColumn(name="b", type="int"),),
        alterations=(
            Alteration(kind=AlterationKind.RENAME, column="a", new_name="b"),
            Alteration(kind=AlterationKind.DROP, column="gone"),
            Alteration(kind=AlterationKind.WIDEN, column="b"),
            Alteration(kind=AlterationKind.ADD, column="b"),
        ),
    )
    assert plan_of({"b": ("b", "int")}, (), segment) == AlterationPlan(kept=())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("string", "int", "try_cast(x AS int)"),
        ("double", "int", "try_cast(round(x) AS int)"),
        ("decimal(10,2)", "bigint", "try_cast(round(x) AS bigint)"),
        ("boolean", "bigint", "try_cast(x AS bigint)"),
        ("int", "date", "try_cast(CAST(x AS string) AS date)"),
        ("date", "timestamp_ntz", "try_cast(x AS timestamp_ntz)"),
    ],
)
def test_ddl_values_become_another_type_as_the_source_makes_them(old: str, new: str, expected: str) -> None:
    assert converted("x", old, new) == expected


@pytest.mark.parametrize(
    ("properties", "alterations", "one_commit"),
    [
        ({}, ("widen",), True),
        ({}, ("widen", "drop"), False),
        ({"delta.columnMapping.mode": "name"}, ("widen",), False),
        ({"delta.constraints.positive": "a > 0"}, ("widen",), True),
        ({"delta.enableRowTracking": "true"}, ("widen",), False),
    ],
)
def test_ddl_a_table_is_replaced_only_if_it_loses_nothing_by_that(
    properties: dict[str, str], alterations: tuple[str, ...], one_commit: bool
) -> None:
    there = {"a": ("a", "int"), "b": ("b", "int")}
    kinds = {"widen": (AlterationKind.WIDEN, "a", "rewrite"), "drop": (AlterationKind.DROP, "b", "apply")}
    made = tuple(
        Alteration(kind=kind, column=column, plan=plan) for kind, column, plan in map(kinds.__getitem__, alterations)
    )
    columns = tuple(
        LakeColumn(name=name, type=kind)
        for name, kind in (("a", "bigint"), ("b", "int"))
        if "drop" not in alterations or name == "a"
    )
    segment = SchemaSegment(order_key=KEY, commit_time_us=0, key=(), columns=columns, alterations=made)
    snapshot = DeltaSnapshot(version=1, columns=there, properties=properties, applied_order_key=1)
    assert can_be_retyped(snapshot, segment, plan_of(there, (), segment)) is one_commit
