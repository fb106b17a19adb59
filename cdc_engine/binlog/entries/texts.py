"""Converts the values of whole columns to the texts that Canal sends, and gives each column the numbers of java.sql.Types that Canal sends
with the texts.

The lake's kernels (`column_types`) decode values whose text is the same in Canal and in the lake. Canal differs from the lake in some
types: it sends ENUM, SET and BIT as numbers, floats in Java's form, bytes as ISO-8859-1 text, and invalid dates unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.binlog.column_types import (
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
    decimals,
    type_of,
)
from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.column_types.numbers import BYTES
from sluice.cdc_engine.binlog.column_types.transcoding import decoder, is_text, transcode, transcoded_size
from sluice.cdc_engine.binlog.entries import java_reals
from sluice.cdc_engine.binlog.entries.numbers import SqlType
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, Int64s

Mask = npt.NDArray[np.bool_]
INTEGER_TYPES = {
    TypeCode.TINY: (SqlType.TINYINT, SqlType.SMALLINT),
    TypeCode.SHORT: (SqlType.SMALLINT, SqlType.INTEGER),
    TypeCode.INT24: (SqlType.INTEGER, SqlType.INTEGER),
    TypeCode.LONG: (SqlType.INTEGER, SqlType.BIGINT),
    TypeCode.LONGLONG: (SqlType.BIGINT, SqlType.DECIMAL),
}
MOMENTS = {
    TypeCode.DATE: SqlType.DATE,
    TypeCode.DATETIME: SqlType.TIMESTAMP,
    TypeCode.DATETIME2: SqlType.TIMESTAMP,
    TypeCode.TIME: SqlType.TIME,
    TypeCode.TIME2: SqlType.TIME,
    TypeCode.FLOAT: SqlType.REAL,
    TypeCode.DOUBLE: SqlType.DOUBLE,
    TypeCode.NEWDECIMAL: SqlType.DECIMAL,
}
TIMESTAMPS = (TypeCode.TIMESTAMP, TypeCode.TIMESTAMP2)
BLOBS = (TypeCode.TINY_BLOB, TypeCode.BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB)
SECONDS_CHARS = len("2020-01-01 00:00:00")
ISO_8859_1 = np.arange(256, dtype=np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Display:
    """The text forms that a consumer gets, where several are possible.

    `time_zone`: the zone in which TIMESTAMP values are shown. `decimals`: how to show a DECIMAL value whose fraction is zero: with
    `declared`, with all digits of the scale (1.000000); with `canal`, with one zero (1.0). `gtids`: whether headers have their
    transactions' GTIDs. `labels`: whether ENUM and SET values are sent as labels instead of numbers.
    """

    time_zone: str = "UTC"
    decimals: Literal["declared", "canal"] = "declared"
    gtids: bool = False
    labels: bool = False


DEFAULT_DISPLAY = Display()


@dataclasses.dataclass(frozen=True, eq=False)
class TextValues:
    """The texts of a column's values. `array`: strings, or bytes in UTF-8. `high`: which values get the wider sqlType
    (`ColumnTexts.of_high`), or None if no value gets it.
    """

    array: AnyArray
    high: Mask | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnTexts:
    """How the values of a column are converted to texts. `prefix_bytes`: the number of length bytes before each value, or 0 for values of
    the fixed size `width` (bytes). `sql_type`: the usual java.sql.Types number; `of_high`: the number for values that need the wider type;
    `of_null`: the number for NULL.
    """

    prefix_bytes: int = 0
    width: int = 0
    sql_type: int
    of_high: int = 0
    of_null: int = 0
    finish: Callable[[Values], TextValues]


def column_texts(column: Column, display: Display = DEFAULT_DISPLAY) -> ColumnTexts:
    """Returns how a column's values become texts. Raises TypeUnsupportedError if Sluice does not know the column's layout."""
    code = column.type_code
    if code in BYTES:
        return _integer(column)
    if code in (TypeCode.ENUM, TypeCode.SET) and not display.labels:
        size, kind = column.metadata & 0xFF, SqlType.INTEGER if code == TypeCode.ENUM else SqlType.BIT
        null = kind if code == TypeCode.ENUM else SqlType.BLOB
        return ColumnTexts(width=size, sql_type=kind, of_null=null, finish=functools.partial(_unsigned, size=size))
    if code == TypeCode.BIT:
        size = ((column.metadata >> 8) * 8 + (column.metadata & 0xFF) + 7) // 8
        finish = functools.partial(_unsigned, size=size, big_endian=True)
        return ColumnTexts(width=size, sql_type=SqlType.BIT, of_null=SqlType.BIT, finish=finish)
    if code == TypeCode.YEAR:
        return ColumnTexts(width=1, sql_type=SqlType.VARCHAR, of_null=SqlType.VARCHAR, finish=_years)
    return _through_type(column, display)


def _through_type(column: Column, display: Display) -> ColumnTexts:
    """Returns how a column's values become texts. The values are first decoded with the lake's `ColumnType` of the column."""
    lies = _layout(column)
    code, finish = column.type_code, lies.finish
    kind, null = int(MOMENTS.get(TypeCode(code), SqlType.VARCHAR)), 0
    if code == TypeCode.NEWDECIMAL:
        finish = functools.partial(_decimals, precision=column.metadata >> 8, scale=column.metadata & 0xFF)
        finish = functools.partial(_without_zeros, finish=finish) if display.decimals == "canal" else finish
    elif code in (TypeCode.FLOAT, TypeCode.DOUBLE):
        finish = functools.partial(_reals, finish=lies.finish)
    elif code in TIMESTAMPS:
        kind, finish = SqlType.TIMESTAMP, _in_zone(column, display.time_zone)
    elif code == TypeCode.JSON:
        null = SqlType.OTHER
    elif pa.types.is_binary(lies.arrow):
        kind, finish = SqlType.BLOB, _iso
    elif is_text(column.charset) and code in (*BLOBS, TypeCode.STRING, TypeCode.VARCHAR, TypeCode.VAR_STRING):
        kind = SqlType.CLOB if code in BLOBS else SqlType.CHAR if code == TypeCode.STRING else SqlType.VARCHAR
        finish = functools.partial(_characters, charset=column.charset, finish=lies.finish)
    return ColumnTexts(
        prefix_bytes=lies.prefix_bytes,
        width=lies.width,
        sql_type=kind,
        of_null=null or kind,
        finish=functools.partial(_shown, finish=finish),
    )


def _layout(column: Column) -> Any:
    """Returns the lake's `ColumnType` of a column. Text in an unsupported charset is decoded as bytes, which become ISO-8859-1 text."""
    try:
        return type_of(column, "text")
    except TypeUnsupportedError:
        if not is_text(column.charset):
            raise
        return type_of(dataclasses.replace(column, charset="binary", mysql_type=""), "text")


def _shown(values: Values, finish: Callable[[Values], AnyArray]) -> TextValues:
    array = finish(values)
    return TextValues(array if pa.types.is_string(array.type) else array.cast(pa.string()))


def _integer(column: Column) -> ColumnTexts:
    code = TypeCode(column.type_code)
    kind, wider = INTEGER_TYPES[code]
    size = BYTES[code]
    finish = (
        functools.partial(_unsigned, size=size, wraps=True)
        if column.unsigned
        else functools.partial(_signed, size=size)
    )
    return ColumnTexts(width=size, sql_type=kind, of_high=wider, of_null=kind, finish=finish)


def _signed(values: Values, size: int) -> TextValues:
    wide = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, size, True, wide)
    return TextValues(_printed(values, wide))


def _unsigned(values: Values, size: int, *, big_endian: bool = False, wraps: bool = False) -> TextValues:
    """Converts unsigned integers of `size` bytes, little-endian unless `big_endian` is True, to decimal texts. `wraps`: whether a value
    whose highest bit is set gets the wider sqlType, because Java's type of this size is signed.
    """
    wide = np.empty(values.count, np.int64)
    if big_endian:
        rows_gather.big_endian_integers(values.buffer, values.starts, size, wide)
    else:
        rows_gather.little_endian_integers(values.buffer, values.starts, size, False, wide)
    high = (wide >> (8 * size - 1) & 1).astype(np.bool_) if wraps else None
    return TextValues(_printed(values, wide.view(np.uint64) if size == 8 else wide), high)


def _years(values: Values) -> TextValues:
    wide = np.empty(values.count, np.int64)
    rows_gather.little_endian_integers(values.buffer, values.starts, 1, False, wide)
    printed: Any = _printed(values, wide + 1900)
    return TextValues(pc.if_else(pa.array((wide == 0) & (values.starts >= 0)), pa.scalar("0000"), printed))


def _printed(values: Values, numbers: Int64s | npt.NDArray[np.uint64]) -> AnyArray:
    kind = pa.uint64() if numbers.dtype == np.uint64 else pa.int64()
    array = pa.Array.from_buffers(kind, values.count, [values.validity(), buffer_of(numbers)])
    return array.cast(pa.string())


def _decimals(values: Values, precision: int, scale: int) -> AnyArray:
    return decimals.texts(values, decimals.digit_groups(precision, scale), scale, precision)


def _without_zeros(values: Values, finish: Callable[[Values], AnyArray]) -> AnyArray:
    """Shortens a fraction that has only zeros to one zero, as Canal does: 1.000000 becomes 1.0. Other fractions stay unchanged, for example
    1.500000.
    """
    found: AnyArray = pc.replace_substring_regex(finish(values), pattern=r"\.00+$", replacement=".0")
    return found


def _reals(values: Values, finish: Callable[[Values], AnyArray]) -> AnyArray:
    buffers: Any = finish(values).cast(pa.string()).buffers()
    _, offset_buffer, texts = buffers
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(values.count * java_reals.BYTES_MAX, np.uint8)
    read = np.frombuffer(texts, np.uint8) if texts is not None and texts.size else np.zeros(1, np.uint8)
    used = java_reals.print_java(read, np.frombuffer(offset_buffer, np.int32, values.count + 1), offsets, out)
    return pa.Array.from_buffers(
        pa.string(), values.count, [values.validity(), buffer_of(offsets), buffer_of(out[:used])]
    )


def _in_zone(column: Column, time_zone: str) -> Callable[[Values], AnyArray]:
    """Returns a function that prints the values of a TIMESTAMP column in a time zone. The zero timestamp has the same text in every zone:
    zeros.
    """
    in_utc = type_of(column, "text").finish
    if time_zone.upper() == "UTC":
        return in_utc
    instants, digits = type_of(column).finish, column.metadata if column.type_code == TypeCode.TIMESTAMP2 else 0

    def finish(values: Values) -> AnyArray:
        shown: Any = instants(values).cast(pa.timestamp("us", time_zone))
        local = pc.local_timestamp(shown).cast(pa.string())
        truncated = pc.utf8_slice_codeunits(local, 0, SECONDS_CHARS + (digits + 1 if digits else 0))
        moved: AnyArray = pc.coalesce(truncated, in_utc(values))
        return moved

    return finish


def _iso(values: Values) -> AnyArray:
    """Decodes bytes as ISO-8859-1: each byte becomes the character with the same number."""
    total, _ = transcoded_size(values.buffer, values.starts, values.sizes, ISO_8859_1)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(total, np.uint8)
    transcode(values.buffer, values.starts, values.sizes, ISO_8859_1, offsets, out)
    return pa.Array.from_buffers(pa.string(), values.count, [values.validity(), buffer_of(offsets), buffer_of(out)])


def _characters(values: Values, charset: str, finish: Callable[[Values], AnyArray]) -> AnyArray:
    """Decodes text. Bytes that are invalid in the charset become replacement characters, so that such a value does not stop a client."""
    try:
        found = finish(values)
    except ValueRefusedError:
        known = charset_of_name(charset)
        codec = known.codec if known is not None and known.codec else "latin-1"
        texts = [
            values.value(row).decode(codec, errors="replace") if values.starts[row] >= 0 else None
            for row in range(values.count)
        ]
        return pa.array(texts, pa.string())
    return found if pa.types.is_string(found.type) else decoder("latin1", "")(values)
