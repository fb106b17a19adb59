"""Tests that kernels print binary JSON as the Python reader does, and never read beyond the bytes of a damaged value."""

from __future__ import annotations

import contextlib
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog import little_endian
from sluice.cdc_engine.binlog.column_types import ValueRefusedError, type_of
from sluice.cdc_engine.binlog.documents import (
    containers,
    doubles,
    jsonb,
    print_documents,
    print_numbers,
    print_values,
    statuses,
)
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column
from tests.binlog.plain_kernels import Guarded, GuardedRoom, plain
from tests.binlog.rows.json_bytes import INTEGERS, Scalar, document, integer, opaque, render
from tests.binlog.rows.test_column_types import values

JSON = type_of(Column(name="d", type_code=TypeCode.JSON, metadata=4))
MOMENTS = (TypeCode.DATE, TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP)
CORNERS = (
    5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    9007199254740993.0,
    1e15,
    1e16,
    1e-14,
    1e-15,
    1e23,
    0.1,
    -0.0,
    2**-44,
)


def packed_decimal(number: Decimal) -> bytes:
    """Returns the number as the server packs a DECIMAL: see `column_types.decimals`."""
    sign, digits, exponent = number.as_tuple()
    scale = -int(exponent)
    text = "".join(map(str, digits)).rjust(scale + 1, "0")
    whole, fraction = text[: len(text) - scale], text[len(text) - scale :]
    groups = [whole[: len(whole) % 9], *(whole[at : at + 9] for at in range(len(whole) % 9, len(whole), 9))]
    groups += [fraction[at : at + 9] for at in range(0, scale, 9)]
    data = b"".join(int(group).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(group)]) for group in groups if group)
    if sign:
        data = bytes(byte ^ 0xFF for byte in data)
    return bytes([len(text), scale, data[0] ^ 0x80, *data[1:]])


def bits_of(number: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", number))[0])


FINITE = st.integers(0, 2**64 - 1).map(bits_of).filter(math.isfinite) | st.floats(allow_nan=False, allow_infinity=False)
ROUNDED = st.integers(0, 6).flatmap(lambda places: st.floats(-1e9, 1e9).map(lambda number: round(number, places)))
DOUBLES = FINITE | ROUNDED | st.sampled_from(CORNERS)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(
    lambda number: -30 <= int(number.as_tuple().exponent) <= 0 and len(number.as_tuple().digits) <= 60
)


def integers(kind: int) -> st.SearchStrategy[Scalar]:
    bits = struct.calcsize(INTEGERS[kind]) * 8
    least = -(1 << bits - 1) if INTEGERS[kind].islower() else 0
    return st.integers(least, least + (1 << bits) - 1).map(lambda number: integer(kind, number))


SCALARS = st.one_of(
    st.none() | st.booleans() | st.text(max_size=8) | st.text('\x00\x01\b\n"\\é😀a', max_size=40),
    DOUBLES,
    *(integers(kind) for kind in INTEGERS),
    DECIMALS.map(lambda number: opaque(TypeCode.NEWDECIMAL, packed_decimal(number))),
    st.builds(opaque, st.sampled_from(MOMENTS), st.binary(min_size=8, max_size=8)),
    st.builds(
        opaque,
        st.sampled_from([TypeCode.BIT, TypeCode.BLOB, TypeCode.VARCHAR, TypeCode.GEOMETRY]),
        st.binary(max_size=200),
    ),
)
KEYS = st.text(max_size=5) | st.sampled_from(["", 'q"', "k\n", "é"])
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)


def printed(*items: bytes | None) -> list[str | None]:
    return list(JSON.finish(values(*items)).to_pylist())


def expected(data: bytes) -> str | None:
    """Returns None if the value is refused."""
    try:
        return render(data)
    except jsonb.JsonFormatError:
        return None


@settings(max_examples=80)
@given(st.lists(st.tuples(NESTED, st.booleans()), max_size=20))
@example([("x" * 70_000, True), ({"k": "x" * 70_000}, True), (None, False)])
def test_documents_are_printed_as_the_reader_prints_them(drawn: list[tuple[Any, bool]]) -> None:
    items = [document(value, small=small) for value, small in drawn]
    assert printed(None, *items, b"") == [None, *map(render, items), "null"]


def test_doubles_of_every_exponent_are_printed_as_the_reader_prints_them() -> None:
    fractions = (0, 1, 2, 1 << 51, (1 << 52) - 1, 0x5555555555555)
    numbers = [bits_of(exponent << 52 | fraction) for exponent in range(2047) for fraction in fractions]
    numbers += [bits_of(fraction) for fraction in range(1, 500)]
    assert printed(document(numbers)) == [render(document(numbers))]


def test_a_document_of_the_greatest_depth_is_printed_and_no_deeper_one() -> None:
    deep: Any = []
    for _ in range(jsonb.DEPTH_MAX):
        deep = [deep]
    assert printed(document(deep)) == [render(document(deep))]
    with pytest.raises(ValueRefusedError, match="parts of the document overlap"):
        printed(document([deep]))


def test_text_longer_than_its_documents_fits() -> None:
    control = document(["\x01" * 5000, "é"])
    assert printed(*[control] * 3) == [render(control)] * 3


def test_a_damaged_document_is_refused_by_its_row() -> None:
    whole = document({"a": 1})
    for damaged, words in (
        (whole[:-3], "larger than its stated size"),
        (b"\x0c\x02\xff\xfe", "not UTF-8"),
        (b"\x63", "unknown type"),
    ):
        with pytest.raises(ValueRefusedError, match=words) as refused:
            printed(whole, None, damaged, whole)
        assert refused.value.row == 2


DAMAGE = st.lists(
    st.tuples(st.integers(0, 300), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)), max_size=6
)


def damaged(data: bytes, changes: list[tuple[int, int]], missing: int) -> bytes:
    changed = bytearray(data)
    for index, byte in changes:
        changed[index % len(changed)] = byte
    return bytes(changed[: len(changed) - missing % len(changed)])


@settings(max_examples=250)
@given(NESTED, st.booleans(), DAMAGE, st.integers(0, 3))
def test_damaged_documents_are_refused_where_the_reader_refuses_them(
    value: Any, small: bool, changes: list[tuple[int, int]], missing: int
) -> None:
    data = damaged(document(value, small=small), changes, missing)
    try:
        assert printed(data) == [expected(data)]
    except ValueRefusedError:
        assert expected(data) is None


PLAIN = plain(little_endian, doubles, print_numbers, print_values, containers, print_documents)


def print_plainly(data: bytes, room: int) -> str | int:
    """Prints a document with the kernels as plain Python functions, which check every access to a buffer. Returns the text, or the status
    if the document cannot be printed.
    """
    out, offsets = GuardedRoom(room), [0, 0]
    stack = np.full(containers.STACK_SHAPE, -1, np.int64)
    with np.errstate(over="ignore"):
        status, _ = PLAIN.print_documents(Guarded(data), np.array([0]), np.array([len(data)]), 0, offsets, out, stack)
    return out.data[: offsets[1]].decode() if status == print_documents.DONE else int(status)


@settings(max_examples=150, deadline=None)
@given(NESTED, st.booleans(), DAMAGE, st.integers(0, 3), st.integers(0, 400))
@example({"a": [1, 2.5, "x", None]}, True, [], 0, 0)
def test_nothing_is_read_or_written_outside(
    value: Any, small: bool, changes: list[tuple[int, int]], missing: int, room: int
) -> None:
    data = damaged(document(value, small=small), changes, missing)
    try:
        found = print_plainly(data, room)
        assert found in (expected(data), statuses.ROOM) or expected(data) is None
        assert print_plainly(data, 8 * len(data) + 1000) == expected(data) or expected(data) is None
    except UnicodeDecodeError:
        assert expected(data) is None


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80))
def test_garbage_is_never_read_outside(data: bytes) -> None:
    try:
        found = print_plainly(data, 8 * len(data) + 1000)
        assert found == expected(data) or (isinstance(found, int) and expected(data) is None)
    except UnicodeDecodeError:
        assert expected(data) is None


# Contains a value of every kind, so that the test can damage a byte for each check of the kernels.
EVERY_KIND: dict[str, Any] = {
    "a": [None, True, 1.5, -1e300, "x\n", integer(5, -7), integer(7, 70_000), integer(10, 1 << 63)],
    "bb": opaque(TypeCode.NEWDECIMAL, packed_decimal(Decimal("-1234567890123.0450"))),
    "cc": opaque(TypeCode.DATETIME, bytes(range(8))),
    "dd": {"": opaque(TypeCode.BIT, b"bits of some length"), "é": {}, "f": []},
}


@pytest.mark.parametrize("small", [True, False])
def test_each_buffer_is_enough_or_reported_as_too_small(small: bool) -> None:
    data = document(EVERY_KIND, small=small)
    found = [print_plainly(data, room) for room in range(0, len(render(data)) + 400, 3)]
    assert set(found) == {statuses.ROOM, render(data)}
    assert print_plainly(document("\x01" * 9, small=small), 30) == statuses.ROOM


@pytest.mark.parametrize("small", [True, False])
def test_no_byte_that_is_wrong_or_missing_leads_outside(small: bool) -> None:
    whole = document(EVERY_KIND, small=small)
    for index in range(len(whole)):
        for data in (whole[:index], *(whole[:index] + bytes([byte]) + whole[index + 1 :] for byte in (0, 0x7F, 0xFF))):
            with contextlib.suppress(UnicodeDecodeError):
                found = print_plainly(data, 4000)
                assert found == expected(data) or expected(data) is None


def test_a_truncated_scalar_is_refused() -> None:
    for value in EVERY_KIND["a"] + [EVERY_KIND["bb"], EVERY_KIND["cc"]]:
        data = document(value)
        assert all(isinstance(print_plainly(data[:end], 400), int) for end in range(1, len(data)))
    short = packed_decimal(Decimal("123456789.12"))[:-1]
    assert print_plainly(document(opaque(TypeCode.NEWDECIMAL, short)), 400) == statuses.TRUNCATED
