"""What one consumer gets of a stream that goes on otherwise than it began."""

from __future__ import annotations

from cdc_engine.binlog.entries.elements import BEGIN, END, ROWS
from cdc_engine.instance.consumers.consumer_stream import DestinationStream, OwnStream, Selection, StreamPosition
from cdc_engine.sink.event_sink import CapturedTables
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.store.window.positions import WindowPosition
from cdc_engine.store.window.window import Window
from tests.fix_blocks import Source
from tests.store.fix_stores import START


def none_needed(_: WindowPosition) -> OwnStream:
    raise AssertionError("the window has the place")


def kinds_of(feed: DestinationStream, place: StreamPosition) -> tuple[list[int], StreamPosition]:
    chosen, end = feed.take(place, 1 << 20, 0.0, lambda: True)
    return [kind for each in chosen or () for kind in each.kinds.tolist()], end


def test_a_consumer_amid_a_transaction_that_does_not_come_again_gets_the_next_one_from_its_begin_failover() -> None:
    window = Window(START, bytes_max=1 << 20)
    selection = Selection(tables=CapturedTables([TableFilter()]), wants=lambda _: False)
    feed = DestinationStream(window, none_needed, lambda: False, selection)
    window.put(Source().block([], 2))
    begun, place = kinds_of(feed, StreamPosition(WindowPosition(START)))
    window.drop_open()
    other = Source(epoch=2, number=100)
    window.put(other.block([], 1))
    again, place = kinds_of(feed, place)
    window.put(other.block([1]))
    rest, _ = kinds_of(feed, place)
    assert (begun, again, rest) == ([BEGIN, ROWS, ROWS], [BEGIN, ROWS], [ROWS, END])
