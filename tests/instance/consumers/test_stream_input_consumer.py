"""Tests what a consumer gets if its stream changes after it began to read, for example by a failover or by rows that cannot be read."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.binlog.entries.elements import BEGIN, END, ROWS
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.instance.consumers.consumer_stream import DestinationStream, OwnStream, Selection, StreamPosition
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.readable import Readable
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.sink.event_sink import CapturedTables
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import Window
from tests.binlog.rows.event_bytes import ORDERS as ROWS_TABLE
from tests.fix_blocks import ORDERS, Source
from tests.instance.test_row_rules_consumer import destination
from tests.store.fix_stores import START


def none_needed(_: WindowPosition) -> OwnStream:
    raise AssertionError("the window has the place")


def selection_of(tables: str) -> Selection:
    return Selection(tables=CapturedTables([TableFilter(tables)]), wants=lambda _: False)


def kinds_of(feed: DestinationStream, position: StreamPosition) -> tuple[list[int], StreamPosition]:
    chosen, end = feed.take(position, 1 << 20, 0.0, lambda: True)
    return [kind for each in chosen or () for kind in each.kinds.tolist()], end


@pytest.mark.usefixtures("parts_at_once")
def test_a_consumer_within_a_transaction_that_does_not_come_again_gets_the_next_one_from_its_begin_failover() -> None:
    window = Window(START, bytes_max=1 << 20)
    feed = DestinationStream(window, none_needed, lambda: False, selection_of(""))
    window.put(Source().block([], 2))
    begun, position = kinds_of(feed, StreamPosition(WindowPosition(START)))
    window.drop_open()
    other = Source(epoch=2, number=100)
    window.put(other.block([], 1))
    again, position = kinds_of(feed, position)
    window.put(other.block([1]))
    rest, _ = kinds_of(feed, position)
    assert (begun, again, rest) == ([BEGIN, ROWS, ROWS], [BEGIN, ROWS], [ROWS, END])


@pytest.mark.found
def test_a_consumer_gets_all_whole_transactions_before_rows_that_cannot_be_read() -> None:
    """Defect 17: consumers did not get the transactions before a table that cannot be read, if one reading had both."""
    window, source = Window(START, bytes_max=1 << 20), Source()
    source.tables.append(dataclasses.replace(ORDERS, stopped=True, unreadable="TYPE_UNSUPPORTED: told"))
    source.tables.append(dataclasses.replace(ORDERS, stopped=True))
    window.put(source.block([2], table=[0, 1]))
    window.put(source.block([1, 2, 2], table=[3, 0, 2, 1, 1]))
    feed = DestinationStream(window, none_needed, lambda: False, selection_of(""))
    kinds, position = kinds_of(feed, StreamPosition(WindowPosition(START)))
    assert kinds == [BEGIN, ROWS, ROWS, END, BEGIN, ROWS, END], "rows of a table that only the lake stopped are shown"
    for _ in range(2):  # The result is the same, whoever requests it again.
        with pytest.raises(
            ConsumerStoppedError, match=r"rows of shop\.orders cannot be read from mysql.*TYPE_UNSUPPORTED: told"
        ):
            feed.take(position, 1 << 20, 0.0, lambda: True)
    audit = DestinationStream(window, none_needed, lambda: False, selection_of(r"shop\.audit"))
    kinds, _ = kinds_of(audit, StreamPosition(WindowPosition(START)))
    assert kinds.count(ROWS) == 3, "a filter that leaves the table out goes on"


@pytest.mark.found
@pytest.mark.parametrize("way", ["masks", "masks that may be missing", "columns"])
def test_a_column_that_conf_hides_is_not_shown_under_the_name_that_a_pending_change_gave_it(way: str) -> None:
    """Test for defect 17: a table that waits for a decision continues for consumers. This also holds if the schema change renames columns
    that the consumers must not see.
    """
    masks = {
        "masks": {"note": "null"},
        "masks that may be missing": {"note": {"kind": "null", "if_missing": "ignore"}},
    }.get(way)
    config = destination(orders={"masks": masks} if masks else {})
    columns = ColumnFilter(exclude="shop.orders:note" if way == "columns" else "")
    readable = Readable(Forms(policies=policies_of(config), kept=columns.kept, named=columns.names_of))
    assert readable.why_not(ROWS_TABLE) == ""
    assert readable.why_not(dataclasses.replace(ROWS_TABLE, stopped=True)) == ""
    renamed = tuple(
        dataclasses.replace(each, name={"note": "memo"}.get(each.name, each.name)) for each in ROWS_TABLE.columns
    )
    why = readable.why_not(dataclasses.replace(ROWS_TABLE, columns=renamed, stopped=True))
    assert "note, which the table no longer has since it stopped for the lake" in why
