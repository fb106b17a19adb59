"""Tests that with `full_batches` a get with a time-out waits until as many bytes have arrived as it requests, as in Canal."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sluice.cdc_engine.binlog.entries.elements import ROWS
from sluice.cdc_engine.instance.consumers.consumer_stream import DestinationStream, StreamPosition
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import BLOCKS_MAX, Window
from tests.fix_blocks import Source
from tests.instance.consumers.test_stream_input_consumer import none_needed, selection_of
from tests.store.fix_stores import START
from tests.waiting import wait_for

EVENT_BYTES = int(Source().block([1]).event_bytes[0])
LONG_SECONDS = 3600.0
BEGIN = StreamPosition(WindowPosition(START))


class Getting:
    """Runs one get of a client on a window in another thread."""

    def __init__(self, pool: ThreadPoolExecutor, window: Window, **options: bool) -> None:
        self._pool, self.window, self.given_up = pool, window, False
        self.looks = 0
        self.feed = DestinationStream(
            window, none_needed, lambda: options.get("held_up", False), selection_of(""), full=True
        )

    def get(self, events: int, seconds: float) -> Future[list[int]]:
        return self._pool.submit(self._rows, events * EVENT_BYTES, seconds)

    def looked_again(self) -> None:
        seen = self.looks
        self.window.wake()
        wait_for("the get looks", lambda: self.looks > seen)

    def _rows(self, bytes_max: int, seconds: float) -> list[int]:
        chosen, _ = self.feed.take(BEGIN, bytes_max, seconds, self._requested)
        return [kind for each in chosen or () for kind in each.kinds.tolist() if kind == ROWS]

    def _requested(self) -> bool:
        self.looks += 1
        return self.given_up


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


@pytest.mark.seeds
def test_a_get_waits_for_as_many_bytes_as_it_requests(pool: ThreadPoolExecutor) -> None:
    client, source = Getting(pool, Window(START, bytes_max=1 << 20)), Source()
    client.window.put(source.block([1, 1]))
    rows = client.get(4, LONG_SECONDS)
    client.looked_again()
    assert not rows.done(), "two of four events are there"
    client.window.put(source.block([1, 1]))
    assert len(rows.result(60)) == 4


@pytest.mark.seeds
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.05, 0.7])
def test_what_is_there_is_returned_when_the_time_is_over(pool: ThreadPoolExecutor, seconds: float) -> None:
    client = Getting(pool, Window(START, bytes_max=1 << 20))
    client.window.put(Source().block([1, 1]))
    assert len(client.get(4, seconds).result(60)) == 2


@pytest.mark.seeds
def test_a_get_that_is_given_up_returns_what_is_there(pool: ThreadPoolExecutor) -> None:
    client = Getting(pool, Window(START, bytes_max=1 << 20))
    client.window.put(Source().block([1]))
    rows = client.get(4, LONG_SECONDS)
    client.given_up = True
    client.window.wake()
    assert len(rows.result(60)) == 1


@pytest.mark.seeds
def test_a_get_at_a_live_stream_that_waits_for_the_lake_returns_what_is_there(pool: ThreadPoolExecutor) -> None:
    client = Getting(pool, Window(START, bytes_max=1 << 20), held_up=True)
    client.window.put(Source().block([1]))
    assert len(client.get(4, LONG_SECONDS).result(60)) == 1


@pytest.mark.seeds
@pytest.mark.parametrize("waits", [False, True])
def test_a_get_that_requests_more_than_the_window_keeps_returns_what_it_keeps(
    pool: ThreadPoolExecutor, waits: bool
) -> None:
    client, source = Getting(pool, Window(START, bytes_max=3 * EVENT_BYTES, waits=waits)), Source()
    for _ in range(3):
        client.window.put(source.block([1]))
    assert len(client.get(100, LONG_SECONDS).result(60)) == 3


@pytest.mark.seeds
def test_a_get_returns_before_the_window_removes_its_position(pool: ThreadPoolExecutor) -> None:
    """Many small transactions have few bytes. A get that waited for more bytes would have to read the source over its own connection."""
    client, source = Getting(pool, Window(START, bytes_max=1 << 30)), Source()
    rows = client.get(1 << 20, LONG_SECONDS)
    for _ in range(BLOCKS_MAX // 2):
        client.window.put(source.block([1]))
    assert len(rows.result(60)) == BLOCKS_MAX // 2
