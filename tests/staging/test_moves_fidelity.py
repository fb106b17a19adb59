"""Where a segment ends because a row without all its columns moved to another key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cdc_engine.binlog.rows.decoder import OPERATION, RowDecoder
from cdc_engine.contracts import Operation, RowEventKind
from cdc_engine.staging.moves import parts
from tests.binlog.rows.event_bytes import ORDERS, block
from tests.binlog.rows.partial_events import Change, partial_event

INSERT, UPDATE = RowEventKind.INSERT, RowEventKind.UPDATE


def change(old: int, new: int) -> Change:
    return Change(UPDATE, {"id": old}, {"id": new} if new != old else {"amount": 1})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12), st.booleans())
def test_a_moved_row_had_a_key_that_its_segment_has_not_met(pairs: list[tuple[int, int]], begun: bool) -> None:
    given_block = block([(ORDERS, UPDATE, partial_event(ORDERS, [change(*pair)])) for pair in pairs])
    (batch,) = RowDecoder(ORDERS).chunks(given_block, np.arange(len(pairs)))
    found = list(parts(batch, ("id",), begun=begun))
    assert [row for _, part in found for row in part.to_pylist()] == batch.to_pylist()
    met: set[int] | None = None if begun else set()  # None: any key may have been
    for cut, part in found:
        met = set() if cut else met
        for row in part.to_pylist():
            if row[OPERATION] == Operation.UPDATE_BEFORE:
                assert met is not None
                assert row["id"] not in met
            if met is not None:
                met.add(row["id"])


def test_moves_that_do_not_meet_share_a_segment() -> None:
    pairs = [(5, 6), (4, 5), (3, 4)]  # as UPDATE … SET id = id + 1 ORDER BY id DESC has them
    given_block = block([(ORDERS, UPDATE, partial_event(ORDERS, [change(*pair)])) for pair in pairs])
    (batch,) = RowDecoder(ORDERS).chunks(given_block, np.arange(3))
    assert [part.num_rows for _, part in parts(batch, ("id",), begun=False)] == [6]
