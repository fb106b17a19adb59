"""Tests that the beginning of a file is skipped up to exactly the event at which the stream continues, however the socket divides the
bytes.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError, PositionLostError
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.skipping import FileBeginning
from tests.parser.scan.event_factory import START, EventFactory, packets, scanner
from tests.parser.scan.test_framing import what

PACKET_MAX = 0xFFFFFF


def file_of(transactions: int, large_bytes: int = 0) -> tuple[list[bytes], list[int]]:
    """Returns the events of a dump from the file's first byte, and the positions at which its transactions end."""
    make = EventFactory()
    events, ends = [make.rotate(START.file), make.format_description(), make.event(35, bytes(8))], []
    for number in range(1, transactions + 1):
        if number == 2:
            events.append(make.event(27, b"binlog.000007", artificial=True))  # a heartbeat event
        events += [make.gtid(number), make.query("BEGIN"), make.table_map(5)]
        events.append(make.rows(5, content=bytes([number]) * (large_bytes if number == 2 and large_bytes else 7)))
        events.append(make.xid())
        ends.append(make.offset)
    return events, ends


EVENTS, ENDS = file_of(6)


def poured(data: bytes, target: int, pieces: list[int], buffer_bytes: int = 4096) -> tuple[PacketFramer, list[Block]]:
    """Delivers `data` to a framer that skips the file up to the offset `target`. Returns the framer and the blocks. The sizes in `pieces`
    repeat until all data is delivered.
    """
    position = dataclasses.replace(START, offset=target)
    framer = PacketFramer(scanner(start=position), buffer_bytes, FileBeginning(position, contiguous=True))
    blocks, at, index = [], 0, 0
    while at < len(data):
        space = framer.space()
        count = min(len(space), pieces[index % len(pieces)], len(data) - at)
        space[:count] = data[at : at + count]
        blocks += list(framer.received(count))
        at, index = at + count, index + 1
    return framer, blocks


@given(st.integers(0, 5), st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(64, 3000))
def test_only_events_after_the_position_are_read(which: int, pieces: list[int], buffer_bytes: int) -> None:
    events, ends = what(poured(packets(EVENTS), ENDS[which], pieces, buffer_bytes)[1])
    assert [body[-7:] for _, body in events] == [bytes([number]) * 7 for number in range(which + 2, 7)]
    assert ends == ENDS[which + 1 :]
    assert all(ENDS[which] < position < ENDS[-1] for position, _ in events)


@pytest.mark.parametrize("large_bytes", [PACKET_MAX - 40, PACKET_MAX, 2 * PACKET_MAX])
def test_events_of_many_packets_are_passed_over(large_bytes: int) -> None:
    events, ends = file_of(3, large_bytes)
    for which in (1, 2):
        found = what(poured(packets(events), ends[which], [1 << 20, 3, 70_000], 2 << 20)[1])
        assert [body[-7:] for _, body in found[0]] == [bytes([3]) * 7][which - 1 :]
        assert found[1] == ends[which + 1 :]


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_position_where_no_event_begins_is_lost(shift: int) -> None:
    with pytest.raises(PositionLostError, match=f"no event begins at {START.file}:{ENDS[2] + shift}"):
        poured(packets(EVENTS), ENDS[2] + shift, [100])


def test_a_file_that_ends_before_the_position_is_lost() -> None:
    follows = EventFactory().rotate("binlog.000008")
    with pytest.raises(
        PositionLostError, match=r"the binlog file ends before this offset, and the next file is binlog\.000008"
    ):
        poured(packets([*EVENTS, follows]), ENDS[-1] + 1, [100])


def test_an_event_that_is_missing_is_found_without_decoding() -> None:
    with pytest.raises(BinlogFormatError, match="part of the stream is missing"):
        poured(packets([*EVENTS[:5], *EVENTS[6:]]), ENDS[-1], [100])


def test_an_answer_of_the_server_is_in_the_message() -> None:
    answer = b"\xff\xd4\x04#HY000purged"
    packet = len(answer).to_bytes(3, "little") + b"\x00" + answer
    framer, blocks = poured(packets(EVENTS[:6]) + packet, ENDS[-1], [7])
    assert (framer.answer, blocks) == (answer, [])
