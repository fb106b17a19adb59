"""Finds the columns whose existing values an ALTER TABLE changes, although a comparison of the types does not show the change. Pure
functions.

The binlog has no row events for these values, so the table must be re-snapshotted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN, ROW_END, ROW_START
from sluice.cdc_engine.contracts import StatementSession
from sluice.cdc_engine.table_meta.change.initial_value import INTEGERS
from sluice.cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from sluice.cdc_engine.table_meta.ddl.declared_type import DeclaredType, declared_type
from sluice.cdc_engine.table_meta.schema import DeclaredColumn

# Bits of sql_mode in the binlog.
NO_AUTO_VALUE_ON_ZERO = 1 << 19
PAD_CHAR_TO_FULL_LENGTH = 1 << 31
DELTA_DECIMAL_DIGITS_MAX = 38  # The lake stores a decimal with more digits as text.
_ROW_TIMES = {ROW_START, ROW_END, *HIDDEN}


@dataclasses.dataclass(frozen=True)
class ChangedColumn:
    """A column that exists before and after an ALTER TABLE. `definition` is the column's definition in the statement, or None if the
    statement does not define the column.
    """

    was: DeclaredColumn
    now: DeclaredColumn
    definition: ColumnDefinition | None


def why_rewritten(columns: Sequence[ChangedColumn], session: StatementSession, *, converts: bool) -> str:
    """Returns a sentence that names a column whose existing values the statement changes, or "" if there is no such column. `converts`
    tells whether the statement has CONVERT TO CHARACTER SET.
    """
    recalculated = converts or any(_is_other_input(each) for each in columns)
    for each in columns:
        if why := _why(each, session, recalculated=recalculated):
            return f"the statement changed existing values of the column {each.now.name}, and the binlog does not contain them: {why}"
    return ""


def _why(column: ChangedColumn, session: StatementSession, *, recalculated: bool) -> str:
    was, now, definition = column.was, column.now, column.definition
    if _is_generated(now) and (definition is not None or recalculated):
        return "the server calculates the values of a generated column again"
    if definition is not None and definition.auto_increment and _is_numbered(was, session):
        return "the server numbers rows that have 0 or NULL when a column becomes AUTO_INCREMENT"
    before, after = declared_type(was.type), declared_type(now.type)
    if was.nullable and not now.nullable and after.base == "timestamp":
        return "NULL becomes the current time in a TIMESTAMP that becomes NOT NULL"
    if before.base == "char" != after.base and session.sql_mode & PAD_CHAR_TO_FULL_LENGTH:
        return "values of a CHAR are padded with spaces in the sql_mode PAD_CHAR_TO_FULL_LENGTH"
    if _has_other_digits(before, after):
        return "the lake stores the values as text, and the new type prints another number of fraction digits"
    return ""


def _is_generated(column: DeclaredColumn) -> bool:
    return bool(column.generated) and column.generated not in _ROW_TIMES


def _is_other_input(column: ChangedColumn) -> bool:
    """Returns whether generated columns that use this column may get other values. The collations of texts are not in the schema history,
    so each new definition of a text column counts as a new collation.
    """
    was, now = column.was, column.now
    texts = column.definition is not None and declared_type(now.type).has_charset
    return texts or (was.type, was.charset) != (now.type, now.charset) or was.nullable > now.nullable


def _is_numbered(was: DeclaredColumn, session: StatementSession) -> bool:
    """Returns whether the server replaces zeros or NULLs of a column that is AUTO_INCREMENT now. The server does not do so if the column
    was AUTO_INCREMENT before. The schema history does not store AUTO_INCREMENT, so the result is False for a NOT NULL column without a
    known default, which may have been AUTO_INCREMENT.
    """
    return was.nullable or (bool(was.default) and not session.sql_mode & NO_AUTO_VALUE_ON_ZERO)


def _has_other_digits(before: DeclaredType, after: DeclaredType) -> bool:
    if before.base == after.base == "time":
        return max(before.length, 0) != max(after.length, 0)
    if after.base != "decimal" or after.length <= DELTA_DECIMAL_DIGITS_MAX:
        return False
    scale = 0 if before.base in INTEGERS else before.scale if before.base == "decimal" else None
    return scale is not None and scale != after.scale
