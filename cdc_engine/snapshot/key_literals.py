"""Converts the values of key columns to SQL literals that are exact in the column's type, charset and collation. Called by `chunks`.

A `KeyColumn` describes a column. Its `printed` is the SQL that makes the server print a value as text without loss. Its `literal` converts
this text to a literal. Its `compared` is the SQL expression with which a statement compares the literal. A literal with a charset
introducer takes the collation of the column with which it is compared. The session must be one that `reader` opened: its time zone is UTC,
and it sends text as stored.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from sluice.cdc_engine.binlog.column_types.compressed import PLAIN
from sluice.cdc_engine.binlog.column_types.transcoding import is_text
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

# Alias of a charset → the charset that a literal names instead, because `utf8` means different charsets on different servers.
ALIAS_FREE = {"utf8": "utf8mb3"}
# The values of a SET with more members than this are cast to integers before they are compared. The server compares SET values as
# double-precision numbers, and this comparison is exact only up to this many members.
EXACT_BITS = 53
_DIGITS = re.compile(r"-?\d+(\.\d+)?")
_DOUBLE = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_MOMENT = re.compile(r"[-\d:. ]+")
_ADDRESS = re.compile(r"[0-9a-f:.-]+")
_HEX = re.compile(r"([0-9A-F]{2})*")
_PRINTED = re.compile(r"(uuid|inet4|inet6)\b", re.IGNORECASE)
# A query that returns 0 on a server where `>` compares UUIDs in another order than ORDER BY sorts them, and otherwise 1. MariaDB up to
# 10.11.5 has this defect for UUIDs of version 6 or later.
UUID_PROBE = (
    "SELECT CAST('e0910b91-9a8c-7c5f-8d2e-0123456789ab' AS UUID) > CAST('123e4567-e89b-12d3-a456-426655440000' AS UUID)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """How a key column is printed and compared in SQL. `printed` and `compared` are SQL with {} for the quoted column name. `literal`
    converts a printed text to a literal, and raises ValueError for a text that the server does not print.
    """

    printed: str
    literal: Callable[[str], str]
    compared: str = "{}"


def is_uuid(column: Column) -> bool:
    return column.mysql_type.lower().partition(" ")[0] == "uuid"


def as_text(found: KeyColumn) -> KeyColumn:
    """Returns a key column whose values are compared as printed text. Used for UUIDs if the server compares UUIDs in another order than it
    sorts them. The printed texts have a total order, which is all that chunks need. But no index has this order, so the server searches
    bounds without an index.
    """
    return dataclasses.replace(found, compared=found.printed)


def key_column(column: Column) -> KeyColumn | None:
    """Returns how a column is printed and compared in SQL. Returns None for a type that the server cannot order, or whose values have no
    exact literals.
    """
    if _PRINTED.match(column.mysql_type):
        return KeyColumn(printed="CAST({} AS CHAR)", literal=lambda text: f"'{_checked(_ADDRESS, text.lower())}'")
    code = TypeCode(column.type_code)
    if code in PLAIN or code in _STRINGS:
        return _string(column)
    if code is TypeCode.SET and len(column.labels) > EXACT_BITS:
        return KeyColumn(printed=_NUMBER, literal=_number, compared=_NUMBER)
    return _BY_CODE.get(code)


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a value of the key's type")
    return text


def _number(text: str) -> str:
    return _checked(_DIGITS, text)


def _double(text: str) -> str:
    """Returns the literal of a double, always with an exponent, because the server reads a literal without an exponent as a DECIMAL."""
    checked = _checked(_DOUBLE, text)
    return checked if "e" in checked else f"{checked}e0"


def _moment(text: str) -> str:
    return f"'{_checked(_MOMENT, text)}'"


def _string(column: Column) -> KeyColumn:
    charset = ALIAS_FREE.get(column.charset, column.charset)
    introducer = f"_{charset} " if is_text(charset) else ""
    return KeyColumn(printed="HEX({})", literal=lambda text: f"{introducer}x'{_checked(_HEX, text)}'")


_NUMBER = "CAST({} AS UNSIGNED)"
_STRINGS = {
    *(TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.STRING),
    *(TypeCode.TINY_BLOB, TypeCode.BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB),
}
_NUMBERS = (TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG, TypeCode.NEWDECIMAL)
_MOMENTS = (TypeCode.DATE, TypeCode.DATETIME, TypeCode.DATETIME2, TypeCode.TIMESTAMP, TypeCode.TIMESTAMP2)
_BY_CODE: dict[int, KeyColumn] = {
    **dict.fromkeys(_NUMBERS, KeyColumn(printed="CAST({} AS CHAR)", literal=_number)),
    **dict.fromkeys(
        (TypeCode.YEAR, TypeCode.BIT, TypeCode.ENUM, TypeCode.SET), KeyColumn(printed=_NUMBER, literal=_number)
    ),
    **dict.fromkeys((TypeCode.FLOAT, TypeCode.DOUBLE), KeyColumn(printed="{} * 1e0", literal=_double)),
    **dict.fromkeys((*_MOMENTS, TypeCode.TIME, TypeCode.TIME2), KeyColumn(printed="CAST({} AS CHAR)", literal=_moment)),
}
