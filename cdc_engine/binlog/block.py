"""Makes blocks from other blocks (`contracts.Block`): without some row events or transactions, with a smaller buffer, or joined. Also
computes positions.

No function changes its argument. The loops over events and transactions run in numpy and numba, not in Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.contracts import FRAME, Block, Bytes, Int64s
from sluice.cdc_engine.gtid import executed_after
from sluice.cdc_engine.position import Position

Mask = npt.NDArray[np.bool_]

EVENT_ARRAYS: Mapping[str, npt.DTypeLike] = {
    "event_offset": np.int64,
    "event_length": np.int64,
    "event_kind": np.int8,
    "event_version": np.int8,
    "event_table": np.int32,
    "event_position": np.int64,
    "event_time_us": np.int64,
    "event_transaction_offset": np.int64,
}
TRANSACTION_ARRAYS: Mapping[str, npt.DTypeLike] = {
    "transaction_events": np.int64,
    "transaction_end": np.int64,
    "transaction_time_us": np.int64,
    "transaction_source": np.int32,
    "transaction_number": np.int64,
    "transaction_frame": FRAME,
}
QUERY_ARRAYS: Mapping[str, npt.DTypeLike] = dict.fromkeys(
    ("query_event", "query_offset", "query_length", "query_position"), np.int64
)


def keep_events(block: Block, mask: Mask) -> Block:
    """Returns the block with only the row events for which `mask` is True (bool, one per event). All transactions stay, even transactions
    without remaining row events. The SQL text of a statement (rows query event) belongs to the statement's first row event, and stays only
    if this row event stays.
    """
    kept_before = np.concatenate((np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)))
    arrays: dict[str, Any] = {name: getattr(block, name)[mask] for name in EVENT_ARRAYS}
    if len(block.query_event):
        queries = mask[block.query_event]
        arrays |= {name: getattr(block, name)[queries] for name in QUERY_ARRAYS}
        arrays["query_event"] = kept_before[arrays["query_event"]]
    return dataclasses.replace(block, transaction_events=kept_before[block.transaction_events], **arrays)


def without_events(block: Block) -> Block:
    """Returns the block with the same transactions but without row events and bytes."""
    arrays: dict[str, Any] = {name: np.zeros(0, dtype) for name, dtype in {**EVENT_ARRAYS, **QUERY_ARRAYS}.items()}
    ends = np.zeros(block.transaction_count, np.int64)
    return dataclasses.replace(block, buffer=np.zeros(0, np.uint8), transaction_events=ends, **arrays)


def without_first(block: Block, transactions: int) -> Block | None:
    """Returns the block without its first `transactions` (at least one) transactions, or None if neither transactions nor row events
    remain. The bytes of the removed row events stay in the buffer.
    """
    first = int(block.transaction_events[transactions - 1])
    if transactions == block.transaction_count and first == block.event_count:
        return None
    arrays: dict[str, Any] = {name: getattr(block, name)[first:] for name in EVENT_ARRAYS}
    arrays |= {name: getattr(block, name)[transactions:] for name in TRANSACTION_ARRAYS}
    arrays["transaction_events"] = arrays["transaction_events"] - first
    queries = int(np.searchsorted(block.query_event, first))
    arrays |= {name: getattr(block, name)[queries:] for name in QUERY_ARRAYS}
    arrays["query_event"] = arrays["query_event"] - first
    return dataclasses.replace(block, start_gtid_set=executed_set(block, transactions - 1), **arrays)


def last_transaction(block: Block) -> Block:
    """Returns a block with only the last transaction of `block`, which must have transactions but no row events. The result ends where
    `block` ends, so an ack of the result moves the cursor past all transactions of `block`.
    """
    last = block.transaction_count - 1
    before = executed_set(block, last - 1) if last else block.start_gtid_set
    arrays: dict[str, Any] = {name: getattr(block, name)[last:] for name in TRANSACTION_ARRAYS}
    return dataclasses.replace(block, start_gtid_set=before, **arrays)


def retained_bytes(block: Block) -> int:
    """Returns how many bytes of memory the block's buffer keeps allocated. If the buffer is a view of a larger array, the whole array stays
    allocated.
    """
    base = block.buffer.base
    return max(block.buffer.nbytes, base.nbytes if isinstance(base, np.ndarray) else 0)


def compact(block: Block) -> Block:
    """Returns the block with its events and SQL texts copied into a new buffer that contains only their bytes."""
    length = np.concatenate((block.event_length, block.query_length))
    ends = np.cumsum(length, dtype=np.int64)
    offset = ends - length
    buffer = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    _gather(block.buffer, np.concatenate((block.event_offset, block.query_offset)), offset, length, buffer)
    events = block.event_count
    return dataclasses.replace(block, buffer=buffer, event_offset=offset[:events], query_offset=offset[events:])


def can_follow(block: Block, before: Block) -> bool:
    """Returns whether `block` can be joined to the end of `before`. True if all of this holds: the blocks belong to one binlog file, they
    share the lists of tables and of GTID sources, they have neither schema changes nor statements, and no transaction is missing between
    them.

    If a transaction were missing, the executed sets that are computed from the joined block would not contain it.
    """
    same_stream = block.file == before.file and block.epoch == before.epoch and block.server_uuid == before.server_uuid
    same_references = block.tables is before.tables and block.gtid_sources is before.gtid_sources
    alone = block.changes or before.changes or block.statement or before.statement
    if not same_stream or not same_references or alone:
        return False
    last = before.transaction_count - 1
    return block.start_gtid_set == (before.start_gtid_set if last < 0 else executed_set(before, last))


def join(blocks: Sequence[Block]) -> Block:
    """Joins consecutive blocks into one block. For each block after the first, `can_follow` must return True for the block and its
    predecessor.
    """
    buffers = np.array([len(block.buffer) for block in blocks], np.int64)
    events = np.array([block.event_count for block in blocks], np.int64)
    transactions = np.array([block.transaction_count for block in blocks], np.int64)
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(block, name) for block in blocks])
        for name in ("buffer", *EVENT_ARRAYS, *TRANSACTION_ARRAYS, *QUERY_ARRAYS)
    }
    arrays["event_offset"] += np.repeat(np.cumsum(buffers) - buffers, events)
    arrays["transaction_events"] += np.repeat(np.cumsum(events) - events, transactions)
    if len(arrays["query_event"]):
        queries = np.array([len(block.query_event) for block in blocks], np.int64)
        arrays["query_offset"] += np.repeat(np.cumsum(buffers) - buffers, queries)
        arrays["query_event"] += np.repeat(np.cumsum(events) - events, queries)
    last = blocks[-1]
    return dataclasses.replace(blocks[0], open_frame=last.open_frame, open_gtid=last.open_gtid, **arrays)


@numba.njit(cache=True, nogil=True)
def _gather(source: Bytes, source_offset: Int64s, target_offset: Int64s, length: Int64s, target: Bytes) -> None:
    for index in range(len(length)):
        start, first, size = target_offset[index], source_offset[index], length[index]
        target[start : start + size] = source[first : first + size]


def transaction_bytes(block: Block) -> Int64s:
    """Returns, for each transaction, how many bytes the block's row events have in total from the block's first event to the transaction's
    last event (int64, ascending).
    """
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(block.event_bytes, dtype=np.int64)))
    ends: Int64s = before[block.transaction_events]
    return ends


def executed_set(block: Block, transaction: int) -> str:
    """Returns the executed GTID set after the transaction with index `transaction`, in the server's text form. It is empty if the server
    has no GTIDs.
    """
    upto = transaction + 1
    return executed_after(
        block.start_gtid_set, block.gtid_sources, block.transaction_source[:upto], block.transaction_number[:upto]
    )


def end_position(block: Block, transaction: int) -> Position:
    """Returns the position at the end of the transaction with index `transaction`. An ack of the transaction moves the cursor to this
    position.
    """
    return Position(
        epoch=block.epoch,
        file=block.file,
        offset=int(block.transaction_end[transaction]),
        gtid_set=executed_set(block, transaction),
        server_uuid=block.server_uuid,
        time_us=int(block.transaction_time_us[transaction]),
        file_created=block.file_created,
    )
