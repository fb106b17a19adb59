"""Tests update events whose JSON values are differences, built byte by byte: where the values are, what is skipped, and what stops the
table.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sluice.cdc_engine.binlog.rows import decoder as rows
from sluice.cdc_engine.binlog.rows import diffs as rows_diffs
from sluice.cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import QUARANTINE, ValuePolicy
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, RowEventKind, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from tests.binlog.rows.event_bytes import HEADER_BYTES, ID, block
from tests.binlog.rows.json_bytes import REPLACE, difference, document

FIRST, SECOND = (Column(name=name, type_code=TypeCode.JSON, metadata=4, mysql_type="json") for name in ("a", "b"))
TABLE = TableVersion(database="shop", table="t", columns=(ID, FIRST, SECOND), key=("id",), version="1")
NAMES = ("id", "a", "b")
CHANGE = difference(REPLACE, "$[0]", 2)
Image = Mapping[str, bytes | int | None]


def image(values: Image) -> bytes:
    """Returns the bytes of a row image: the NULL bits, then the values. A value in bytes is a JSON document or a list of differences."""
    nulls = sum(1 << index for index, value in enumerate(values.values()) if value is None)
    parts = [
        struct.pack("<i", value) if isinstance(value, int) else struct.pack("<I", len(value)) + value
        for value in values.values()
        if value is not None
    ]
    return bytes([nulls]) + b"".join(parts)


def event(*updates: tuple[Image, bytes, Image]) -> bytes:
    """Returns the bytes of an update event. `updates` has the before image, the value options and the after image of each row."""
    before, _, after = updates[0]
    bitmaps = bytes(sum(1 << NAMES.index(name) for name in side) for side in (before, after))
    body = struct.pack("<IHHHB", 1, 0, 1, 2, 3) + bitmaps
    body += b"".join(image(old) + options + image(new) for old, options, new in updates)
    return struct.pack("<IBIIIH", 0, 39, 1, HEADER_BYTES + len(body), 0, 0) + body


def decode(content: bytes, table: TableVersion = TABLE, policy: ValuePolicy = ValuePolicy(), **kept: Any) -> list[Any]:  # noqa: B008
    given = block([(table, RowEventKind.UPDATE, content)], version=3)
    decoder = RowDecoder(table, policy=policy, **kept)
    found: list[Any] = []
    for batch in decoder.chunks(given, np.arange(1)):
        batch.validate(full=True)
        found += [(row[OPERATION], *(row.get(name) for name in NAMES)) for row in batch.to_pylist()]
    return found


def before(number: int = 1) -> dict[str, bytes | int | None]:
    return {"id": number, "a": document([number]), "b": document({"x": number})}


def test_one_column_is_whole_and_the_other_differences() -> None:
    whole, changed = {**before(), "b": document("w")}, {**before(), "a": CHANGE}
    assert decode(event((before(), b"\x01\x01", {**changed, "b": document("w")}))) == [(3, 1, "[2]", '"w"')]
    assert decode(event((before(), b"\x01\x02", {**whole, "b": b""}))) == [(3, 1, "[1]", '{"x": 1}')]
    assert decode(event((before(), b"\x00", whole))) == [(3, 1, "[1]", '"w"')]


def test_a_bit_stands_for_each_json_column_though_the_image_lacks_some() -> None:
    after = {"b": difference(REPLACE, "$.x", 5)}
    assert decode(event((before(), b"\x01\x02", after))) == [(3, 1, "[1]", '{"x": 5}')]


def test_null_is_no_difference() -> None:
    assert decode(event((before(), b"\x01\x03", {**before(), "a": None, "b": b""}))) == [(3, 1, None, '{"x": 1}')]


def test_a_row_that_moved_keeps_both_documents_also_without_a_key() -> None:
    content = event((before(), b"\x01\x01", {**before(), "id": 7, "a": CHANGE}))
    expected = [(2, 1, "[1]", '{"x": 1}'), (3, 7, "[2]", '{"x": 1}')]
    assert decode(content) == decode(content, dataclasses.replace(TABLE, key=())) == expected


@pytest.mark.parametrize(("name", "value"), [("CHUNK_BYTES_MAX", 1), ("CHUNK_BYTES_MAX", 200), ("DIFFERENCES_MAX", 3)])
def test_chunks_end_anywhere(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [(before(number), b"\x01\x01", {**before(number + 9), "a": CHANGE}) for number in range(20)]
    monkeypatch.setattr(rows_diffs if name == "DIFFERENCES_MAX" else rows, name, value)
    found = decode(event(*updates))
    assert [row[2] for row in found] == [text for number in range(20) for text in (f"[{number}]", "[2]")]


def test_a_column_that_is_not_captured_is_stepped_over() -> None:
    content = event((before(), b"\x01\x03", {**before(), "a": b"\xff", "b": b""}))
    assert decode(content, kept=np.array([0, 2], np.int32)) == [(3, 1, None, '{"x": 1}')]
    lacking = event(({"id": 1, "b": document(1)}, b"\x01\x03", {**before(), "a": b"\xff", "b": b""}))
    assert decode(lacking, kept=np.array([0, 2], np.int32)) == [(3, 1, None, "1")]


@pytest.mark.parametrize("undecodable", ["stop", QUARANTINE])
@pytest.mark.parametrize(
    ("old", "new", "state", "words"),
    [
        (before(), b"\x07", "TYPE_UNSUPPORTED", "column a .* ends too early"),
        (before(), difference(REPLACE, "$.none", 1), "TYPE_UNSUPPORTED", "column a .* does not have"),
        ({**before(), "a": None}, CHANGE, "TYPE_UNSUPPORTED", "column a .* the column is NULL in the before image"),
        ({**before(), "a": b"\x7f"}, CHANGE, "TYPE_UNSUPPORTED", "column a .* unknown type 127"),
        ({"id": 1, "b": document(1)}, CHANGE, "IMAGE_NOT_FULL", "document in column a .* binlog_row_image=FULL"),
    ],
)
def test_differences_that_give_no_document_stop_the_table(
    old: Image, new: bytes, state: str, words: str, undecodable: str
) -> None:
    with pytest.raises(TableStoppedError, match=words) as caught:
        decode(event((old, b"\x01\x01", {**before(), "a": new})), policy=ValuePolicy(undecodable=undecodable))
    assert caught.value.state == state


@pytest.mark.parametrize("options", [b"\x02", b"\x03", b"\xfc\x01\x00", b"\xff"])
def test_value_options_that_are_not_known_are_an_error(options: bytes) -> None:
    with pytest.raises(BinlogFormatError, match="value options"):
        decode(event((before(), options, before())))


def test_a_truncated_event_is_refused_or_ends_with_its_rows() -> None:
    content = event((before(), b"\x01\x01", {**before(), "a": CHANGE}))
    first = HEADER_BYTES + 13
    assert decode(content[:first]) == []
    for size in (*range(HEADER_BYTES, first), *range(first + 1, len(content))):
        with pytest.raises(BinlogFormatError, match="ends within"):
            decode(content[:size])
