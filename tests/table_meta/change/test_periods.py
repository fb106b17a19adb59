"""Tests which columns an ALTER TABLE of MariaDB makes NOT NULL because it adds a PERIOD."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END, ROW_START
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.evolution import CannotFollowError
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema
from tests.table_meta.change.test_ddl_alterations import alter


def booked(*not_null: str, kind: str = "date") -> TableSchema:
    """Returns a table with the columns a, b, c and d, of which those in `not_null` are NOT NULL."""
    columns = tuple(DeclaredColumn(name=name, type=kind, nullable=name not in not_null) for name in "abcd")
    return TableSchema(database="shop", table="t", charset="latin1", columns=columns)


def required(schema: TableSchema, actions: str) -> str:
    return "".join(column.name for column in alter(actions, schema).schema.columns if not column.nullable)


@pytest.mark.found
@pytest.mark.parametrize(
    ("before", "actions", "after"),
    [
        ("", "ADD PERIOD FOR p(a, B)", "ab"),
        ("", "ADD PERIOD IF NOT EXISTS FOR p(a, B)", "ab"),
        ("a", "ADD PERIOD IF NOT EXISTS FOR p(a, b)", "ab"),
        ("ab", "ADD PERIOD IF NOT EXISTS FOR p(a, b)", "ab"),
        ("ab", "ADD PERIOD FOR p(c, d)", "abcd"),
        ("ab", "ADD e int, ADD PERIOD IF NOT EXISTS FOR p(c, nowhere)", "ab"),
        ("", "ADD PERIOD FOR p(a, b), ADD PERIOD IF NOT EXISTS FOR p(c, d)", "ab"),
        ("", "ADD PERIOD IF NOT EXISTS FOR p(c, d), ADD PERIOD IF NOT EXISTS FOR p(a, b)", "cd"),
    ],
)
def test_ddl_a_period_that_exists_already_makes_no_column_not_null(before: str, actions: str, after: str) -> None:
    """Defect 1121: IF NOT EXISTS was ignored. The columns that the statement named became NOT NULL in the schema, or the table stopped if
    it had no such columns.
    """
    assert required(booked(*before), actions) == after


@pytest.mark.found
def test_ddl_a_table_stops_if_it_is_unknown_whether_it_has_the_period() -> None:
    """Defect 1121: the columns were taken for NOT NULL, although they may have stayed as they were."""
    with pytest.raises(CannotFollowError, match="does not show whether the table already had the period") as caught:
        alter("ADD PERIOD IF NOT EXISTS FOR p(c, d)", booked("a", "b"))
    assert caught.value.state == TableState.SCHEMA_UNKNOWN


def test_ddl_columns_of_other_kinds_are_no_period() -> None:
    actions = "ADD PERIOD IF NOT EXISTS FOR p(c, d)"
    assert required(booked("a", "b", kind="int"), actions) == "abcd"
    times = booked("a", "b", kind="timestamp(6)")
    a, b, *others = times.columns
    versioned = (dataclasses.replace(a, generated=ROW_START), dataclasses.replace(b, generated=ROW_END), *others)
    assert required(dataclasses.replace(times, columns=versioned), actions) == "abcd"
    mixed = (dataclasses.replace(a, type="date"), b, *others)
    assert required(dataclasses.replace(times, columns=mixed), actions) == "abcd"
