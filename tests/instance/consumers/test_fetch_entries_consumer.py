"""Tests that with `fetch_unit: entries` a client's batch has at most as many entries as it requests, as in Canal with ITEMSIZE."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.entries.elements import BEGIN, END, ROWS
from sluice.cdc_engine.instance.consumers.consumer_stream import DestinationStream, StreamPosition
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import Source
from tests.instance.consumers.test_stream_input_consumer import none_needed, selection_of
from tests.store.fix_stores import START

pytestmark = pytest.mark.seeds
LARGE = 1 << 20
SYMBOLS = {BEGIN: "B", ROWS: "R", END: "E"}


def fetched(window: Window, entries: int) -> list[str]:
    """Returns the batches of a client that requests `entries` entries each time. Each batch is a string of SYMBOLS."""
    feed = DestinationStream(window, none_needed, lambda: False, selection_of(""))
    position, batches = StreamPosition(WindowPosition(START)), list[str]()
    while True:
        chosen, end = feed.take(position, LARGE, 0.0, lambda: True, entries_max=entries)
        if end == position:
            return batches
        batches.append("".join(SYMBOLS[kind] for each in chosen or () for kind in each.kinds.tolist()))
        position = end


@pytest.mark.parametrize(
    ("entries", "batches"),
    [
        (1, ["BR", "RE", "BRE"]),
        (3, ["BR", "RE", "BRE"]),
        (4, ["BRRE", "BRE"]),
        (6, ["BRRE", "BRE"]),
        (7, ["BRREBRE"]),
    ],
)
def test_a_batch_has_whole_transactions_up_to_as_many_entries_as_are_requested(
    entries: int, batches: list[str]
) -> None:
    window = Window(START, bytes_max=LARGE)
    window.put(Source().block([2, 1]))
    assert fetched(window, entries) == batches


@given(
    parts=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=4), min_size=1, max_size=6),
    entries=st.integers(3, 12),
)
def test_no_batch_has_more_entries_and_all_of_them_are_the_stream(parts: list[list[int]], entries: int) -> None:
    window, source = Window(START, bytes_max=LARGE), Source()
    for part in parts:
        window.put(source.block(part))
    batches = fetched(window, entries)
    assert max(map(len, batches)) <= entries
    assert "".join(batches) == "".join("B" + "R" * rows + "E" for part in parts for rows in part)


def test_transactions_without_rows_count_too() -> None:
    """Transactions without rows count as entries. Otherwise a batch would have no limit if the source has many of them."""
    window = Window(START, bytes_max=LARGE)
    window.put(Source().block([0] * 100))
    reading = window.read(WindowPosition(START), LARGE, 20)
    assert reading is not None
    assert [(each.first_transaction, each.last_transaction) for each in reading.pieces] == [(0, 10)]


@pytest.mark.parametrize("rows", [6, 7])
def test_a_full_batch_is_one_with_as_many_entries(rows: int) -> None:
    window = Window(START, bytes_max=LARGE)
    window.put(Source().block([rows]))
    reading = window.read(WindowPosition(START), LARGE, 9, full=True)
    assert reading is not None
    assert reading.in_time == (rows == 7)
