"""Computes the value that existing rows get in a column that ALTER TABLE … ADD adds, because the binlog has no row events for these values.

Without DEFAULT, the value is NULL in a nullable column, and the type's zero value in a NOT NULL column. With a literal as DEFAULT, the
value is what the type stores for the literal (`literal_value`). With CURRENT_TIMESTAMP, the value is the time of the statement. For any
other DEFAULT, for example an expression, the functions raise InitialValueUnknownError, and the table stops and needs a re-snapshot. Pure
functions.
"""

from __future__ import annotations

import re

from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END, ROW_START
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession
from sluice.cdc_engine.table_meta.change import literal_value, moments
from sluice.cdc_engine.table_meta.change.literal_value import InitialValueUnknownError, LiteralColumn
from sluice.cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL, DeclaredType
from sluice.cdc_engine.table_meta.ddl.default_value import Default, DefaultNotation

INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "set", "tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_SPATIAL = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geomcollection",
)
# Type → value that existing rows get in a NOT NULL column without DEFAULT.
_ZEROS = {
    **dict.fromkeys((*INTEGERS, "year", "bit"), "0"),
    **dict.fromkeys(("float", "double"), "0.0"),
    **dict.fromkeys((*_TEXTS, *_BLOBS, *_SPATIAL), ""),
    "date": "0000-00-00",
    "datetime": "0000-00-00 00:00:00",
    "timestamp": "0000-00-00 00:00:00",
    "time": "00:00:00",
    "json": "null",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "inet4": "0.0.0.0",  # noqa: S104 - a value, nothing is bound to it
    "inet6": "::",
}
# Types with fractions of a second. The servers print as many digits of the fraction as the type has.
_FRACTIONS = {"time", "datetime", "timestamp"}
_BY_SERVER = {"timestamp"}  # Types whose implicit DEFAULT depends on a setting of the server.
EMPTY_STRING_IS_NULL = 1 << 32  # A flag of MariaDB's sql_mode in the binlog.
NO_ZERO_IN_DATE = 1 << 23


def initial_value(column: ColumnDefinition, session: StatementSession = NO_SESSION) -> str | None:
    """Returns the value that existing rows get in an added column, as MySQL prints it: bytes in hexadecimal, a TIMESTAMP in UTC, None for
    NULL.

    `column` has its final type and charset, with the table's defaults applied. `session` is the session that ran the statement. Raises
    InitialValueUnknownError if the value is not certain.
    """
    if column.auto_increment:
        raise InitialValueUnknownError("the column is AUTO_INCREMENT")
    if column.generated in {ROW_START, ROW_END}:
        raise InitialValueUnknownError("the column is the ROW START or ROW END column of a system-versioned table")
    if column.generated:
        raise InitialValueUnknownError("the column is a generated column")
    if column.default is None or _is_passed_over(column, column.default, session):
        if column.type.base in _BY_SERVER and not column.says_null and not session.explicit_timestamps:
            raise InitialValueUnknownError(
                "a TIMESTAMP that declares neither NULL nor DEFAULT gets both from the server's settings"
            )
        return None if column.nullable else _zero(column.type)
    return _default(column, column.default, session)


def known_default(column: ColumnDefinition, session: StatementSession = NO_SESSION) -> tuple[str | None, ...]:
    """Returns a tuple with the value that a row gets if its INSERT omits the column: the value as MySQL prints it, or None for NULL.
    Returns () if the value is not certain.
    """
    if column.generated or column.type.base in _BY_SERVER:
        return ()
    if column.default is not None and not column.default.is_literal:
        return ()
    try:
        return (initial_value(column, session),)
    except InitialValueUnknownError:
        return ()


def _default(column: ColumnDefinition, default: Default, session: StatementSession) -> str | None:
    if default.notation is DefaultNotation.EXPRESSION:
        raise InitialValueUnknownError("the DEFAULT of the column is an expression or a function")
    empty = default.notation is DefaultNotation.STRING and not default.value
    if default.notation is DefaultNotation.NULL or (empty and _empty_is_null(session)):
        return None
    there = LiteralColumn(column.type, column.charset or "", session.time_zone, session.client)
    if default.notation is DefaultNotation.CLOCK:
        return _clock(there, default, session)
    return _without_zero_in_date(literal_value.stored(there, default), column.type, session)


def _is_passed_over(column: ColumnDefinition, default: Default, session: StatementSession) -> bool:
    """Returns whether MySQL ignores the DEFAULT of a column. Outside strict mode, MySQL accepts DEFAULT '' for a TEXT or BLOB with a
    warning, and stores no default.
    """
    texts = session.flavour == MYSQL and column.type.base.endswith(("text", "blob"))
    return texts and default.notation is DefaultNotation.STRING and not default.value


def _without_zero_in_date(value: str | None, declared: DeclaredType, session: StatementSession) -> str | None:
    """Returns the zero date instead of a date with a zero month or day if the session has NO_ZERO_IN_DATE, as the server does outside
    strict mode. In strict mode, the server refuses the statement.
    """
    if value is None or declared.base not in {"date", "datetime"} or not session.sql_mode & NO_ZERO_IN_DATE:
        return value
    return re.sub(r"[1-9]", "0", value) if "-00" in value[:10] else value


def _empty_is_null(session: StatementSession) -> bool:
    return session.flavour == MARIADB and bool(session.sql_mode & EMPTY_STRING_IS_NULL)


def _zero(declared: DeclaredType) -> str:
    if declared.base == "enum":
        return declared.labels[0]
    if declared.base == "binary":
        return "00" * declared.length
    if declared.base == "decimal":
        return "0." + "0" * declared.scale if declared.scale > 0 else "0"
    if declared.base not in _ZEROS:
        raise InitialValueUnknownError(
            f"the column is NOT NULL without a DEFAULT, and Sluice does not know the zero value of its type {declared.base}"
        )
    digits = declared.length if declared.base in _FRACTIONS else 0
    return _ZEROS[declared.base] + ("." + "0" * digits if digits > 0 else "")


def _clock(column: LiteralColumn, default: Default, session: StatementSession) -> str:
    """Returns the time at which the statement began, for DEFAULT CURRENT_TIMESTAMP or CURRENT_DATE, in the format of the column."""
    digits = default.digits
    if digits < 0:
        digits = column.digits if session.flavour != MYSQL and column.type.base in _FRACTIONS else 0
    if column.type.base not in _SHOWN_BY_CLOCK[default.value or ""]:
        raise InitialValueUnknownError(
            f"the server converts the time in the DEFAULT of the column to {column.type.base}, and Sluice cannot tell the result"
        )
    if not session.started_us or (digits and not session.fraction):
        raise InitialValueUnknownError("the DEFAULT of the column is a time that the binlog does not contain")
    try:
        there = moments.at_epoch(session.started_us).truncated_to(digits if column.type.base != "date" else 0)
        if column.type.base != "timestamp":
            there = moments.in_zone(there, column.time_zone)
        return literal_value.shown_moment(column, there)
    except moments.NoMomentError as error:
        raise InitialValueUnknownError(
            f"Sluice cannot tell the value of the DEFAULT of the column ({error})"
        ) from error


_SHOWN_BY_CLOCK = {"now": ("datetime", "timestamp", "date"), "date": ("date",)}
