"""Tracks the executed set of a binlog stream, and the names of the GTID sources that the scan kernel numbers.

A stream may start in the middle of a MySQL binlog file without an executed set. The set is then unknown until the next file begins: the
PREVIOUS_GTIDS event of this file has the complete set. While the set is unknown, transactions get no GTID, because a stream that resumes
with an incomplete set would read the whole binlog again.
"""

from __future__ import annotations

import struct
import uuid

import numpy as np

from sluice.cdc_engine.contracts import Int64s
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition, is_mariadb, parse_executed


class ExecutedTrack:
    """The executed set of a binlog stream: the GTIDs of all transactions up to the stream's position. `known` tells whether the set is
    complete. `text` is the set as text, or "" while the set is unknown.

    Raises PositionLostError if the set of the start position cannot be parsed.
    """

    def __init__(self, text: str, *, known: bool) -> None:
        self.known = known
        self.sources: list[str] = []
        self._executed: GtidSet | MariadbPosition | None = None
        self._text: str | None = None
        try:
            self._executed = parse_executed(text, mariadb=is_mariadb(text)) if text else None
        except ValueError as error:
            raise PositionLostError(
                f"the GTID set of the position cannot be read: {error}; set a valid position with `sluice position set`"
            ) from error

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = str(self._executed) if self.known and self._executed is not None else ""
        return self._text

    def adopt(self, executed: GtidSet | MariadbPosition) -> None:
        """Replaces the executed set by `executed`, which must be complete."""
        self._executed, self.known, self._text = executed, True, None

    def name_sources(self, sources: Int64s, count: int, *, mariadb: bool) -> None:
        """Appends to `self.sources` the names of the GTID sources that the kernel has found since the last call. `sources` is the kernel's
        array, whose first `count` columns have one source each: MySQL's uuid (two integers) and tag, or MariaDB's domain and server id.
        """
        for index in range(len(self.sources), count):
            high, low = sources[:2, index].tolist()
            if mariadb:
                self.sources.append(f"{high}-{low}")
            else:
                server = uuid.UUID(bytes=struct.pack("<qq", high, low))
                tag = sources[2:, index].astype("<i8").tobytes().rstrip(b"\0").decode()
                self.sources.append(f"{server}:{tag}" if tag else str(server))

    def take(self, source: Int64s, number: Int64s) -> None:
        """Adds the transactions of a block to the executed set. Does nothing while the set is unknown. `source` and `number` give the GTID
        of each transaction: the index of the GTID source in `self.sources`, and the number.
        """
        if not self.known or not len(source) or source.max() < 0:
            return
        if self._executed is None:
            self._executed = parse_executed("", mariadb=is_mariadb(self.sources[0]))
        self.adopt(self._executed.including(self.sources, source.astype(np.int32), number))

    def file_begins(self, previous: GtidSet, file: str) -> None:
        """Compares the executed set with `previous`, the set in the PREVIOUS_GTIDS event of a new file. If the executed set is unknown,
        adopts `previous`. Raises PositionLostError if `previous` has transactions that the stream did not contain.
        """
        if not self.known:
            self.adopt(previous)
            return
        executed = self._executed if isinstance(self._executed, GtidSet) else GtidSet()
        missing = previous.subtract(executed)
        if missing:
            raise PositionLostError(
                f"according to {file}, the server executed {missing} before this file, but the stream did not "
                "contain these transactions. Re-snapshot the tables; or, if these transactions did not "
                "change captured tables, set a position with `sluice position set`"
            )
