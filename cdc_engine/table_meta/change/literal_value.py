"""What a column of a type stores of a literal in its DEFAULT: the server's conversion, for the forms of which the outcome is certain.

Found out on MySQL 5.7 and 8.0 and MariaDB 10.11 and 11.4, which agree but for the rest of a second (MySQL rounds it, MariaDB cuts it off).
What no rule here covers raises InitialValueUnknownError, and the table stops: a default is never guessed. Pure; used by `initial_value`.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import re
import struct
from collections.abc import Callable

from cdc_engine.binlog.charsets.collations import charset_of_name
from cdc_engine.binlog.documents.jsonb import printed_double
from cdc_engine.table_meta.change import document_value, moments
from cdc_engine.table_meta.ddl.declared_type import DeclaredType
from cdc_engine.table_meta.ddl.default_value import Default, Notation

_NUMERIC = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DECIMALS = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP, Emax=10000, Emin=-10000)
_BITS_OF_INTEGER = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}")
_INET4 = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}")
_WIDTHS = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}  # bytes of their narrowest character
_TEXT_BYTES = {"tinytext": 255, "text": 65535}


class InitialValueUnknownError(Exception):
    """The message says why."""


@dataclasses.dataclass(frozen=True)
class Column:
    """`charset`: of a text, `binary` of bytes, empty of others. `rounds`: whether the server rounds a fraction of a second that is too
    long; None where not known. `time_zone` and `client`, the charset of the statement's text: of the session, empty where not told.
    `offsets`: an offset after a date counts, as it does since MySQL 8.0.19: a strict session of an earlier server would have refused it."""

    type: DeclaredType
    charset: str
    rounds: bool | None = None
    time_zone: str = ""
    client: str = ""
    offsets: bool = False

    @property
    def digits(self) -> int:
        return max(self.type.length, 0)


def stored(column: Column, literal: Default) -> str:
    """As `contracts.Column.default`. Raises InitialValueUnknownError where it is not certain."""
    try:
        return _STORES[column.type.base](column, literal)
    except KeyError:
        raise _converted(column) from None
    except moments.NoMomentError as error:
        raise InitialValueUnknownError(f"its DEFAULT: {error}") from error


def shown_moment(column: Column, there: moments.Moment) -> str:
    """A moment in UTC or, of all types but TIMESTAMP, on the session's clocks, as the column prints it."""
    there = there.with_digits(column.digits if column.type.base != "date" else 0, rounds=column.rounds)
    if column.type.base == "date":
        return there.day()
    return f"{there.day()} {there.clock(column.digits)}"


def _converted(column: Column) -> InitialValueUnknownError:
    return InitialValueUnknownError(f"its DEFAULT would be converted to {column.type.base}")


# ── numbers ──


def _number(column: Column, literal: Default) -> decimal.Decimal:
    """The literal's number, exactly."""
    if literal.notation is Notation.BYTES:
        return decimal.Decimal(int(literal.value or "0", 16))
    text = (literal.value or "").strip(" ")
    if literal.notation not in {Notation.NUMBER, Notation.STRING} or not _NUMERIC.fullmatch(text):
        raise _converted(column)
    return decimal.Decimal(text)


def _is_double(literal: Default) -> bool:
    """A number with an exponent is a double; one without is exact."""
    return literal.notation is Notation.NUMBER and "e" in (literal.value or "").lower()


def _whole(column: Column, literal: Default) -> int:
    """Rounded: exact numbers half away from zero, doubles half to even."""
    number = _number(column, literal)
    if _is_double(literal):
        return round(float(number))
    return int(number.quantize(decimal.Decimal(1), context=_DECIMALS))


def _integer(column: Column, literal: Default) -> str:
    value, bits = _whole(column, literal), _BITS_OF_INTEGER[column.type.base]
    low, high = (0, (1 << bits) - 1) if column.type.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= value <= high:
        raise _converted(column)
    return str(value)


def _decimal(column: Column, literal: Default) -> str:
    number = _number(column, literal)
    if _is_double(literal):
        number = decimal.Decimal(repr(float(number)))
    scale = max(column.type.scale, 0)
    value = number.quantize(decimal.Decimal(1).scaleb(-scale), context=_DECIMALS)
    if abs(value) >= decimal.Decimal(10) ** (column.type.length - scale) or (column.type.unsigned and value < 0):
        raise _converted(column)
    return format(value if value else abs(value), "f")


def _floating(column: Column, literal: Default) -> str:
    value = float(_number(column, literal))
    if math.isinf(value) or (column.type.unsigned and value < 0):
        raise _converted(column)
    if column.type.scale >= 0:
        value = _with_scale(value, column.type.scale)
    try:
        value = struct.unpack("f", struct.pack("f", value))[0] if column.type.base == "float" else value
    except OverflowError:
        raise _converted(column) from None
    return repr(value)


def _with_scale(value: float, scale: int) -> float:
    """FLOAT(M,D): as Field_real::truncate rounds, by the double's own arithmetic."""
    unit, below = 10.0**scale, math.floor(value)
    return below + round((value - below) * unit) / unit


def _bit(column: Column, literal: Default) -> str:
    of_text = literal.notation is Notation.STRING
    value = int.from_bytes(_ascii(column, literal), "big") if of_text else _whole(column, literal)
    if not 0 <= value < 1 << column.type.length:
        raise _converted(column)
    return str(value)


def _year(column: Column, literal: Default) -> str:
    value = _whole(column, literal)
    is_zero = value == 0 and (literal.notation is not Notation.STRING or len(literal.value or "") == 4)
    if not is_zero and 0 <= value < 100:
        value += 2000 if value < 70 else 1900
    if not is_zero and not 1901 <= value <= 2155:
        raise _converted(column)
    return str(value)


# ── texts and bytes ──


def _printed(column: Column, literal: Default) -> str:
    """A number as a text column gets it."""
    if literal.notation is not Notation.NUMBER or literal.value is None:
        raise _converted(column)
    if _is_double(literal):
        return printed_double(float(literal.value)).removesuffix(".0")
    minus, digits = literal.value.startswith("-"), literal.value.lstrip("+-")
    whole, point, fraction = digits.partition(".")
    shown = (whole.lstrip("0") or "0") + (point + fraction if fraction else "")
    return f"-{shown}" if minus and shown.strip("0.") else shown


def _ascii(column: Column, literal: Default) -> bytes:
    """Characters of which every charset makes the same bytes."""
    try:
        return (literal.value or "").encode("ascii")
    except UnicodeEncodeError:
        raise _converted(column) from None


def _characters(column: Column, literal: Default) -> str:
    """The literal's text, in whichever notation it is."""
    value = literal.value or ""
    if literal.notation is Notation.NUMBER:
        return _printed(column, literal)
    if literal.notation is Notation.BYTES:
        return _decoded(column, bytes.fromhex(value), literal.said or column.charset)
    if literal.notation not in {Notation.STRING, Notation.DOCUMENT}:
        raise _converted(column)
    if literal.said not in {"", column.client} and not value.isascii():
        raise _converted(column)  # the bytes of the client's charset are read as those of another one
    return value


def _decoded(column: Column, octets: bytes, charset_name: str) -> str:
    charset = charset_of_name(charset_name if charset_name != "binary" else column.charset)
    if charset is None or not charset.codec:
        raise _converted(column)
    width = _WIDTHS.get(charset.name, 1)
    try:
        return octets.rjust(-(-len(octets) // width) * width, b"\0").decode(charset.codec)
    except UnicodeDecodeError:
        raise _converted(column) from None


def _text(column: Column, literal: Default) -> str:
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


def _bytes(column: Column, literal: Default) -> str:
    """In hexadecimal; BINARY(n) is padded to its length."""
    if literal.notation is Notation.BYTES:
        octets = bytes.fromhex(literal.value or "")
    elif literal.notation is Notation.STRING:
        octets = _ascii(column, literal)
    else:
        octets = _printed(column, literal).encode("ascii")
    length = column.type.length
    if 0 <= length < len(octets):
        raise _converted(column)
    return (octets.ljust(length, b"\0") if column.type.base == "binary" else octets).hex()


# ── labels ──


def _enum(column: Column, literal: Default) -> str:
    labels = column.type.labels
    if literal.notation is Notation.NUMBER:
        number = _whole(column, literal)
        if not 1 <= number <= len(labels):
            raise _converted(column)
        return labels[number - 1]
    return labels[_place(column, _characters(column, literal).rstrip(" "))]


def _set(column: Column, literal: Default) -> str:
    labels = column.type.labels
    if literal.notation is Notation.NUMBER:
        number = _whole(column, literal)
        if not 0 <= number < 1 << len(labels):
            raise _converted(column)
        return ",".join(label for place, label in enumerate(labels) if number >> place & 1)
    text = _characters(column, literal).rstrip(" ")
    places = {_place(column, part) for part in text.split(",")} if text else set()
    return ",".join(labels[place] for place in sorted(places))


def _place(column: Column, text: str) -> int:
    """Of the label that the text means; ASCII letters of the other case are equal in every collation under which the server takes them."""
    labels = column.type.labels
    if text in labels:
        return labels.index(text)
    alike = [place for place, label in enumerate(labels) if label.isascii() and label.lower() == text.lower()]
    if len(alike) != 1:
        raise InitialValueUnknownError("its DEFAULT is not spelt like its labels")
    return alike[0]


# ── moments ──


def _moment(column: Column, literal: Default) -> str:
    if literal.notation is Notation.NUMBER:
        there = moments.moment(moments.number_of_date((literal.value or "").removeprefix("+")))
    elif literal.notation is Notation.STRING and (apart := moments.without_offset(literal.value or "")):
        return shown_moment(column, _with_offset(column, *apart))
    elif literal.notation is Notation.STRING or literal.said in {"DATE", "TIMESTAMP"}:
        there = moments.moment(literal.value or "")
    else:
        raise _converted(column)
    if column.type.base == "timestamp" and there.date != (0, 0, 0):
        there = moments.in_utc(there, column.time_zone)
    return shown_moment(column, there)


def _with_offset(column: Column, text: str, offset: str) -> moments.Moment:
    """In UTC for a TIMESTAMP, else on the session's clocks."""
    if not column.offsets:
        raise InitialValueUnknownError("its DEFAULT has an offset, which servers before MySQL 8.0.19 ignore")
    there = moments.in_utc(moments.moment(text), offset)
    return there if column.type.base == "timestamp" else moments.in_zone(there, column.time_zone)


def _time(column: Column, literal: Default) -> str:
    if literal.notation is Notation.STRING and (apart := moments.without_offset(literal.value or "")):
        there = _with_offset(column, *apart).with_digits(column.digits, rounds=column.rounds)
        return there.clock(column.digits)
    if literal.notation in {Notation.NUMBER, Notation.STRING} or literal.said == "TIME":
        return moments.time_text(literal.value or "", column.digits, rounds=column.rounds)
    raise _converted(column)


# ── others ──


def _uuid(column: Column, literal: Default) -> str:
    if literal.notation is not Notation.STRING or not _UUID.fullmatch(literal.value or ""):
        raise _converted(column)
    digits = (literal.value or "").replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _inet4(column: Column, literal: Default) -> str:
    if literal.notation is not Notation.STRING or not _INET4.fullmatch(literal.value or ""):
        raise _converted(column)
    return ".".join(str(int(part)) for part in (literal.value or "").split("."))


def _json(column: Column, literal: Default) -> str:
    """Of MySQL, which prints a document in a way of its own."""
    if literal.notation is Notation.DOCUMENT and literal.value is not None:
        return literal.value
    text = document_value.printed_text(literal.value or "") if literal.notation is Notation.STRING else None
    if text is None:
        raise _converted(column)
    return text


_STORES: dict[str, Callable[[Column, Default], str]] = {
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
    "json": _json,
}
