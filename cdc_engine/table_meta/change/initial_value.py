"""What rows that are already there hold in a column that ALTER TABLE … ADD gives them: the binlog has no row events for them.

A column that may be NULL and has no DEFAULT gives NULL; one with a literal DEFAULT gives what the type stores of it (`literal_value`); a
NOT NULL column without one gives the type's own zero; CURRENT_TIMESTAMP gives the time of the statement; an expression that is constant
(`constant_expression`), also a generated column's, gives its value. What cannot be said for certain is an error, and the table stops.
Pure; used by `evolution`.
"""

from __future__ import annotations

import dataclasses
import re

from cdc_engine.binlog.rows.history_rows import ROW_END, ROW_START
from cdc_engine.contracts import NO_SESSION, StatementSession
from cdc_engine.table_meta.change import literal_value, moments
from cdc_engine.table_meta.change.constant_expression import COMPUTED, NotConstantError, constant_value
from cdc_engine.table_meta.change.literal_value import Column, InitialValueUnknownError
from cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL, DeclaredType
from cdc_engine.table_meta.ddl.default_value import Default, Notation
from cdc_engine.table_meta.ddl.reader import STRICT

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
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
# NOT NULL without DEFAULT: what the type has then
_ZEROS = {
    **dict.fromkeys((*_INTEGERS, "year", "bit"), "0"),
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
_FRACTIONS = {"time", "datetime", "timestamp"}  # printed with as many digits as the type has
_BY_SERVER = {"timestamp"}  # without a DEFAULT it has one or none by a setting of the server
TIME_TRUNCATE_FRACTIONAL, TIME_ROUND_FRACTIONAL = 1 << 32, 1 << 34  # bits of sql_mode, MySQL's and MariaDB's
EMPTY_STRING_IS_NULL = 1 << 32  # MariaDB's
NO_ZERO_IN_DATE = 1 << 23


def initial_value(column: ColumnDefinition, session: StatementSession = NO_SESSION) -> str | None:
    """The value as MySQL would print it, of bytes their hexadecimal, a TIMESTAMP in UTC; None for NULL. `session`: what ran the statement.

    `column`: with the type and the charset that its table gave it. Raises InitialValueUnknownError where it cannot be said.
    """
    if column.auto_increment:
        raise InitialValueUnknownError("it is AUTO_INCREMENT")
    if column.generated:
        return _generated(column, session)
    if column.default is None or _is_passed_over(column, column.default, session):
        if column.type.base in _BY_SERVER and not column.says_null and not session.explicit_timestamps:
            raise InitialValueUnknownError("a TIMESTAMP without NULL and DEFAULT has them from the server's settings")
        return None if column.nullable else _zero(column.type)
    return _default(column, column.default, session)


def known_default(column: ColumnDefinition, session: StatementSession = NO_SESSION) -> tuple[str | None, ...]:
    """As `contracts.Column.default`: what a row gets whose INSERT leaves the column out, which is what rows already there would."""
    if column.generated or column.type.base in _BY_SERVER:
        return ()
    if column.default is not None and not column.default.is_literal:
        return ()
    try:
        return (initial_value(column, session),)
    except InitialValueUnknownError:
        return ()


def _generated(column: ColumnDefinition, session: StatementSession) -> str | None:
    if column.generated in {ROW_START, ROW_END}:
        raise InitialValueUnknownError("it has the times at which rows begin and end")
    if column.computed is None:
        raise InitialValueUnknownError("it is a generated column")
    computed = _constant(column, column.computed, session, "it is a generated column")
    if not computed.is_literal:
        raise InitialValueUnknownError("it is a generated column")
    return _default(column, computed, session)


def _default(column: ColumnDefinition, default: Default, session: StatementSession) -> str | None:
    default = _constant(column, default, session, "its DEFAULT is an expression or a function")
    empty = default.notation is Notation.STRING and not default.value
    if default.notation is Notation.NULL or (empty and _empty_is_null(session)):
        return None
    told = Column(
        column.type,
        column.charset or "",
        _rounds(session),
        session.time_zone,
        session.client,
        offsets=session.flavour == MYSQL and bool(session.sql_mode & STRICT),
    )
    if default.notation is Notation.CLOCK:
        return _clock(told, default, session)
    return _without_zero_in_date(literal_value.stored(told, default), column.type, session)


def _is_passed_over(column: ColumnDefinition, default: Default, session: StatementSession) -> bool:
    """Of a text, MySQL takes DEFAULT '' with a warning where the session is not strict, and has none."""
    texts = session.flavour == MYSQL and column.type.base.endswith(("text", "blob"))
    return texts and default.notation is Notation.STRING and not default.value


def _without_zero_in_date(value: str | None, declared: DeclaredType, session: StatementSession) -> str | None:
    """A date without a day or a month is the zero date for a session with NO_ZERO_IN_DATE; a strict one refuses it."""
    if value is None or declared.base not in {"date", "datetime"} or not session.sql_mode & NO_ZERO_IN_DATE:
        return value
    return re.sub(r"[1-9]", "0", value) if "-00" in value[:10] else value


def _constant(column: ColumnDefinition, default: Default, session: StatementSession, otherwise: str) -> Default:
    """What an expression makes that is the same for every row; anything else as it is. `otherwise`: the sentence where it is not."""
    if default.notation is not Notation.EXPRESSION:
        return default
    if _empty_is_null(session):
        raise InitialValueUnknownError(f"{otherwise}, of a session in which an empty string is NULL")
    try:
        made = constant_value(default.inside, session)
    except NotConstantError as error:
        raise InitialValueUnknownError(f"{otherwise} ({error})") from error
    if made.said == COMPUTED and session.flavour != MYSQL and column.type.base in _TEXTS:
        raise InitialValueUnknownError(f"{otherwise} (how many digits the server prints of a decimal is not known)")
    return made


def _empty_is_null(session: StatementSession) -> bool:
    return session.flavour == MARIADB and bool(session.sql_mode & EMPTY_STRING_IS_NULL)


def _rounds(session: StatementSession) -> bool | None:
    """Whether a fraction of a second that is too long is rounded."""
    if session.flavour == MYSQL:
        return not session.sql_mode & TIME_TRUNCATE_FRACTIONAL
    return bool(session.sql_mode & TIME_ROUND_FRACTIONAL) if session.flavour == MARIADB else None


def _zero(declared: DeclaredType) -> str:
    if declared.base == "enum":
        return declared.labels[0]
    if declared.base == "binary":
        return "00" * declared.length
    if declared.base == "decimal":
        return "0." + "0" * declared.scale if declared.scale > 0 else "0"
    if declared.base not in _ZEROS:
        raise InitialValueUnknownError(f"it is NOT NULL without a DEFAULT, and of type {declared.base}")
    digits = declared.length if declared.base in _FRACTIONS else 0
    return _ZEROS[declared.base] + ("." + "0" * digits if digits > 0 else "")


def _clock(column: Column, default: Default, session: StatementSession) -> str:
    """CURRENT_TIMESTAMP, or what else tells the time at which the statement began, in a column of this type."""
    of_utc, part = (default.value or "").startswith("utc "), (default.value or "").removeprefix("utc ")
    digits = default.digits
    if digits < 0:
        fits = part == "now" and session.flavour != MYSQL and column.type.base in _FRACTIONS
        digits = column.digits if fits else 0
    if column.type.base not in _SHOWN_BY_CLOCK.get(part, ()):
        raise InitialValueUnknownError(f"its DEFAULT, a time, would be converted to {column.type.base}")
    if not session.started_us or (digits and not session.fraction):
        raise InitialValueUnknownError("its DEFAULT is a time that the binlog does not tell")
    try:
        there = moments.at_epoch(session.started_us).with_digits(digits, rounds=False)
        return _shown(column, there, part if not of_utc else f"utc {part}", digits, default.moves)
    except moments.NoMomentError as error:
        raise InitialValueUnknownError(f"its DEFAULT: {error}") from error


def _shown(
    column: Column, there: moments.Moment, what: str, digits: int, moves: tuple[tuple[int, int], ...] = ()
) -> str:
    """Of a moment in UTC what a clock shows that is ahead by `moves`, in the column."""
    base, of_utc, part = column.type.base, what.startswith("utc "), what.removeprefix("utc ")
    if base == "timestamp" and not of_utc and not moves:
        return literal_value.shown_moment(column, there)
    if not of_utc:
        there = moments.in_zone(there, column.time_zone)
    if part == "date":
        there = dataclasses.replace(there, seconds=0, micros=0)
    for months, micros in moves:
        there = there.months_later(months).moved(micros)
    if base == "timestamp":  # the clocks of UTC, read as those of the session
        there = moments.in_utc(there, column.time_zone)
    if base == "varchar":
        text = {"date": there.day(), "time": there.clock(digits)}.get(part, f"{there.day()} {there.clock(digits)}")
        return literal_value.stored(column, Default(text))
    if base == "time":
        return there.with_digits(column.digits, rounds=column.rounds).clock(column.digits)
    return literal_value.shown_moment(column, there)


_SHOWN_BY_CLOCK = {
    "now": ("datetime", "timestamp", "date", "time", "varchar"),
    "date": ("date", "datetime", "varchar"),
    "time": ("time", "varchar"),
}
