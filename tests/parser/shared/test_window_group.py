"""Tests that each reader of a shared dump gets everything from its position on, once and in order. The result depends neither on where and
when readers join, nor on their speed, nor on how the socket divides the bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError, SourceConnectionError
from sluice.cdc_engine.parser.scan.framing import PacketFramer
from sluice.cdc_engine.parser.scan.skipping import FileBeginning
from sluice.cdc_engine.parser.shared import window as shared_window
from sluice.cdc_engine.parser.shared.dump_filler import DumpFiller
from sluice.cdc_engine.parser.shared.window import DumpReader, DumpWindow, FellBehindError
from sluice.cdc_engine.position import Position
from tests.parser.scan.event_factory import START, TIME, EventFactory, packets, scanner

BUFFER_BYTES, ROOM_BYTES = 1024, 512
READERS_MAX = 4  # The number of readers at one time.
FILES = ("binlog.000007", "binlog.000008", "binlog.000009")
TRANSACTIONS = 12  # The number of transactions in each file.


@dataclasses.dataclass(frozen=True)
class Log:
    """Describes a dump: its bytes, and for each of its transactions, in order, the end and the last bytes of the row event."""

    data: bytes
    ends: list[tuple[str, int]]
    rows: list[bytes]


def log_of(large_bytes: int = 0, begin: int = 4) -> Log:
    """Returns a dump of three files. The dump starts at the offset `begin` of the first file. One row event has `large_bytes` additional
    bytes.
    """
    make = EventFactory(offset=begin)
    events: list[bytes] = []
    ends, rows = [], []
    for index, file in enumerate(FILES):
        events.append(make.rotate(file, begin if index == 0 else 4))
        events.append(make.format_description(artificial=index == 0 and begin > 4))
        for number in range(TRANSACTIONS):
            content = struct.pack("<HI", index, number) + bytes(
                large_bytes if (index, number) == (1, 3) else number * 17
            )
            events += [make.gtid(index * TRANSACTIONS + number + 1), make.query("BEGIN"), make.table_map(5)]
            if number == 5:
                events.append(make.event(27, file.encode(), artificial=True))  # a heartbeat event
            events += [make.rows(5, content=content), make.xid()]
            ends.append((file, make.offset))
            rows.append(content)
        if index + 1 < len(FILES):
            events.append(make.rotate(FILES[index + 1], artificial=False))
    return Log(packets(events), ends, rows)


LOG, AMID = log_of(), log_of(begin=8_589_934_000)


class Reader:
    """Does what a parser does with a connection to the shared dump."""

    def __init__(self, joined: DumpReader, position: Position) -> None:
        self.dump_reader = joined
        beginning = FileBeginning(position, contiguous=True, begins_at=joined.boundary.offset)
        self._framer = PacketFramer(scanner(start=position, contiguous=True), 4096, beginning)
        self.rows: list[bytes] = []
        self.ends: list[tuple[str, int]] = []

    def read(self, bytes_max: int) -> int:
        count = self.dump_reader.receive_into(self._framer.space()[:bytes_max], 0.0)
        for block in self._framer.received(count):
            self._take(block)
        return count

    def _take(self, block: Block) -> None:
        for at, length in zip(block.event_offset.tolist(), block.event_length.tolist(), strict=True):
            self.rows.append(block.buffer[at + 19 + 10 : at + length].tobytes())
        self.ends += [(block.file, end) for end in block.transaction_end.tolist()]


def position_at(log: Log, transaction: int) -> Position:
    file, offset = log.ends[transaction]
    return dataclasses.replace(START, file=file, offset=offset, file_created=TIME)


def pumped(log: Log, feed: DumpFiller, pieces: Iterator[int]) -> Iterator[int]:
    """Gives all bytes of the log to the dump, one piece per step. Yields 0 if there was no space."""
    at = 0
    while at < len(log.data):
        space = feed.space(0.0)
        if space is None:
            yield 0
            continue
        count = min(len(space), next(pieces), len(log.data) - at)
        space[:count] = log.data[at : at + count]
        feed.received(count)
        at += count
        yield count


def feed_of(window: DumpWindow, *, buffer_bytes: int = BUFFER_BYTES, room_bytes: int = ROOM_BYTES) -> DumpFiller:
    return DumpFiller(window, checksum=True, contiguous=True, buffer_bytes=buffer_bytes, room_bytes_min=room_bytes)


def reported(log: Log, reader: Reader, begin: int) -> None:
    """Requires that a reader has everything after the position at which it joined, without a gap."""
    assert reader.rows == log.rows[begin + 1 : begin + 1 + len(reader.rows)]
    ends = [end for end in reader.ends if end in set(log.ends)]  # The beginning of a file is a position too.
    assert ends == log.ends[begin + 1 : begin + 1 + len(ends)]


@given(
    st.lists(st.tuples(st.sampled_from(["pump", "join", "read"]), st.integers(60, 900)), min_size=1, max_size=20),
    st.integers(2, 5),
    st.integers(1, 2000),
    st.sampled_from([LOG, AMID]),
)
def test_every_reader_gets_all_that_follows_its_position_or_an_error_that_it_fell_behind(
    steps: list[tuple[str, int]], buffers: int, boundary_bytes: int, log: Log
) -> None:
    """The steps repeat, with a piece of the dump after each round, until the whole dump was read."""
    window, sizes = DumpWindow(buffers), itertools.cycle([size for _, size in steps])
    pump = pumped(log, feed_of(window), sizes)
    readers: dict[int, tuple[Reader, int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_window, "BOUNDARY_BYTES", boundary_bytes)
        for index, (what, size) in enumerate(itertools.cycle([*steps, ("pump", 1)])):
            if what == "pump" and (moved := next(pump, None)) is None:
                break
            if what == "pump" and not moved:  # Every connected reader has something to read.
                assert sum(_read_some(log, readers, number, 1 << 20) for number in list(readers))
            elif what == "join":
                _join(window, readers, log, (size + index) % len(log.ends))
            elif what == "read" and readers:
                _read_some(log, readers, sorted(readers)[size % len(readers)], size)
    for number in sorted(readers):
        while _read_some(log, readers, number, 1 << 20):
            pass
        if number in readers:
            reader, begin = readers[number]
            assert reader.rows == log.rows[begin + 1 :]


def _join(window: DumpWindow, readers: dict[int, tuple[Reader, int]], log: Log, begin: int) -> None:
    joined = window.join(position_at(log, begin)) if len(readers) < READERS_MAX else None
    if joined is not None:
        readers[len(readers) and max(readers) + 1] = (Reader(joined, position_at(log, begin)), begin)


def _read_some(log: Log, readers: dict[int, tuple[Reader, int]], number: int, bytes_max: int) -> int:
    reader, begin = readers[number]
    try:
        count = reader.read(bytes_max)
    except FellBehindError:
        reader.dump_reader.close()
        del readers[number]
        count = 0
    reported(log, reader, begin)
    return count


def test_a_line_that_reads_nothing_delays_no_other_and_two_that_do_delay_the_dump() -> None:
    window = DumpWindow(2)
    pump = pumped(LOG, feed_of(window), iter(lambda: 200, 0))
    next(pump)
    next(pump)
    fast, slow = (Reader(_joined(window), position_at(LOG, 0)) for _ in range(2))
    steps = 0
    while (moved := next(pump)) > 0:
        steps += 1
    assert steps  # The dump is read up to the size of the window while nobody reads from it.
    assert moved == 0
    for _ in pump:
        while fast.read(1 << 20):
            pass
    while fast.read(1 << 20):
        pass
    assert fast.rows == LOG.rows[1:]
    with pytest.raises(FellBehindError):
        _read_all(slow)


def _read_all(reader: Reader) -> None:
    while reader.read(100):
        pass


def _joined(window: DumpWindow, transaction: int = 0) -> DumpReader:
    joined = window.join(position_at(LOG, transaction))
    assert joined is not None
    return joined


def test_a_reader_at_a_position_outside_the_window_joins_nothing() -> None:
    window = DumpWindow(100)
    for _ in pumped(LOG, feed_of(window), iter(lambda: 300, 0)):
        pass
    assert window.join(position_at(LOG, 20)) is not None
    there = position_at(LOG, 20)
    assert window.join(dataclasses.replace(there, file_created=TIME + 1)) is None, "another file of that name"
    assert window.join(dataclasses.replace(there, file="binlog.000010")) is None, "a file that has not come"
    assert window.join(dataclasses.replace(there, file="binlog.000006")) is None, "a file from before"
    tail = position_at(LOG, -1)
    assert window.join(dataclasses.replace(tail, offset=tail.offset + shared_window.AHEAD_BYTES_MAX)) is not None
    assert window.join(dataclasses.replace(tail, offset=tail.offset + shared_window.AHEAD_BYTES_MAX + 1)) is None


@pytest.mark.parametrize("large_bytes", [0xFFFFFF - 40, 2 * 0xFFFFFF])
def test_events_of_many_packets_go_through(large_bytes: int) -> None:
    log, window = log_of(large_bytes), DumpWindow(100)
    for _ in pumped(log, feed_of(window, buffer_bytes=1 << 22, room_bytes=1 << 16), iter(lambda: 1 << 20, 0)):
        pass
    for begin in (0, TRANSACTIONS + 3, TRANSACTIONS + 5):
        position = position_at(log, begin)
        joined = window.join(position)
        assert joined is not None
        reader = Reader(joined, position)
        while reader.read(1 << 21):
            pass
        assert reader.rows == log.rows[begin + 1 :]


def test_the_error_that_ended_the_dump_is_raised_after_all_earlier_events() -> None:
    window = DumpWindow(100)
    for _ in pumped(LOG, feed_of(window), iter(lambda: 300, 0)):
        pass
    reader = Reader(_joined(window, 30), position_at(LOG, 30))
    window.end(SourceConnectionError("the connection was lost"))
    with pytest.raises(SourceConnectionError, match="lost"):
        _read_all(reader)
    assert reader.rows == LOG.rows[31:]
    assert window.join(position_at(LOG, 30)) is None


def test_bytes_that_are_missing_end_the_dump() -> None:
    broken = Log(LOG.data[:2000] + LOG.data[2300:], LOG.ends, LOG.rows)
    with pytest.raises(BinlogFormatError):
        for _ in pumped(broken, feed_of(DumpWindow(100)), iter(lambda: 300, 0)):
            pass
