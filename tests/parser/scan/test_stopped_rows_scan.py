"""Tests that the rows of a table that stopped for the lake stay in the stream, because consumers still need them."""

from __future__ import annotations

import pytest

from tests.parser.scan.event_factory import EventFactory, NoHistory, feed, scanner


@pytest.mark.found
def test_rows_of_a_table_that_cannot_continue_stay_for_consumers_whatever_follows() -> None:
    """Defect 17: the rows of a table that stopped for the lake were not in the stream, so consumers lost these rows
    or could not continue.
    """
    make, history = EventFactory(), NoHistory()
    history.stopped, history.for_consumers = {"orders"}, True
    scan = scanner(history)
    blocks = feed(scan, [*make.transaction(1), make.query("ALTER TABLE x ADD y INT")])
    history.stopped.clear()  # The table could be read again, but the lake lacks its rows in between.
    blocks += feed(scan, make.transaction(2))
    assert len([change for block in blocks for change in block.changes]) == 1, "it is reported once"
    rows = [block for block in blocks if block.event_count]
    assert [block.event_count for block in rows] == [1, 1]
    assert all(block.tables[index].stopped for block in rows for index in block.event_table.tolist())
    assert scan.counters()["dropped_row_events"] == 0
