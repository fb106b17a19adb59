"""Tests renamed tables and columns whose settings in conf/ differ between the two names."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from sluice.batch_manifest.values import Alteration, AlterationKind
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.staging import StagingRules, stage
from tests.binlog.rows.event_bytes import NOTE, ORDERS
from tests.staging.test_staging import AS_ITEMS, ITEMS, batch, change


@pytest.mark.found
@pytest.mark.parametrize("name", ["shop.orders", "shop.items"])
def test_ddl_a_table_with_other_charsets_than_under_its_old_name_stops(tmp_path: Path, name: str) -> None:
    """Defect 1031: the rows of a renamed table were taken over although conf/ decodes the texts of its two names with other charsets."""
    taken = batch(change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS))
    rules = StagingRules(policies={name: ValuePolicy(charsets={"note": "latin1"})})
    (stopped,) = stage(taken, "shop", 1, tmp_path, rules).stopped
    assert (stopped.table, stopped.state) == ("items", "DDL_UNSUPPORTED")
    assert "set the same `charsets` for both names" in stopped.reason
    both = StagingRules(policies=dict.fromkeys(("shop.orders", "shop.items"), ValuePolicy(charsets={"note": "latin1"})))
    assert not stage(taken, "shop", 2, tmp_path, both).stopped


@pytest.mark.found
@pytest.mark.parametrize(
    ("orders", "items", "named"),
    [
        ({}, {"zero_dates": "text"}, "zero_dates"),
        ({"zero_dates": "text"}, {}, "zero_dates"),
        ({"zero_dates": "error"}, {}, ""),
        ({"undecodable": "quarantine"}, {}, "undecodable"),
        ({}, {"undecodable": "quarantine"}, ""),
        ({"zero_dates": "text"}, {"zero_dates": "text"}, ""),
    ],
)
def test_ddl_a_table_with_other_zero_dates_than_under_its_old_name_stops(
    tmp_path: Path, orders: dict[str, str], items: dict[str, str], named: str
) -> None:
    """Defect 1213: if conf/ sets `zero_dates: text` for one name of a renamed table only, its merges failed, and a resume did not help."""
    policies = {"shop.orders": ValuePolicy(**orders), "shop.items": ValuePolicy(**items)}  # type: ignore[arg-type]
    taken = batch(change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS))
    stopped = stage(taken, "shop", 1, tmp_path, StagingRules(policies=policies)).stopped
    assert [(each.table, each.state) for each in stopped] == [("items", "DDL_UNSUPPORTED")] * bool(named)
    assert all(f"set the same `{named}` for both names" in each.reason for each in stopped)


@pytest.mark.found
@pytest.mark.parametrize(
    ("excluded", "stops"),
    [("shop.orders:note", True), ("shop.items:note", True), ("shop.orders:note,shop.items:note", False), ("", False)],
)
def test_ddl_a_table_with_other_columns_than_under_its_old_name_stops(
    tmp_path: Path, excluded: str, *, stops: bool
) -> None:
    """Defect 1210: if conf/ excluded a column under one name of a renamed table only, existing rows had NULL in it. Or the lake kept the
    excluded values.
    """
    taken = batch(change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS))
    stopped = stage(taken, "shop", 1, tmp_path, StagingRules(kept=ColumnFilter(exclude=excluded).kept)).stopped
    assert [(each.table, each.state) for each in stopped] == [("items", "DDL_UNSUPPORTED")] * stops
    assert all("captures the column note under only one of the two names" in each.reason for each in stopped)


NAMES = ("shop.orders", "shop.items")
MEMO = dataclasses.replace(ORDERS, columns=(*ORDERS.columns[:-1], dataclasses.replace(NOTE, name="memo")))
NOTE_TO_MEMO = change(
    TableChangeKind.SCHEMA,
    100,
    schema=MEMO,
    alterations=(Alteration(kind=AlterationKind.RENAME, column="note", new_name="memo"),),
)


@pytest.mark.found
@pytest.mark.parametrize(
    ("excluded", "stops"), [("note", True), ("memo", True), ("note/memo", False), ("nothing", False)]
)
def test_ddl_a_column_that_is_captured_under_one_of_its_two_names_stops_the_table(
    tmp_path: Path, excluded: str, *, stops: bool
) -> None:
    """Defect 1036: if a column that conf/ excludes was renamed, the lake had NULL in existing rows under the new name. If the new name was
    excluded, the lake kept the old values.
    """
    rules = StagingRules(kept=ColumnFilter(exclude=f"shop.orders:{excluded}").kept)
    stopped = stage(batch(NOTE_TO_MEMO), "shop", 1, tmp_path, rules).stopped
    assert [each.state for each in stopped] == ["DDL_UNSUPPORTED"] * stops
    assert all("column note was renamed to memo" in each.reason for each in stopped)


@pytest.mark.found
@pytest.mark.parametrize(("named", "stops"), [(["note"], True), (["memo"], True), (["note", "memo"], False)])
def test_ddl_a_column_whose_charset_belongs_to_one_of_its_two_names_stops_the_table(
    tmp_path: Path, named: list[str], *, stops: bool
) -> None:
    """Defect 1037: after a column in `charsets` was renamed, later rows were decoded with the declared charset."""
    rules = StagingRules(policies={"shop.orders": ValuePolicy(charsets=dict.fromkeys(named, "latin1"))})
    assert [each.state for each in stage(batch(NOTE_TO_MEMO), "shop", 1, tmp_path, rules).stopped] == [
        "ROWS_RULE"
    ] * stops


@pytest.mark.found
def test_ddl_a_rename_that_the_lake_has_stops_nothing_when_it_is_read_again(tmp_path: Path) -> None:
    """Belongs to defects 1031, 1036 and 1037: a table stopped again at a rename that the lake already had. This happened when the stream
    was read again for another table, and conf/ no longer had the old name.
    """
    policies = {"shop.orders": ValuePolicy(charsets={"note": "latin1"})}
    rules = StagingRules(kept=ColumnFilter(exclude="shop.orders:memo").kept, policies=policies)
    renames = (NOTE_TO_MEMO, change(TableChangeKind.SCHEMA, 100, ITEMS, **AS_ITEMS))
    for (number, each), stops in itertools.product(enumerate(renames), (0, 1)):
        up_to = each.changes[0].order_key - stops
        there = dataclasses.replace(rules, has_up_to=dict.fromkeys(NAMES, up_to).__getitem__)
        assert len(stage(batch(each), "shop", 2 * number + stops, tmp_path, there).stopped) == stops
