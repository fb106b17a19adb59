"""Lists what a consumer gets of a range of a block, as elements in order. Each element becomes an entry. Called by the consumers' streams.

An element is one of four things: the beginning or the end of a transaction, a row event that the consumer's filter keeps, or the SQL text
(rows query) of a statement. A SQL text is listed only if the statement's first row event is kept. The settings of a consumer can exclude
the SQL texts, and most of the beginnings and ends.

As in Canal, most transactions without kept events are omitted. A few of these transactions are listed, so that a client sees that the
stream moves: the next one after five seconds by the source's clock, or after 8192 omitted transactions. If the beginning of a transaction
is listed, its end is listed too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.contracts import NO_QUERIES, Block, Int8s, Int64s

BEGIN, ROWS, END, QUERY = 0, 1, 2, 3
# The index of a transaction that ends in a later block.
OPEN_HERE = -1
# A transaction without kept events is listed only in two cases: its time differs from that of the last listed one by more than this number
# of microseconds, or more than EMPTY_COUNT_MAX such transactions were omitted. If the argument `frames` of `elements` is False, the same
# limits decide for all transactions whether their beginnings and ends are listed.
EMPTY_TIME_US_MAX = 5_000_000
EMPTY_COUNT_MAX = 8192
# Fields of the state that one range passes to the next range. BEGUN: how much of the open transaction is listed (see below). EMPTY_AT: time
# in µs of the last listed transaction without kept events. EMPTY_LEFT_OUT: number of transactions without kept events that were omitted
# after EMPTY_AT. FRAME_AT: time in µs of the last transaction whose end is listed. FRAMES_LEFT_OUT: number of beginnings and ends that were
# omitted after FRAME_AT because `frames` is False.
BEGUN, EMPTY_AT, EMPTY_LEFT_OUT, FRAME_AT, FRAMES_LEFT_OUT = range(5)
# Values of BEGUN. WITH_BEGIN: the transaction's beginning and some row events are listed. WITHOUT_BEGIN: only row events. 0: nothing.
WITH_BEGIN, WITHOUT_BEGIN = 1, 2
State = tuple[int, int, int, int, int]
FIRST_STATE: State = (0, 0, 0, 0, 0)
Mask = npt.NDArray[np.bool_]


class BlockRange(NamedTuple):
    """The row events [event, last_event) and the transaction ends [transaction, last_transaction) of a range."""

    event: Integer
    last_event: Integer
    transaction: Integer
    last_transaction: Integer


class TransactionEnds(NamedTuple):
    """The transactions of a block. Three arrays have one value per transaction. `events`: index of the first row event after the
    transaction. `times`: commit time in µs. `begins`: offset of the transaction's BEGIN event, or -1 if the transaction has no BEGIN event.
    `event_times` has one value per row event: its time in µs.
    """

    events: Int64s
    times: Int64s
    begins: Int64s
    event_times: Int64s


def elements(
    block: Block,
    events: tuple[int, int],
    transactions: tuple[int, int],
    kept: Mask,
    state: State,
    *,
    queries: bool = False,
    frames: bool = True,
) -> tuple[Int8s, Int64s, State]:
    """Lists the elements of a range of the block. Returns (kinds, indices, new state). A kind is BEGIN, ROWS, END or QUERY. An index is the
    index of the transaction, row event or rows query in the block.

    `events`, `transactions`: the row events and the transaction ends of the range, each [first, last). `kept`: bool, one per row event of
    the block. `queries`: whether to list rows queries. `frames`: whether to list the beginning and end of every transaction with kept
    events. If False, lists both only for a transaction whose time differs by more than five seconds from the time of the last listed end,
    or after 8192 omitted beginnings and ends.
    """
    shown = block.query_event if queries else NO_QUERIES
    room = events[1] - events[0] + 2 * (transactions[1] - transactions[0]) + 1 + len(shown)
    kinds, indices, after = np.empty(room, np.int8), np.empty(room, np.int64), np.array(state, np.int64)
    begins = np.ascontiguousarray(block.transaction_frame["begin"])
    ends = TransactionEnds(block.transaction_events, block.transaction_time_us, begins, block.event_time_us)
    count = _elements(BlockRange(*events, *transactions), ends, kept, shown, frames, after, kinds, indices)
    begun, at, left_out, frame_at, frames_left_out = after.tolist()
    return kinds[:count], indices[:count], (begun, at, left_out, frame_at, frames_left_out)


@compiled
def _shows_frame(state: Int64s, time_us: Integer, frames: bool) -> bool:
    """Returns whether to list the beginning and the end of a transaction. Always returns True if `frames` is True. If `frames` is False,
    adds one to state[FRAMES_LEFT_OUT]. Then returns True only if this number is above EMPTY_COUNT_MAX, or if `time_us` differs by more than
    EMPTY_TIME_US_MAX from state[FRAME_AT].
    """
    if frames:
        return True
    state[FRAMES_LEFT_OUT] += 1
    return bool(state[FRAMES_LEFT_OUT] > EMPTY_COUNT_MAX or abs(time_us - state[FRAME_AT]) > EMPTY_TIME_US_MAX)


@compiled
def _query_from(queries: Int64s, query: Integer, event: Integer) -> Integer:
    """Returns the index of the first rows query, from `query` on, that belongs to `event` or to a later event."""
    while query < queries.shape[0] and queries[query] < event:
        query += 1
    return query


@compiled
def _elements(  # noqa: PLR0917  numba has no keyword-only arguments
    part: BlockRange,
    transactions: TransactionEnds,
    kept: Mask,
    queries: Int64s,
    frames: bool,
    state: Int64s,
    kinds: Int8s,
    indices: Int64s,
) -> Integer:
    event, last_event, transaction, last_transaction = part
    ends, times, begins, event_times = transactions
    count = query = 0
    while transaction <= last_transaction:
        ended = transaction < last_transaction
        upto = ends[transaction] if ended else last_event
        while event < upto:
            if kept[event]:
                if not state[BEGUN]:
                    state[BEGUN] = WITHOUT_BEGIN
                    if _shows_frame(state, event_times[event], frames):
                        kinds[count], indices[count] = BEGIN, transaction if transaction < ends.shape[0] else OPEN_HERE
                        count += 1
                        state[BEGUN] = WITH_BEGIN
                query = _query_from(queries, query, event)
                if query < queries.shape[0] and queries[query] == event:
                    kinds[count], indices[count] = QUERY, query
                    count += 1
                kinds[count], indices[count] = ROWS, event
                count += 1
            event += 1
        if ended:
            shown = state[BEGUN] == WITH_BEGIN
            if state[BEGUN] == 0 and begins[transaction] >= 0 and _shows_frame(state, times[transaction], frames):
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
                state[FRAME_AT], state[FRAMES_LEFT_OUT] = times[transaction], 0
            elif not frames:
                state[FRAMES_LEFT_OUT] += 1
            state[BEGUN] = 0
        transaction += 1
    return count
