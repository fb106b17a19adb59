"""Reads the source's side from a replica (`equality.source`). Its GTIDs tell its state: it must have executed everything that the lake
has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceConnectionError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from sluice.equality.source_side import BinlogEnd, SourceSide
from sluice.equality.table_plan import ComparisonPlan, RefusedError

BEHIND_SECONDS_MAX = 60.0  # The longest wait for a replica that has not executed what the lake has.
POLL_SECONDS = 0.2
pause = time.sleep  # A test replaces it.
# The variable, by whether the server is a MariaDB.
EXECUTED = {True: "@@GLOBAL.gtid_current_pos", False: "@@GLOBAL.gtid_executed"}


class ReaderSide(SourceSide):
    """A connection to a replica for comparisons of tables with a key. `cursor`: returns how far the lake is merged.

    Raises ConfigurationError if the replica or the stream has no GTIDs.
    """

    def __init__(self, reader: Source, cursor: Callable[[], Position | None]) -> None:
        super().__init__(reader)
        self._cursor = cursor
        try:
            there = cursor()
            if not self._executed() or (there is not None and not there.gtid_set):
                raise ConfigurationError(
                    f"{reader.address} (equality.source) cannot be compared with: without GTIDs on the source and on the replica nothing "
                    "shows how far it is; enable GTIDs, or remove equality.source"
                )
        except SluiceError:
            self._connection.close()
            raise

    def end(self) -> BinlogEnd:
        """Returns what the replica has executed. It includes everything that was visible before this call."""
        if self._connection.mariadb:
            identity = f"mariadb-{self._connection.rows('SELECT @@server_id AS identity')[0]['identity']}"
        else:
            identity = str(self._connection.rows("SELECT @@server_uuid AS identity")[0]["identity"])
        there = self._cursor()
        if there is not None and there.server_uuid == identity:  # The replica was promoted, and the stream reads it.
            return super().end()
        return BinlogEnd(server_uuid=identity, file="", offset=0, gtid_set=self._executed())

    def rows_of_keys(self, plan: ComparisonPlan, keys: Sequence[Sequence[str]]) -> pa.RecordBatchReader:
        """Returns the rows like `SourceSide`, after the replica has executed what the lake had before. Otherwise a row that the replica
        does not have yet would count as a difference. Raises RefusedError if the replica stays behind.
        """
        there, began = self._cursor(), time.monotonic()
        while there is not None and not has_executed(executed := self._executed(), there.gtid_set):
            if time.monotonic() - began >= BEHIND_SECONDS_MAX:
                raise RefusedError(
                    f"{self._source.address} (equality.source) has executed {executed} after {BEHIND_SECONDS_MAX:.0f} s, and the lake has "
                    f"{there.gtid_set}: the replica is behind; compare it later"
                )
            pause(POLL_SECONDS)
        return super().rows_of_keys(plan, keys)

    def _executed(self) -> str:
        rows = self._connection.rows(f"SELECT {EXECUTED[self._connection.mariadb]} AS executed")
        if not rows:
            raise SourceConnectionError(
                f"{self._source.address} (equality.source) does not say what it has executed: name another one, or remove the setting"
            )
        return str(rows[0]["executed"] or "").replace("\n", "")
