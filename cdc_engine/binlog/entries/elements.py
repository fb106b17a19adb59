"""Lists the entries of a range of a block, in order: beginnings and ends of transactions, and the row events that a
filter keeps.

With `queries`, each statement's SQL text precedes its first kept row event, if that is the statement's first.

Called by the consumers' streams. A transaction without kept events is omitted, except one every few seconds of the
source's clock, so that a client sees the stream move (canal.md §3.3). A transaction of which something was shown is
always ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.contracts import NO_QUERIES, Block, Int8s, Int64s

BEGIN, ROWS, END, QUERY = 0, 1, 2, 3
OPEN_HERE = -1  # This replaces the index of a transaction that is still open at the block's end.
EMPTY_TIME_US_MAX = 5_000_000
EMPTY_COUNT_MAX = 8192
# What is kept between two ranges: whether a transaction's beginning was shown and its end was not; when an empty
# transaction was last shown, in µs; how many were omitted since.
BEGUN, EMPTY_AT, EMPTY_LEFT_OUT = range(3)
State = tuple[int, int, int]
FIRST_STATE: State = (0, 0, 0)
Mask = npt.NDArray[np.bool_]


class BlockRange(NamedTuple):
    """The row events and transaction ends of a range, each [first, last)."""

    event: Integer
    last_event: Integer
    transaction: Integer
    last_transaction: Integer


class TransactionEnds(NamedTuple):
    """One value per transaction of a block. `events`: index of the event after its last one; `times`: its time; `begins`: where it begins,
    -1 without a BEGIN.
    """

    events: Int64s
    times: Int64s
    begins: Int64s


def elements(
    block: Block,
    events: tuple[int, int],
    transactions: tuple[int, int],
    kept: Mask,
    state: State,
    *,
    queries: bool = False,
) -> tuple[Int8s, Int64s, State]:
    """Returns (BEGIN, ROWS, END or QUERY; index of the transaction, event or rows query) for row events and transaction
    ends [first, last), and the state after them.

    `kept`: bool, one per row event of the block. `queries`: whether rows queries are shown.
    """
    shown = block.query_event if queries else NO_QUERIES
    room = events[1] - events[0] + 2 * (transactions[1] - transactions[0]) + 1 + len(shown)
    kinds, indices, after = np.empty(room, np.int8), np.empty(room, np.int64), np.array(state, np.int64)
    begins = np.ascontiguousarray(block.transaction_frame["begin"])
    ends = TransactionEnds(block.transaction_events, block.transaction_time_us, begins)
    count = _elements(BlockRange(*events, *transactions), ends, kept, shown, after, kinds, indices)
    begun, at, left_out = after.tolist()
    return kinds[:count], indices[:count], (begun, at, left_out)


@compiled
def _elements(  # noqa: PLR0917  numba knows no keyword-only arguments
    part: BlockRange,
    transactions: TransactionEnds,
    kept: Mask,
    queries: Int64s,
    state: Int64s,
    kinds: Int8s,
    indices: Int64s,
) -> Integer:
    event, last_event, transaction, last_transaction = part
    ends, times, begins = transactions
    count = query = 0
    while transaction <= last_transaction:
        ended = transaction < last_transaction
        upto = ends[transaction] if ended else last_event
        while event < upto:
            if kept[event]:
                if not state[BEGUN]:
                    kinds[count], indices[count] = BEGIN, transaction if transaction < ends.shape[0] else OPEN_HERE
                    count += 1
                    state[BEGUN] = 1
                while query < queries.shape[0] and queries[query] < event:
                    query += 1
                if query < queries.shape[0] and queries[query] == event:
                    kinds[count], indices[count] = QUERY, query
                    count += 1
                kinds[count], indices[count] = ROWS, event
                count += 1
            event += 1
        if ended:
            shown = state[BEGUN] == 1
            if not shown and begins[transaction] >= 0:
                state[EMPTY_LEFT_OUT] += 1
                apart = abs(times[transaction] - state[EMPTY_AT])
                if apart > EMPTY_TIME_US_MAX or state[EMPTY_LEFT_OUT] > EMPTY_COUNT_MAX:
                    state[EMPTY_AT], state[EMPTY_LEFT_OUT] = times[transaction], 0
                    kinds[count], indices[count] = BEGIN, transaction
                    count += 1
                    shown = True
            if shown:
                kinds[count], indices[count] = END, transaction
                count += 1
            state[BEGUN] = 0
        transaction += 1
    return count
