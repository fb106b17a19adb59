"""Finds the columns that an ALTER TABLE of MariaDB makes NOT NULL because it adds a PERIOD. Pure functions, called by `alteration`."""

from __future__ import annotations

from collections import Counter

from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END, ROW_START
from sluice.cdc_engine.table_meta.change.evolution import SCHEMA_UNKNOWN, CannotFollowError, named_as_declared
from sluice.cdc_engine.table_meta.ddl.declared_type import declared_type
from sluice.cdc_engine.table_meta.ddl.statement import AlterTable, SetPeriod
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema

_TIMES = {"date", "datetime", "timestamp"}  # A period consists of two columns of one of these types.


def columns_in_period(
    statement: AlterTable, before: TableSchema, columns: tuple[DeclaredColumn, ...]
) -> tuple[str, ...]:
    """Returns the begin and end columns of the period that the statement adds, or () if it adds none. `before` is the schema before the
    statement, and `columns` are the columns after the statement.

    A table has at most one such period. If the table or an earlier item of the statement has the period, MariaDB ignores ADD PERIOD IF NOT
    EXISTS, even if the statement also drops the period. Raises CannotFollowError if the result depends on whether the table already has the
    period, and this is unknown.
    """
    period = next((item for item in statement.items if isinstance(item, SetPeriod)), None)
    if period is None or (period.if_not_exists and _changes_nothing(period, columns)):
        return ()
    if period.if_not_exists and _may_have_period(before):
        begin, end = period.columns
        raise CannotFollowError(
            SCHEMA_UNKNOWN,
            "the binlog does not show whether the table already had the period. If it had, the statement changed nothing. Otherwise, the "
            f"columns {begin} and {end} became NOT NULL",
        )
    return named_as_declared(period.columns, columns)


def _changes_nothing(period: SetPeriod, columns: tuple[DeclaredColumn, ...]) -> bool:
    """Returns whether the statement makes no column NOT NULL, whether or not the table already has the period. If the table lacks a column
    of the period, MariaDB accepted the statement only because the table already had the period.
    """
    nullable = {column.name.lower(): column.nullable for column in columns}
    found = [nullable.get(name.lower()) for name in period.columns]
    return None in found or True not in found


def _may_have_period(schema: TableSchema) -> bool:
    """Returns whether the table has two columns that can be the columns of a period: NOT NULL, and of the same type."""
    fitting = Counter(
        column.type
        for column in schema.columns
        if not column.nullable
        and column.generated not in {ROW_START, ROW_END}
        and declared_type(column.type).base in _TIMES
    )
    return any(count > 1 for count in fitting.values())
