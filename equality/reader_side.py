"""Reads the source's rows from the replica that conf/ names as `reader`. The replica's executed GTID set shows whether the replica has
executed all changes that the lake has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source import reader as replica
from sluice.cdc_engine.source.server import Source
from sluice.equality.source_side import BinlogEnd, SourceSide
from sluice.equality.table_plan import ComparisonPlan, RefusedError


class ReaderSide(SourceSide):
    """A connection to a replica from which the rows of tables with a key are read. `source` is the connection to the source. `cursor`
    returns the position up to which the lake is merged. `is_source` is true if the replica is the source itself. Raises ConfigurationError
    if the replica or the destination's stream has no GTIDs.
    """

    def __init__(self, reader: Source, source: SourceSide, cursor: Callable[[], Position | None]) -> None:
        super().__init__(reader)
        self._of_source, self._cursor = source, cursor
        try:
            there = cursor()
            # The reader is the source itself if the replica was promoted, or if conf/ names the source's own address.
            self.is_source = self.identity() == source.identity()
            if there is not None and not self.is_source:
                replica.shows(self._source.address, self._executed(), there.gtid_set)
        except SluiceError:
            self._connection.close()
            raise

    def end(self) -> BinlogEnd:
        """Returns the end of the source's binlog. Everything that a read of the replica has shown is before this end, because the replica
        executes only transactions of the source's binlog. The replica's own executed set cannot be used instead: a read may show a
        transaction that is not in the set yet.
        """
        return self._of_source.end()

    def rows_of_keys(self, plan: ComparisonPlan, keys: Sequence[Sequence[str]]) -> pa.RecordBatchReader:
        """Returns the rows of the keys. First waits until the replica has executed everything that the lake had when this method was
        called. Without this wait, a row that the lake has, and the replica does not have yet, would appear as a difference. Raises
        RefusedError if the replica is still behind after `replica.WAIT_SECONDS_MAX`.
        """
        there = self._cursor()
        if there is not None and (why := replica.still_behind(self._source.address, self._executed, there.gtid_set)):
            raise RefusedError(why)
        return super().rows_of_keys(plan, keys)

    def _executed(self) -> str:
        return replica.one_line(self._connection.rows(replica.EXECUTED[self._connection.mariadb])[0]["executed"])
