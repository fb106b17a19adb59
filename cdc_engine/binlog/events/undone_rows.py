"""Keeps which row events of the binlog have no effect, because their own transaction undoes them with ROLLBACK or ROLLBACK TO.

Usually a server does not write undone rows to its binlog. It does in a transaction that also creates or drops a temporary table, or that
also writes a table of an engine without transactions. The rows of that table are not undone: in the ROW format, the server writes them as
a transaction of their own.

A scan yields row events before it reads the statement that undoes them. So the rows are left out when the transaction is read again: the
first scan only finds the undone rows of the transaction, and raises UndoneRowsError at its end. The reader drops the open transaction and
reads it again with the same `UndoneRows`.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.block import Mask, keep_events
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.position import Position, file_number


class UndoneRows:
    """The undone row events that the scans of one reader have found, as intervals of offsets in binlog files. `rows_are_read` is False for
    a reader that needs no rows, so that its scans do not look for undone rows.
    """

    def __init__(self, *, rows_are_read: bool = True) -> None:
        self._rows_are_read = rows_are_read
        self._intervals: dict[tuple[int, str], set[tuple[int, int]]] = {}

    def add(self, epoch: int, file: str, begin: int, end: int) -> bool:
        """Adds the row events that begin at offsets from `begin` to before `end` (bytes) of a file. Returns whether the transaction must be
        read again to leave them out: they were unknown, and rows are read.
        """
        if not self._rows_are_read or (begin, end) in self._intervals.get((epoch, file), ()):
            return False
        self._intervals.setdefault((epoch, file), set()).add((begin, end))
        return True

    def forget_before(self, position: Position) -> None:
        """Drops the intervals of transactions that end at or before `position`, which names a file. The reader continues after it."""
        following = (position.epoch, file_number(position.file), position.offset)
        for (epoch, file), known in list(self._intervals.items()):
            kept = {each for each in known if (epoch, file_number(file), each[1]) > following}
            self._intervals[epoch, file] = kept
            if not kept:
                del self._intervals[epoch, file]

    def without_them(self, block: Block) -> Block:
        """Returns the block without its undone row events."""
        known = self._intervals.get((block.epoch, block.file))
        if not known or not block.event_count:
            return block
        undone: Mask = np.zeros(block.event_count, np.bool_)
        for begin, end in known:
            undone |= (block.event_position >= begin) & (block.event_position < end)
        return keep_events(block, ~undone) if undone.any() else block
