"""Tests binary JSON that no server wrote: a damaged value raises JsonFormatError, and does not keep the decoder busy."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.documents.jsonb import JsonFormatError, printed_double
from tests.binlog.rows.json_bytes import render

DOCUMENT = bytes.fromhex("00 0300 2f00 1900 0100 1a00 0100 1b00 0100 0b 0100 05 0700 02 1c00 61 62 63".replace(" ", ""))


def nested(depth: int) -> bytes:
    """Returns nested arrays. Each array has two entries that point to the same child."""
    document = b"\x02" + struct.pack("<HH", 0, 4)
    for _ in range(depth):
        body = document[1:]
        document = b"\x02" + struct.pack("<HH", 2, 10 + len(body)) + b"\x02\x0a\x00" * 2 + body
    return document


def test_no_bytes_are_the_null() -> None:
    assert render(b"") == "null"


def test_entries_that_share_a_child_do_not_take_for_ever() -> None:
    assert render(nested(1)) == "[[], []]"
    with pytest.raises(JsonFormatError, match="parts of the document overlap"):
        render(nested(60))


def test_an_offset_backwards_is_refused() -> None:
    with pytest.raises(JsonFormatError, match="points into the header"):
        render(b"\x02" + struct.pack("<HH", 1, 7) + b"\x02\x00\x00")


@given(st.binary(max_size=60))
@example(DOCUMENT)
def test_any_bytes_are_a_text_or_the_one_error(data: bytes) -> None:
    with contextlib.suppress(JsonFormatError):
        assert isinstance(render(data), str)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_double_reads_back_as_itself(number: float) -> None:
    assert float(printed_double(number)) == number
    assert any(mark in printed_double(number) for mark in ".e")
