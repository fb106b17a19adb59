"""Tests that the same events are found however the socket divides the stream. An event can be larger than a packet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.parser.scan.framing import PACKET_HEADER_BYTES, PacketFramer
from tests.parser.scan.event_factory import EventFactory, packets, scanner

PACKET_MAX = 0xFFFFFF


def stream_of(transactions: int, rows: int = 2, row_bytes: int = 7) -> bytes:
    make = EventFactory()
    events = [make.rotate("binlog.000008"), make.format_description()]
    for number in range(1, transactions + 1):
        events += [make.gtid(number), make.query("BEGIN"), make.table_map(5)]
        events += [make.rows(5, content=bytes([number & 255]) * row_bytes) for _ in range(rows)]
        events.append(make.xid())
        if number % 4 == 0:
            events.append(make.query("CREATE TABLE x (a INT)"))
    return packets(events)


def pour(data: bytes, pieces: list[int], buffer_bytes: int) -> tuple[PacketFramer, list[Block]]:
    """Passes the data to a framer in pieces, and returns the framer and its blocks. The sizes in `pieces` repeat until the data ends."""
    framer, blocks, at, index = PacketFramer(scanner(), buffer_bytes), [], 0, 0
    while at < len(data):
        space = framer.space()
        assert len(space) > 0
        count = min(len(space), pieces[index % len(pieces)], len(data) - at)
        space[:count] = data[at : at + count]
        blocks += list(framer.received(count))
        at, index = at + count, index + 1
    return framer, blocks


def what(blocks: list[Block]) -> tuple[list[tuple[int, bytes]], list[int]]:
    events = [
        (int(block.event_position[i]), block.buffer[block.event_offset[i] :][: block.event_length[i]].tobytes())
        for block in blocks
        for i in range(block.event_count)
    ]
    return events, [end for block in blocks for end in block.transaction_end.tolist()]


WHOLE = stream_of(9)
EXPECTED = what(pour(WHOLE, [len(WHOLE)], 1 << 20)[1])


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(64, 3000))
def test_any_division_of_the_stream_gives_the_same_events(pieces: list[int], buffer_bytes: int) -> None:
    assert what(pour(WHOLE, pieces, buffer_bytes)[1]) == EXPECTED


def test_the_expectation_is_not_empty() -> None:
    events, ends = EXPECTED
    assert (len(events), len(ends)) == (18, 12)  # 9 transactions, 2 statements, the beginning of the file


def test_blocks_given_out_are_not_written_over() -> None:
    framer, blocks = pour(WHOLE, [100], 1000)
    before = what(blocks)
    for _ in range(5):
        space = framer.space()
        np.asarray(space)[:] = 0xAA
    assert what(blocks) == before == EXPECTED


# The sizes reach from just below the largest packet to several packets. Exact multiples end with an empty packet.
@pytest.mark.parametrize("event_bytes", [PACKET_MAX - 2, PACKET_MAX - 1, PACKET_MAX, 2 * PACKET_MAX - 1, 40 << 20])
def test_an_event_of_many_packets_comes_out_whole(event_bytes: int) -> None:
    make = EventFactory()
    head = [make.query("BEGIN"), make.table_map(5), make.rows(5)]
    content = np.random.default_rng(7).integers(0, 256, event_bytes - 19 - 10 - 4, dtype=np.uint8).tobytes()
    large = make.rows(5, content=content)
    tail = [make.rows(5), make.xid()]
    assert len(large) == event_bytes
    data = packets([*head, large, *tail])
    framer, blocks = pour(data, [1 << 20, 3, 70_000], 4 << 20)
    events, ends = what(blocks)
    assert [body for _, body in events] == [head[2][:-4], large[:-4], tail[0][:-4]]
    assert [position for position, _ in events] == sorted({position for position, _ in events})
    assert ends == [make.offset]
    assert framer.bytes_received == len(data)


def test_a_large_packet_moves_once_not_with_every_read() -> None:
    make = EventFactory()
    data = packets([make.query("BEGIN"), make.table_map(5), make.rows(5, content=bytes(9 << 20)), make.xid()])
    framer, moves, at = PacketFramer(scanner(), 1 << 20), set(), 0
    while at < len(data):
        space = framer.space()
        moves.add(id(framer._buffer))
        count = min(len(space), 10_000, len(data) - at)
        space[:count] = data[at : at + count]
        list(framer.received(count))
        at += count
    assert len(moves) <= 3


@pytest.mark.parametrize("length", [20, PACKET_MAX - 2, (1 << 30) + 1, 0xFFFFFFFF])
def test_a_lying_length_in_a_large_packet_is_an_error_not_an_allocation(length: int) -> None:
    event = bytes(9) + length.to_bytes(4, "little") + bytes(6) + bytes(1000)
    with pytest.raises(BinlogFormatError, match="contradicts the length of its packets"):
        pour(b"\xff\xff\xff\x01\x00" + event, [5000], 1 << 16)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_large_event_whose_packets_do_not_add_up_is_an_error(change: int) -> None:
    make = EventFactory()
    data = bytearray(packets([make.rows(5, content=bytes(PACKET_MAX + 1000))]))
    second = PACKET_HEADER_BYTES + PACKET_MAX
    data[second : second + 3] = (int.from_bytes(data[second : second + 3], "little") + change).to_bytes(3, "little")
    with pytest.raises(BinlogFormatError, match="differs from the length of its packets"):
        pour(bytes(data) + b"x", [1 << 20], 4 << 20)


def test_an_error_packet_is_the_answer() -> None:
    error = b"\xff\xd4\x04#HY000purged"
    framer, blocks = pour(stream_of(1) + bytes([len(error), 0, 0, 9]) + error, [50], 1 << 16)
    assert framer.answer == error
    assert len(blocks) >= 1
