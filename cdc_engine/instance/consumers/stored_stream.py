"""Lets a consumer that is behind read the changes in the event store's files. The consumer reads the source only if the files do not have
the consumer's position.

The files may have changes that the source has purged. At the end of the files, the consumer continues in the window of the live stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from sluice.cdc_engine.errors import StoreDamagedError
from sluice.cdc_engine.gtid import has_executed, same_executed
from sluice.cdc_engine.instance.consumers.consumer_stream import OwnStream, StreamReader
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.files.log import EventLog
from sluice.cdc_engine.store.files.reader import DroppedTransaction, LogReader
from sluice.cdc_engine.store.opening import another_file
from sluice.cdc_engine.store.window.positions import WindowPosition, WindowReading, key_of
from sluice.cdc_engine.store.window.window import Window

# The size of the window of a stored stream. It needs no limit, because a block is put into the window only after the previous block was
# read.
NEVER_FULL = 1 << 62


class StoredStreams:
    """Opens streams that read the store's files. If the files do not have a position, calls `otherwise`, which opens a stream of the
    source. With `isolated`, each statement that changes tables is read alone, without other changes.
    """

    def __init__(
        self, log: EventLog, otherwise: Callable[[StreamReader, WindowPosition], OwnStream], *, isolated: bool = False
    ) -> None:
        self._log, self._otherwise, self._isolated = log, otherwise, isolated
        # Reader → the position at which its last stream of the files found no change. If the reader opens the next stream at this position,
        # the stream reads the source.
        self._spent: dict[StreamReader, WindowPosition] = {}

    def open(self, reader: StreamReader, position: WindowPosition) -> OwnStream:
        """Opens a stream at a position for the consumer `reader`: a stream of the files if the files have the position, otherwise a stream
        of the source. Raises PositionLostError if the stream of the source cannot begin at the position.
        """
        if self._spent.pop(reader, None) != position:
            try:
                found = self._log.reader_at(position.position)
            except (StoreDamagedError, FileNotFoundError):
                found = None
            if found is not None and not found[0].at_end and self._goes_on(position.position, found[1]):
                spent = functools.partial(self._spent.__setitem__, reader, position)
                return StoredStream(found[0], position, spent, isolated=self._isolated)
        return self._otherwise(reader, position)

    def _goes_on(self, position: Position, there: Position) -> bool:
        """Returns whether the files have all changes after `position`. `there` is the newest end of a transaction in the files that is not
        after `position`. It is before `position` if the last transaction before `position` is not stored, such as one without rows.

        Compares executed sets, because offsets do not show whether the files lack transactions. For example, if the engine requested its
        stream by GTID set, the server did not send the transactions in this set, and the files lack them.
        """
        if key_of(there) == key_of(position):
            return not another_file(there, position) and same_executed(there.gtid_set, position.gtid_set)
        if not position.gtid_set:
            return not there.gtid_set
        try:
            before_next = self._executed_before_next(position)
            return has_executed(position.gtid_set, there.gtid_set) and has_executed(before_next, position.gtid_set)
        except (StoreDamagedError, FileNotFoundError, ValueError):
            return False

    def _executed_before_next(self, position: Position) -> str:
        """Returns the executed set before the first transaction that follows a position in the files, or an empty text if none follows."""
        found = self._log.reader_at(position)
        while found is not None and (following := found[0].next()) is not None:
            if not isinstance(following, DroppedTransaction):
                return following.start_gtid_set
        return ""


class StoredStream:
    """Reads the store's files for one consumer. Implements `consumer_stream.OwnStream`. `reader` reads the changes after `begin`. If the
    files end before the first `read` has found a change, `read` calls `spent`. The consumer's next stream then reads the source, instead of
    finding nothing in the files again.
    """

    def __init__(
        self, reader: LogReader, begin: WindowPosition, spent: Callable[[], object], *, isolated: bool = False
    ) -> None:
        self._reader, self._spent, self._gave = reader, spent, False
        self._window = Window(begin.position, bytes_max=NEVER_FULL, waits=True, isolated=isolated)

    def read(
        self,
        position: WindowPosition,
        bytes_max: int,
        entries_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        full: bool = False,
    ) -> WindowReading | None:
        """Returns the changes after a position, and never waits. Returns a reading without pieces if `given_up` returns True. Returns None
        at the end of the files, if the files were removed, or if the position is not in the part that was read from the files.
        """
        del timeout_seconds, full
        while not given_up():
            found = self._window.read(position, bytes_max, entries_max)
            if found is None or found.pieces:
                self._gave = True
                return found
            if not self._more():
                if not self._gave:
                    self._spent()
                return None
        return WindowReading((), position)

    def stream_state(self) -> None:
        """Returns None, because a stored stream does not read the source."""

    def wake(self) -> None:
        """Does nothing, because a stored stream never waits."""

    def close(self) -> None:
        self._window.close()

    def _more(self) -> bool:
        try:
            following = self._reader.next()
            if isinstance(following, DroppedTransaction):
                self._window.drop_open()
            elif following is not None:
                self._window.put(following)
        except (FileNotFoundError, InterruptedError):
            return False
        return following is not None
