"""Reads the source's side from the replica that conf/ names as `reader`. Its GTIDs tell its state: it must have executed everything that
the lake has.
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
    """A connection to a replica for comparisons of tables with a key. `source`: the source's side. `cursor`: returns how far the lake is
    merged.

    Raises ConfigurationError if the replica or the stream has no GTIDs.
    """

    def __init__(self, reader: Source, source: SourceSide, cursor: Callable[[], Position | None]) -> None:
        super().__init__(reader)
        self._of_source, self._cursor = source, cursor
        try:
            there = cursor()
            self.is_source = self.identity() == source.identity()  # It was promoted, or has the source's address.
            if there is not None and not self.is_source:
                replica.shows(self._source.address, self._executed(), there.gtid_set)
        except SluiceError:
            self._connection.close()
            raise

    def end(self) -> BinlogEnd:
        """Returns the end of the source's binlog. A replica shows a commit before its own GTIDs do, but after the source has logged it."""
        return self._of_source.end()

    def rows_of_keys(self, plan: ComparisonPlan, keys: Sequence[Sequence[str]]) -> pa.RecordBatchReader:
        """Returns the rows like `SourceSide`, after the replica has executed what the lake had before. Otherwise a row that the replica
        does not have yet would count as a difference. Raises RefusedError if the replica stays behind.
        """
        there = self._cursor()
        if there is not None and (why := replica.still_behind(self._source.address, self._executed, there.gtid_set)):
            raise RefusedError(why)
        return super().rows_of_keys(plan, keys)

    def _executed(self) -> str:
        return replica.one_line(self._connection.rows(replica.EXECUTED[self._connection.mariadb])[0]["executed"])
