"""Records which row events of the binlog have no effect, because their own transaction undoes them with ROLLBACK or ROLLBACK TO.

Usually a server does not write undone rows to its binlog. A server writes undone rows if the transaction also creates or drops a temporary
table, or also writes a table whose storage engine has no transactions. The rows of the table without transactions are not undone. Usually,
a server logs them as a transaction of their own (in the ROW format). But a replica of MariaDB can log them between undone rows.

A scan yields row events before it reads the statement that undoes them. So the engine reads such a transaction twice. The first scan
records the undone rows, and raises UndoneRowsError after the transaction. The reader drops the rows of the open transaction and reads the
transaction again with the same `UndoneRows`. The second scan leaves the undone rows out.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sluice.cdc_engine.binlog.block import keep_events
from sluice.cdc_engine.contracts import Block, Int64s
from sluice.cdc_engine.position import Position, file_number

FileOfEpoch = tuple[int, str]


class UndoneRows:
    """The undone row events that the scans of one reader have found, as intervals of offsets in binlog files. `rows_are_read` is False for
    a reader that needs no rows; the reader's scans then ignore undone rows. While `only_finds` is True, scans record undone rows, but raise
    no UndoneRowsError.
    """

    def __init__(self, *, rows_are_read: bool = True) -> None:
        self._rows_are_read = rows_are_read
        self.only_finds = False
        self._intervals: dict[FileOfEpoch, set[tuple[int, int]]] = {}
        # The sorted begins and the sorted ends of the intervals of a file, made when they are needed.
        self._bounds: dict[FileOfEpoch, tuple[Int64s, Int64s]] = {}

    def add(self, epoch: int, file: str, begin: int, end: int) -> bool:
        """Records that the row events of a file that begin at the offsets [`begin`, `end`) (bytes) are undone. Returns whether the
        transaction must be read again to leave the events out. The transaction must be read again if the interval is new, the reader needs
        rows, and `only_finds` is False.
        """
        if not self._rows_are_read or (begin, end) in self._intervals.get((epoch, file), ()):
            return False
        self._intervals.setdefault((epoch, file), set()).add((begin, end))
        self._bounds.pop((epoch, file), None)
        return not self.only_finds

    def forget_before(self, position: Position) -> None:
        """Drops the recorded undone row events whose interval ends at or before `position`. The reader continues after `position`, so it
        never reads these row events again. `position` must name a file.
        """
        following = (position.epoch, file_number(position.file), position.offset)
        for (epoch, file), known in list(self._intervals.items()):
            kept = {each for each in known if (epoch, file_number(file), each[1]) > following}
            self._intervals[epoch, file] = kept
            self._bounds.pop((epoch, file), None)
            if not kept:
                del self._intervals[epoch, file]

    def without_them(self, block: Block, lasting: Collection[int] = ()) -> Block:
        """Returns `block` without the row events that are known to be undone. `lasting`: indices of tables of the block whose storage
        engines have no transactions, so that a ROLLBACK does not undo their rows. These rows stay.
        """
        key = (block.epoch, block.file)
        if key not in self._intervals or not block.event_count:
            return block
        if key not in self._bounds:
            begins, ends = np.array(sorted(self._intervals[key]), np.int64).T
            self._bounds[key] = begins, np.sort(ends)
        begins, ends = self._bounds[key]
        # A row event is in an interval if more intervals begin at or before the event than end at or before the event.
        before = block.event_position
        undone = np.searchsorted(begins, before, "right") > np.searchsorted(ends, before, "right")
        if lasting:
            undone &= ~np.isin(block.event_table, list(lasting))
        return keep_events(block, ~undone) if undone.any() else block
