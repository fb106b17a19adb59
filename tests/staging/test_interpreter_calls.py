"""Tests for each column type, except those in STILL_BY_THE_ROW, that decoding makes no Python call per row. The interpreter's calls are
counted.

Twice the rows may cause only a few more calls for each chunk. Every row has different values, so that work per distinct value counts too.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS
from sluice.cdc_engine.binlog.column_types.entry import REGISTER, REGISTER_BY_NAME
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Block, Column, RowEventKind, TableVersion
from tests.binlog.rows.event_bytes import HEADER_BYTES, ID, block
from tests.binlog.rows.json_bytes import REPLACE, difference, document
from tests.binlog.rows.test_partial_json_rows import TABLE as DOCUMENTS
from tests.binlog.rows.test_partial_json_rows import Image
from tests.binlog.rows.test_partial_json_rows import event as partial_event

ROWS = 1500
CALLS_MORE_MAX = ROWS // 20
LABELS = tuple(f"l{number}" for number in range(60))
# By column type: why staging still makes a Python call for each row.
STILL_BY_THE_ROW = {
    "varchar_compressed": "zlib has no door that a kernel could use",
    "blob_compressed": "zlib has no door that a kernel could use",
}
DAY = (1 << 39 | 26001 << 22 | 1 << 17).to_bytes(5)  # 2000-01-01 as DATETIME has it


@dataclasses.dataclass(frozen=True)
class Kind:
    """Defines a type under test. `value` returns the bytes of the value in a given row, without their length. `prefix` is the number of
    bytes in which the image stores that length.
    """

    column: Column
    value: Callable[[int], bytes]
    prefix: int = 0


def of(code: TypeCode, value: Callable[[int], bytes], *, metadata: int = 0, prefix: int = 0, **fields: Any) -> Kind:
    return Kind(dataclasses.replace(Column(name="c", type_code=code, metadata=metadata), **fields), value, prefix)


def number(size: int, *, high_first: bool = False, least: int = 0) -> Callable[[int], bytes]:
    return lambda row: (least + row).to_bytes(size, "big" if high_first else "little")


def text(codec: str) -> Callable[[int], bytes]:
    """Returns a function that makes the text of a row: the row's number and a character that is not in ASCII. If the charset has no such
    character, the text ends with b.
    """
    character = next(each for each in "日한é€אกЯԱაb" if _encodes(each, codec))
    return lambda row: f"{row}{character}".encode(codec)


def _encodes(character: str, codec: str) -> bool:
    try:
        return bool(character.encode(codec))
    except UnicodeEncodeError:
        return False


def a_document(row: int) -> bytes:
    return document({"id": row, "price": row + 0.25, "name": f"näme {row}", "tags": ["a", None, True]}, small=True)


def deflated(row: int) -> bytes:
    return b"\0" + str(row).encode()


KINDS: dict[str, Kind] = {
    "tinyint": of(TypeCode.TINY, lambda row: bytes([row & 0xFF])),
    "smallint": of(TypeCode.SHORT, number(2)),
    "mediumint": of(TypeCode.INT24, number(3)),
    "int": of(TypeCode.LONG, number(4)),
    "bigint": of(TypeCode.LONGLONG, number(8)),
    "bigint unsigned": of(TypeCode.LONGLONG, number(8), unsigned=True),
    "float": of(TypeCode.FLOAT, lambda row: struct.pack("<f", row / 4)),
    "double": of(TypeCode.DOUBLE, lambda row: struct.pack("<d", row / 3)),
    "decimal(18,0)": of(TypeCode.NEWDECIMAL, lambda row: b"\x80" + bytes(3) + number(4, high_first=True)(row), metadata=18 << 8),
    "decimal(45,0)": of(TypeCode.NEWDECIMAL, lambda row: b"\x80" + bytes(15) + number(4, high_first=True)(row), metadata=45 << 8),
    "bit(20)": of(TypeCode.BIT, number(3, high_first=True), metadata=2 << 8 | 4),
    "bit(1)": of(TypeCode.BIT, lambda row: bytes([row & 1]), metadata=1),
    "year": of(TypeCode.YEAR, lambda row: bytes([row & 0x7F])),
    "date": of(TypeCode.DATE, number(3, least=2000 << 9 | 1 << 5 | 1)),
    "datetime(3)": of(TypeCode.DATETIME2, lambda row: DAY + number(2, high_first=True)(row), metadata=3),
    "datetime of old": of(TypeCode.DATETIME, number(8, least=20240101000000)),
    "timestamp(6)": of(TypeCode.TIMESTAMP2, lambda row: number(4, high_first=True, least=1)(row) + bytes(3), metadata=6),
    "timestamp of old": of(TypeCode.TIMESTAMP, number(4, least=1)),
    "time(3)": of(TypeCode.TIME2, lambda row: number(3, high_first=True, least=1 << 23)(row) + bytes(2), metadata=3),
    "time of old": of(TypeCode.TIME, number(3)),
    "char": of(TypeCode.STRING, text("utf_8"), metadata=40, prefix=1, charset="utf8mb4"),
    "binary": of(TypeCode.STRING, number(9, least=1 << 70), metadata=16, prefix=1),
    "varbinary": of(TypeCode.VARCHAR, number(9), metadata=40, prefix=1, charset="binary"),
    "blob": of(TypeCode.BLOB, number(9), metadata=2, prefix=2),
    "enum": of(TypeCode.ENUM, lambda row: bytes([row % 60]), metadata=1, labels=LABELS),
    "set": of(TypeCode.SET, number(8), metadata=8, labels=LABELS),
    "json": of(TypeCode.JSON, a_document, metadata=4, prefix=4),
    "geometry": of(TypeCode.GEOMETRY, number(25), metadata=4, prefix=4),
    "vector": of(TypeCode.VECTOR, number(8), metadata=4, prefix=4),
    "uuid": of(TypeCode.STRING, number(16), metadata=16, prefix=1, mysql_type="uuid"),
    "inet4": of(TypeCode.STRING, number(4), metadata=4, prefix=1, mysql_type="inet4"),
    "inet6": of(TypeCode.STRING, number(16), metadata=16, prefix=1, mysql_type="inet6"),
    "varchar_compressed": of(TypeCode.VARCHAR_COMPRESSED, deflated, metadata=41, prefix=1, charset="utf8mb4"),
    "blob_compressed": of(TypeCode.BLOB_COMPRESSED, deflated, metadata=2, prefix=2),
    **{
        f"varchar {name}": of(TypeCode.VARCHAR, text(charset.codec), metadata=80, prefix=1, charset=name)
        for name, charset in CHARSETS.items()
        if charset.codec
    },
}  # fmt: skip


def calls_of(kind: Kind, rows: int) -> int:
    """Returns the number of calls for decoding this many inserted rows of (id, value)."""
    table = TableVersion(database="shop", table="t", columns=(ID, kind.column), key=("id",), version="1")
    images = []
    for row in random.Random(1).sample(range(rows), rows):  # noqa: S311 - test data
        value = kind.value(row)
        length = len(value).to_bytes(kind.prefix, "little") if kind.prefix else b""
        images.append(b"\0" + struct.pack("<i", row) + length + value)
    body = struct.pack("<IHHH", 1, 0, 1, 2) + bytes([2, 3]) + b"".join(images)
    event = struct.pack("<IBIIIH", 0, 30, 1, HEADER_BYTES + len(body), 0, 0) + body
    return counted(table, block([(table, RowEventKind.INSERT, event)]), rows)


def calls_of_differences(rows: int) -> int:
    """Returns the number of calls for this many updates that log a JSON document as differences."""
    updates: list[tuple[Image, bytes, Image]] = []
    for row in range(rows):
        before: dict[str, bytes | int | None] = {"id": row, "a": document({"a": row, "b": [row, "x"]}), "b": None}
        after = {**before, "a": difference(REPLACE, "$.b[1]", f"y{row}")}
        updates.append((before, b"\x01\x01", after))
    return counted(DOCUMENTS, block([(DOCUMENTS, RowEventKind.UPDATE, partial_event(*updates))], version=3), rows)


def counted(table: TableVersion, given: Block, rows: int) -> int:
    """Returns the number of calls of Python functions and C functions while the decoder decodes the block. Requires that it decodes `rows`
    rows.
    """
    decoder, calls, staged = RowDecoder(table), 0, 0

    def count(_frame: object, what: str, _argument: object) -> None:
        nonlocal calls
        calls += what in {"call", "c_call"}

    gc.disable()  # A collection would call the finalizers of objects of other tests, which would count.
    sys.setprofile(count)
    try:
        for batch in decoder.chunks(given, np.arange(1)):
            staged += batch.num_rows
    finally:
        sys.setprofile(None)
        gc.enable()
    assert staged == rows
    return calls


@pytest.mark.parametrize("name", KINDS)
def test_twice_the_rows_cost_no_more_calls(name: str) -> None:
    kind = KINDS[name]
    calls_of(kind, 2)  # This call compiles, loads and makes tables.
    more = calls_of(kind, 2 * ROWS) - calls_of(kind, ROWS)
    assert (more <= CALLS_MORE_MAX) == (name not in STILL_BY_THE_ROW), f"{more} calls more for {ROWS} rows more"


def test_twice_the_documents_with_differences_cost_no_more_calls() -> None:
    calls_of_differences(2)
    more = calls_of_differences(2 * ROWS) - calls_of_differences(ROWS)
    assert more <= CALLS_MORE_MAX, f"{more} calls more for {ROWS} rows more"


def test_every_type_and_charset_is_counted() -> None:
    codes = {kind.column.type_code for kind in KINDS.values()}
    assert set(REGISTER) - codes == {TypeCode.VAR_STRING, TypeCode.TINY_BLOB, TypeCode.MEDIUM_BLOB, TypeCode.LONG_BLOB}
    assert set(REGISTER_BY_NAME) <= {kind.column.mysql_type for kind in KINDS.values()}
