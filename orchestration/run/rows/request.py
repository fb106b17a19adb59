"""Defines the requests of operations on rows, and the callbacks for their progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.progress import ReadProgress
from sluice.cdc_engine.time_text import time_text

if TYPE_CHECKING:
    from sluice.equality.values import TableResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillRequest:
    """A requested backfill of `tables` of a destination, or of all captured tables if none is named.

    - `from_us` and `to_us` limit the interval of changes, in microseconds since 1970. `to_us` itself is excluded; None means until now.
    - `gtids` selects the transactions of this GTID set instead of an interval, or is empty.
    - `between` has the positions between which a Dagster run merged the changes, or is None. If `between` is set, the times limit the
      interval only if the binlog does not have these positions.
    - `into` is the name ("database.table") of a new table with a past state of the only table in `tables`. The live table then does not
      change. If `into` is empty, the changes are merged into the live tables.
    - `archive` is the location of archived binlog files that are read instead of the source's binlog, or empty.
    - `schemas` is the path of a database dump or of a saved schema history. The file is used instead of the destination's schema history.
      None means that the destination's schema history is used.
    """

    destination: str
    from_us: int
    to_us: int | None
    tables: tuple[str, ...]
    into: str = ""
    archive: str = ""
    schemas: Path | None = None
    gtids: str = ""
    between: tuple[Position, Position] | None = None

    def __str__(self) -> str:
        if self.gtids:
            return f"{self.destination}: changes of the transactions {self.gtids}"
        to = "now" if self.to_us is None else time_text(self.to_us)
        if self.into:
            return f"{self.destination}: {', '.join(self.tables)} as it was at {to}, as {self.into}"
        source = f", from the archive {self.archive} alone" if self.archive else ""
        return f"{self.destination}: changes from {time_text(self.from_us)} to {to}{source}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepairRequest:
    """A requested repair of tables of a destination, or of all captured tables if none is named. The repair waits at most `settle_seconds`
    until merges have caught up with the source.
    """

    destination: str
    tables: tuple[str, ...] = ()
    settle_seconds: float = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """Requested snapshots of tables of a destination, or of all captured tables if none is named. `where` is an SQL condition for the
    rows, or empty.
    """

    destination: str
    tables: tuple[str, ...] = ()
    where: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsListener:
    """The callbacks of an operation on rows. `say` logs a sentence. `done` is called when a table was committed, and `checked` when a table
    was compared again. `progress` is called while the binlog is read.
    """

    say: Callable[[str], None]
    done: Callable[[TableReport], None] = lambda _: None
    progress: Callable[[ReadProgress], None] = lambda _: None
    checked: Callable[[TableResult], None] = lambda _: None

    def merged(self, report: TableReport) -> None:
        """Logs the counts of a table that was committed, and calls `done`."""
        self.say(
            f"{report.name}: {report.source_rows} keys; {report.rows_inserted} rows inserted, {report.rows_updated} updated, "
            f"{report.rows_deleted} deleted"
        )
        self.done(report)


def counts_of(report: TableReport) -> dict[str, Any]:
    """Returns the counts of a merged table for the JSON output of commands."""
    counts = ("name", "source_rows", "rows_inserted", "rows_updated", "rows_deleted", "delta_version")
    return {count: getattr(report, count) for count in counts}
