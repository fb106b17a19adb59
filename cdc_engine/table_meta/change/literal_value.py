"""Converts a literal after DEFAULT to the value that a column stores. Pure functions.

The rules cover literals for which MySQL 5.7 and 8.0 and MariaDB 10.11 and 11.4 all store the same value. Any other literal raises
InitialValueUnknownError, and the table needs a re-snapshot. A default is never guessed.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import re
import struct
from collections.abc import Callable

from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.table_meta.change import moments
from sluice.cdc_engine.table_meta.ddl.declared_type import DeclaredType
from sluice.cdc_engine.table_meta.ddl.default_value import Default, DefaultNotation

_NUMERIC = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PLAIN_NUMBER = re.compile(r"0|-?[1-9]\d*")
_DECIMALS = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP, Emax=10000, Emin=-10000)
_BITS_OF_INTEGER = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}")
_INET4 = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}")
_TEXT_BYTES = {"tinytext": 255, "text": 65535}


class InitialValueUnknownError(Exception):
    """Raised if the value of a default is not certain. The message tells why."""


@dataclasses.dataclass(frozen=True)
class LiteralColumn:
    """The column for which a default is converted.

    - `charset`: the charset of a text column, `binary` for bytes, otherwise empty.
    - `time_zone`: the time zone of the session that ran the statement. `client`: the charset of the statement's text. Each is empty if the
      binlog does not contain it.
    """

    type: DeclaredType
    charset: str
    time_zone: str = ""
    client: str = ""

    @property
    def digits(self) -> int:
        """How many digits of a fraction of a second the column's type has."""
        return max(self.type.length, 0)


def stored(column: LiteralColumn, literal: Default) -> str:
    """Returns the value that the column stores for the literal, as MySQL prints it: bytes in hexadecimal, a TIMESTAMP in UTC. Raises
    InitialValueUnknownError if the value is not certain.
    """
    try:
        return _STORES[column.type.base](column, literal)
    except KeyError:
        raise _converted(column) from None
    except moments.NoMomentError as error:
        raise InitialValueUnknownError(
            f"Sluice cannot tell the value of the DEFAULT of the column ({error})"
        ) from error


def shown_moment(column: LiteralColumn, there: moments.DateTimeValue) -> str:
    """Prints a date and time in the format of the column. For a TIMESTAMP, `there` is in UTC, otherwise in the session's time zone."""
    if column.type.base == "date":
        return there.with_digits(0).day()
    return f"{there.day()} {there.with_digits(column.digits).clock(column.digits)}"


def _converted(column: LiteralColumn) -> InitialValueUnknownError:
    return InitialValueUnknownError(
        f"the server converts the DEFAULT of the column to {column.type.base}, and Sluice cannot tell the result"
    )


# ── numbers ──


def _number(column: LiteralColumn, literal: Default) -> decimal.Decimal:
    """Returns the exact value of a numeric literal, or of a string that contains a number."""
    text = (literal.value or "").strip(" ")
    if literal.notation not in {DefaultNotation.NUMBER, DefaultNotation.STRING} or not _NUMERIC.fullmatch(text):
        raise _converted(column)
    return decimal.Decimal(text)


def _whole(column: LiteralColumn, literal: Default) -> int:
    number = _number(column, literal)
    if number != number.to_integral_value(context=_DECIMALS):
        raise _converted(column)
    return int(number)


def _integer(column: LiteralColumn, literal: Default) -> str:
    value, bits = _whole(column, literal), _BITS_OF_INTEGER[column.type.base]
    low, high = (0, (1 << bits) - 1) if column.type.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= value <= high:
        raise _converted(column)
    return str(value)


def _decimal(column: LiteralColumn, literal: Default) -> str:
    number, scale = _number(column, literal), max(column.type.scale, 0)
    value = number.quantize(decimal.Decimal(1).scaleb(-scale), context=_DECIMALS)
    too_large = abs(value) >= decimal.Decimal(10) ** (column.type.length - scale)
    if value != number or too_large or (column.type.unsigned and value < 0):
        raise _converted(column)
    return format(value if value else abs(value), "f")


def _floating(column: LiteralColumn, literal: Default) -> str:
    value = float(_number(column, literal))
    if math.isinf(value) or (column.type.unsigned and value < 0) or column.type.scale >= 0:
        raise _converted(column)
    try:
        value = struct.unpack("f", struct.pack("f", value))[0] if column.type.base == "float" else value
    except OverflowError:
        raise _converted(column) from None
    return repr(value)


def _bit(column: LiteralColumn, literal: Default) -> str:
    if literal.notation is DefaultNotation.STRING:
        raise _converted(column)
    is_bytes = literal.notation is DefaultNotation.BYTES
    value = int(literal.value or "0", 16) if is_bytes else _whole(column, literal)
    if not 0 <= value < 1 << column.type.length:
        raise _converted(column)
    return str(value)


def _year(column: LiteralColumn, literal: Default) -> str:
    value = _whole(column, literal)
    if not 1901 <= value <= 2155 and literal.value != "0000":
        raise _converted(column)
    return str(value)


# ── texts and bytes ──


def _characters(column: LiteralColumn, literal: Default) -> str:
    """Returns the characters of a string literal, or of an integer literal. Raises InitialValueUnknownError for any other literal. Also
    raises it for a string that is not ASCII, if its introducer (such as _latin1) names another charset than the client's.
    """
    value = literal.value or ""
    if literal.notation is DefaultNotation.NUMBER and _PLAIN_NUMBER.fullmatch(value):
        return value
    if literal.notation is not DefaultNotation.STRING:
        raise _converted(column)
    if literal.said not in {"", column.client} and not value.isascii():
        # `literal.said` is an introducer such as _latin1, and the server reads the literal's bytes in that charset. But `value` was decoded
        # in the client's charset, so its characters may be wrong.
        raise _converted(column)
    return value


def _text(column: LiteralColumn, literal: Default) -> str:
    value = _characters(column, literal)
    charset = charset_of_name(column.charset)
    try:
        octets = value.encode(charset.codec) if charset and charset.codec else b""
    except UnicodeEncodeError:
        raise _converted(column) from None
    if column.type.base in {"char", "varchar"}:
        fitting = value[: column.type.length] + value[column.type.length :].rstrip(" ")
        if len(fitting) > column.type.length >= 0:
            raise _converted(column)
        return fitting.rstrip(" ") if column.type.base == "char" else fitting
    if len(octets) > _TEXT_BYTES.get(column.type.base, len(octets)):
        raise _converted(column)
    return value


def _bytes(column: LiteralColumn, literal: Default) -> str:
    """Returns the bytes of a literal in hexadecimal. For BINARY(n), they are padded to n bytes."""
    value = literal.value or ""
    if literal.notation is DefaultNotation.BYTES:
        octets = bytes.fromhex(value)
    elif literal.notation is DefaultNotation.STRING and value.isascii():
        octets = value.encode("ascii")
    else:
        raise _converted(column)
    length = column.type.length
    if 0 <= length < len(octets):
        raise _converted(column)
    return (octets.ljust(length, b"\0") if column.type.base == "binary" else octets).hex()


# ── labels ──


def _enum(column: LiteralColumn, literal: Default) -> str:
    return column.type.labels[_label(column, _string(column, literal).rstrip(" "))]


def _set(column: LiteralColumn, literal: Default) -> str:
    text = _string(column, literal).rstrip(" ")
    chosen = {_label(column, part) for part in text.split(",")} if text else set()
    return ",".join(column.type.labels[number] for number in sorted(chosen))


def _string(column: LiteralColumn, literal: Default) -> str:
    """Returns the text of the DEFAULT of an ENUM or SET column. Raises InitialValueUnknownError if the DEFAULT is not a string literal. A
    number is not the text of a label: the server reads it as an index (ENUM) or as bits (SET).
    """
    if literal.notation is not DefaultNotation.STRING:
        raise _converted(column)
    return _characters(column, literal)


def _label(column: LiteralColumn, text: str) -> int:
    """Returns the index of a label, ignoring the case of ASCII letters. With a case-sensitive collation, a server refuses a DEFAULT in
    another case, so such a statement is never in the binlog.
    """
    labels = column.type.labels
    if text in labels:
        return labels.index(text)
    alike = [number for number, label in enumerate(labels) if label.isascii() and label.lower() == text.lower()]
    if len(alike) != 1:
        raise InitialValueUnknownError("the DEFAULT of the column does not match exactly one of its labels")
    return alike[0]


# ── dates and times ──


def _moment(column: LiteralColumn, literal: Default) -> str:
    is_zero = literal.notation is DefaultNotation.NUMBER and literal.value == "0"
    if not is_zero and literal.notation is not DefaultNotation.STRING and literal.said not in {"DATE", "TIMESTAMP"}:
        raise _converted(column)
    there = moments.moment(literal.value or "")
    if column.type.base == "timestamp" and not there.is_zero:
        there = moments.in_utc(there, column.time_zone)
    return shown_moment(column, there)


def _time(column: LiteralColumn, literal: Default) -> str:
    is_zero = literal.notation is DefaultNotation.NUMBER and literal.value == "0"
    if not is_zero and literal.notation is not DefaultNotation.STRING and literal.said != "TIME":
        raise _converted(column)
    return moments.time_text(literal.value or "", column.digits)


# ── UUIDs and IP addresses ──


def _uuid(column: LiteralColumn, literal: Default) -> str:
    if literal.notation is not DefaultNotation.STRING or not _UUID.fullmatch(literal.value or ""):
        raise _converted(column)
    digits = (literal.value or "").replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _inet4(column: LiteralColumn, literal: Default) -> str:
    if literal.notation is not DefaultNotation.STRING or not _INET4.fullmatch(literal.value or ""):
        raise _converted(column)
    return ".".join(str(int(part)) for part in (literal.value or "").split("."))


_STORES: dict[str, Callable[[LiteralColumn, Default], str]] = {
    **dict.fromkeys(_BITS_OF_INTEGER, _integer),
    "decimal": _decimal,
    **dict.fromkeys(("float", "double"), _floating),
    "bit": _bit,
    "year": _year,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), _text),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _bytes),
    "enum": _enum,
    "set": _set,
    **dict.fromkeys(("date", "datetime", "timestamp"), _moment),
    "time": _time,
    "uuid": _uuid,
    "inet4": _inet4,
}
