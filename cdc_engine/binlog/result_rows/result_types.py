"""Defines for each column type how a SELECT reads it: the SQL expression, the form of the values in the binary protocol, and the function
that decodes them. Called by `decoder`.

Values are converted to the form of row images and decoded by the `finish` function of `column_types.type_of`. So they get the same Arrow
types and policies as values of row events. JSON, UUID, INET4 and INET6 need no conversion, because the server sends them as text.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np

from sluice.cdc_engine.binlog.column_types import compressed, transcoding, type_of
from sluice.cdc_engine.binlog.column_types.dates import DATETIME2_BYTES, fraction_bytes, old_fraction_digits
from sluice.cdc_engine.binlog.column_types.decimals import BYTES_OF_DIGITS, digit_groups
from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ColumnType, ValueRefusedError, Values
from sluice.cdc_engine.binlog.result_rows import images
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column

# Makes the server send an ENUM as its number and a SET as its bits. Without `| 0`, MariaDB sends four bytes instead of eight if the labels
# are short.
NUMBER = "(CAST({} AS UNSIGNED) | 0)"
# Type code of a result column → bytes of each value. Values of other types are preceded by their length.
WIDTHS = {
    TypeCode.TINY: 1,
    TypeCode.SHORT: 2,
    TypeCode.YEAR: 2,
    TypeCode.INT24: 4,
    TypeCode.LONG: 4,
    TypeCode.LONGLONG: 8,
    TypeCode.FLOAT: 4,
    TypeCode.DOUBLE: 8,
}
STRINGS = frozenset(
    (
        TypeCode.VARCHAR,
        TypeCode.TINY_BLOB,
        TypeCode.MEDIUM_BLOB,
        TypeCode.LONG_BLOB,
        TypeCode.BLOB,
        TypeCode.VAR_STRING,
        TypeCode.STRING,
    )
)
# Type code of the formats before MySQL 5.6 → type code of the current format for the same values.
_OF_TODAY = {
    TypeCode.TIMESTAMP: TypeCode.TIMESTAMP2,
    TypeCode.DATETIME: TypeCode.DATETIME2,
    TypeCode.TIME: TypeCode.TIME2,
}
_PRINTED = re.compile(r"(uuid|inet4|inet6)\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ResultType:
    """How a SELECT reads a column. `expression`: SQL with {} for the quoted name. `type`: the column type that row events have. `finish`:
    the function that decodes the values that the server sends.

    The server's description of the column must have a type code in `sent`, the charset `charset` (empty: any), and the unsigned flag
    `unsigned` (None: either).
    """

    expression: str = "{}"
    sent: frozenset[int]
    unsigned: bool | None = None
    charset: str = ""
    type: ColumnType
    finish: Callable[[Values], AnyArray]

    @property
    def width(self) -> int:
        """Bytes of each value, or 0 if a length precedes each value."""
        return WIDTHS.get(TypeCode(min(self.sent)), 0)


def result_type(column: Column, declared_charset: str, zero_dates: str = "null") -> ResultType:
    """Returns how a SELECT reads a column. `column`: the column, with the charset that its stored values really have. `declared_charset`:
    the charset that the source declares for the column. Raises TypeUnsupportedError for a type that Sluice does not support.
    """
    found = type_of(column, zero_dates)
    if _PRINTED.match(column.mysql_type):
        return _printed(found, column, "ascii")
    code = TypeCode(column.type_code)
    if code in _OF_TODAY:
        column = dataclasses.replace(column, type_code=_OF_TODAY[code], metadata=old_fraction_digits(column))
        return result_type(column, declared_charset, zero_dates)
    if code in _FORMS:
        return _FORMS[code](found, column)
    if code in compressed.PLAIN:
        plain = dataclasses.replace(column, type_code=compressed.PLAIN[code])
        return result_type(plain, declared_charset, zero_dates)
    return ResultType(sent=STRINGS, charset=declared_charset, type=found, finish=found.finish)


def _same(found: ColumnType, column: Column) -> ResultType:
    """Returns the result type for values that the server sends in the form of a row image: BIT, and little-endian numbers. The server may
    send a number with more bytes than the row image has; `finish` reads only the low bytes.
    """
    code = TypeCode(column.type_code)
    unsigned = column.unsigned if code in WIDTHS and code not in {TypeCode.FLOAT, TypeCode.DOUBLE} else None
    return ResultType(sent=frozenset({code}), unsigned=unsigned, type=found, finish=found.finish)


def _numbered(found: ColumnType, _column: Column) -> ResultType:
    return ResultType(expression=NUMBER, sent=frozenset({TypeCode.LONGLONG}), type=found, finish=found.finish)


def _printed(found: ColumnType, column: Column, charset: str) -> ResultType:
    finish = transcoding.decoder(charset, column.name)
    return ResultType(sent=STRINGS | {TypeCode.JSON}, type=found, finish=finish)


def _json(found: ColumnType, column: Column) -> ResultType:
    return _printed(found, column, "utf8mb4")


def _imaged(
    found: ColumnType, sent: TypeCode, width: int, imaged: Callable[[Values, np.typing.NDArray[np.uint8]], int | None]
) -> ResultType:
    finish = functools.partial(_through_images, imaged=imaged, width=width, finish=found.finish)
    return ResultType(sent=frozenset({sent}), type=found, finish=finish)


def _through_images(
    values: Values,
    imaged: Callable[[Values, np.typing.NDArray[np.uint8]], int | None],
    width: int,
    finish: Callable[[Values], AnyArray],
) -> AnyArray:
    out = np.zeros(values.count * width, np.uint8)
    refused = imaged(values, out)
    if refused is not None and refused != images.NOT_A_VALUE:
        raise ValueRefusedError(refused, "was sent by the server in a form that is not valid for its type")
    return finish(images.images_of(values, out, width))


def _year(found: ColumnType, _column: Column) -> ResultType:
    return _imaged(found, TypeCode.YEAR, 1, lambda values, out: images.year_images(values.buffer, values.starts, out))


def _date(found: ColumnType, _column: Column) -> ResultType:
    return _imaged(
        found, TypeCode.DATE, 3, lambda values, out: images.date_images(values.buffer, values.starts, values.sizes, out)
    )


def _moment(
    found: ColumnType, column: Column, sent: TypeCode, whole: int, kernel: Callable[..., int | None]
) -> ResultType:
    digits = column.metadata
    width = whole + fraction_bytes(digits)
    return _imaged(
        found,
        sent,
        width,
        lambda values, out: kernel(values.buffer, values.starts, values.sizes, digits, width, out),
    )


def _datetime(found: ColumnType, column: Column) -> ResultType:
    return _moment(found, column, TypeCode.DATETIME, DATETIME2_BYTES, images.datetime_images)


def _timestamp(found: ColumnType, column: Column) -> ResultType:
    return _moment(found, column, TypeCode.TIMESTAMP, 4, images.timestamp_images)


def _time(found: ColumnType, column: Column) -> ResultType:
    return _moment(found, column, TypeCode.TIME, 3, images.time_images)


def _decimal(found: ColumnType, column: Column) -> ResultType:
    groups, scale = digit_groups(column.metadata >> 8, column.metadata & 0xFF), column.metadata & 0xFF

    def imaged(values: Values, out: np.typing.NDArray[np.uint8]) -> int:
        row: int = images.decimal_images(
            values.buffer, values.starts, values.sizes, groups, BYTES_OF_DIGITS, scale, out
        )
        return row

    return _imaged(found, TypeCode.NEWDECIMAL, found.width, imaged)


_FORMS: dict[int, Callable[[ColumnType, Column], ResultType]] = {
    **dict.fromkeys((TypeCode.TINY, TypeCode.SHORT, TypeCode.INT24, TypeCode.LONG, TypeCode.LONGLONG), _same),
    **dict.fromkeys((TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.BIT), _same),
    **dict.fromkeys((TypeCode.ENUM, TypeCode.SET), _numbered),
    TypeCode.GEOMETRY: lambda found, _: ResultType(
        sent=frozenset({TypeCode.GEOMETRY}), type=found, finish=found.finish
    ),
    TypeCode.VECTOR: lambda found, _: ResultType(sent=STRINGS | {TypeCode.VECTOR}, type=found, finish=found.finish),
    TypeCode.YEAR: _year,
    TypeCode.DATE: _date,
    TypeCode.DATETIME2: _datetime,
    TypeCode.TIMESTAMP2: _timestamp,
    TypeCode.TIME2: _time,
    TypeCode.NEWDECIMAL: _decimal,
    TypeCode.JSON: _json,
}
