"""Tests that a consumer that is behind reads the event files from its position on, also within transactions, and reads the source where the
files end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import TableChange, TableChangeKind
from sluice.cdc_engine.instance.consumers.consumer_stream import OwnStream, StreamReader
from sluice.cdc_engine.instance.consumers.stored_stream import StoredStream, StoredStreams
from sluice.cdc_engine.sink.event_sink import EventSink
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.file_store import FileEventStore
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition, WindowReading
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import SERVER, Source, gtid_set, numbers_of
from tests.store.fix_stores import START, log_in, make_store

MANY = 1 << 40
READER = StreamReader(1)


class TheSource(OwnStream):
    """Replaces the stream that reads the source. A consumer gets this stream if the files do not contain its position."""

    def read(self, position: WindowPosition, *_: object, **__: object) -> WindowReading | None:
        return WindowReading((), position)

    def stream_state(self) -> None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


def never() -> bool:
    return False


def numbers(pieces: Sequence[WindowPiece]) -> list[int]:
    return [each for piece in pieces for each in numbers_of(piece.block, piece.first_event, piece.last_event)]


def read_all(stream: OwnStream, position: WindowPosition, events: int) -> list[list[int]]:
    found = []
    while (reading := stream.read(position, MANY, events, 0.0, never)) is not None:
        found.append(numbers(reading.pieces))
        position = reading.end
    stream.close()
    return found


@pytest.mark.parametrize("events", [1, 2, 3, 1000])
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_all_events_after_any_position_come_once_and_in_order(tmp_path: Path, events: int, segment_bytes: int) -> None:
    log, source = log_in(tmp_path, segment_bytes), Source()
    log.begin(START)
    log.append(source.block([2, 1], open_events=2))
    number, transaction, offset = 3, 2, log.end.offset
    log.append(source.block([], open_events=2))
    log.drop_open()  # The connection was lost here.
    source.number, source.transaction, source.offset, source.begun = number, transaction, offset, None
    log.append(source.block([5]))
    log.append(source.block([4]))
    streams, position = StoredStreams(log, lambda *_: TheSource()), WindowPosition(START)
    for taken in range(12):
        stream = streams.open(READER, position)
        assert isinstance(stream, StoredStream)
        assert [each for part in read_all(stream, position, events) for each in part] == list(range(taken, 12))
        one = streams.open(READER, position).read(position, MANY, 1, 0.0, never)
        assert one is not None
        position = one.end
    assert isinstance(streams.open(READER, position), TheSource)


def test_a_position_that_the_files_do_not_have_is_read_from_the_source(tmp_path: Path) -> None:
    log, source = log_in(tmp_path, 1), Source()
    source.block([1])
    log.begin(START)
    before = WindowPosition(START)
    for _ in range(4):
        log.append(source.block([1]))
    streams = StoredStreams(log, lambda *_: TheSource())
    stream = streams.open(READER, before)
    assert numbers(stream.read(before, MANY, 1, 0.0, never).pieces) == [1]  # type: ignore[union-attr]
    log.trim((9, 0, 0), 0)
    assert isinstance(streams.open(READER, before), TheSource)


def test_files_of_a_stream_that_left_out_other_transactions_are_not_read(tmp_path: Path) -> None:
    log, source = log_in(tmp_path), Source(transaction=6)
    log.begin(START)
    log.append(source.block([1]))
    here = log.end
    log.append(source.block([1]))
    streams = StoredStreams(log, lambda *_: TheSource())
    assert isinstance(streams.open(READER, WindowPosition(here)), StoredStream)
    for position in (
        dataclasses.replace(here, gtid_set=gtid_set(5)),  # The files would skip transactions that the consumer lacks.
        dataclasses.replace(here, offset=here.offset - 1),  # No transaction ends at this position.
    ):
        assert isinstance(streams.open(READER, WindowPosition(position)), TheSource)


def test_a_position_after_transactions_without_rows_is_found_although_the_files_lack_some_of_them(
    tmp_path: Path,
) -> None:
    store, window = make_store("file", tmp_path, start=START), Window(START, bytes_max=1 << 20)
    assert isinstance(store, FileEventStore)
    sink, source = EventSink(store, TableFilter(), window), Source(time_us=1)
    for transactions in ([1], [0], [0, 0]):
        sink.accept(source.block(transactions))
    reading = window.read(WindowPosition(START), MANY, 1000)
    assert reading is not None
    sink.accept(source.block([1, 1]))
    streams = StoredStreams(store.log, lambda *_: TheSource())
    stream = streams.open(READER, reading.end)
    assert isinstance(stream, StoredStream)
    assert read_all(stream, reading.end, 1000) == [[1, 2]]
    lacking = dataclasses.replace(reading.end.position, gtid_set=f"{SERVER}:2-4")
    assert isinstance(streams.open(READER, WindowPosition(lacking)), TheSource)


@pytest.mark.usefixtures("parts_at_once")
def test_an_open_transaction_at_the_end_of_the_files_is_not_requested_again_and_again(tmp_path: Path) -> None:
    log, source = log_in(tmp_path), Source()
    log.begin(START)
    log.append(source.block([], open_events=2))
    streams = StoredStreams(log, lambda *_: TheSource())
    reading = streams.open(READER, WindowPosition(START)).read(WindowPosition(START), MANY, 1000, 0.0, never)
    assert reading is not None
    amid = reading.end
    assert (numbers(reading.pieces), amid.events) == ([0, 1], 2)
    assert read_all(streams.open(READER, amid), amid, 1000) == []
    assert isinstance(streams.open(READER, amid), TheSource)
    assert isinstance(streams.open(READER, amid), StoredStream)  # The transaction may have continued.


def test_a_ddl_statement_comes_alone_where_conf_says_so(tmp_path: Path) -> None:
    change = TableChange(kind=TableChangeKind.TRUNCATE, database="shop", table="orders", order_key=1, time_us=0)
    log, source = log_in(tmp_path), Source()
    log.begin(START)
    log.append(source.block([1, 1]))
    log.append(source.block([0], changes=(change,)))
    log.append(source.block([1]))
    for isolated, wanted in ((True, [[0, 1], [], [2]]), (False, [[0, 1], [], [2]])):
        stream = StoredStreams(log, lambda *_: TheSource(), isolated=isolated).open(READER, WindowPosition(START))
        assert read_all(stream, WindowPosition(START), 1000) == wanted
