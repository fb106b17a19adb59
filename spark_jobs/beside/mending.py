"""Holds a history against its mirror where that was written beside the stream: by a repair or a backfill, which call it.

Two tables cannot be written in one commit. So the history is told first that its mirror will be written (a number), then the mirror is,
then the history is held against it and keeps the number. Whoever dies in between leaves a history that the next batch, or the next repair,
holds against the mirror before anything else: `write` asks `is_due`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spark_jobs.beside.history import KIND, History
from spark_jobs.beside.side_table import SideTable, side_app_id_of
from spark_jobs.fence import READ_ONLY, Fence
from spark_jobs.report import TableReport, TableTarget
from spark_jobs.session import Lane
from spark_jobs.staged_batch import app_id_of
from spark_jobs.tables.delta_table import DeltaTable
from spark_jobs.tables.table_owner import Owner, TableRecords

WRITES, HELD = "mirror-writes", "mirror-held"  # of commits without rows, each counted by itself
PROPERTY = "sluice.mirrorWrites"


def is_due(table: SideTable) -> bool:
    """Whether the mirror was written beside the stream, or was about to be, and the history was not held against it since."""
    return table.log is not None and table.aside(WRITES).applied > table.aside(HELD).applied


def announce(table: SideTable, user_metadata: str) -> None:
    """On disk before the mirror is written."""
    if table.log is not None and not is_due(table):
        began = time.time()
        table.aside(WRITES).mark(table.aside(HELD).applied + 1, user_metadata, PROPERTY)
        table.open().keep_on_disk(began)


def settle(table: SideTable, user_metadata: str) -> None:
    """The history was held against the mirror."""
    if is_due(table):
        table.aside(HELD).mark(table.aside(WRITES).applied, user_metadata, PROPERTY)
        table.open()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mending:
    """What is written beside the stream. `folder`: for Spark's source. `place`: order key and commit time (µs) where the mirror is.
    `record`: what the commits keep. `fence`: of the run.
    """

    lane: Lane | None
    folder: Path
    owner: Owner
    target: TableTarget
    key: Sequence[str]
    place: tuple[int, int]
    record: str
    storage_options: Mapping[str, str]
    records: TableRecords
    fence: Fence = READ_ONLY

    def do(self, write: Callable[[], TableReport]) -> TableReport:
        """Writes the mirror, and holds the history against it. Raises TableError, or what `write` raises."""
        if not self.target.history or not self.key:
            return write()
        owner = self.owner
        app_id = side_app_id_of(owner.destination, owner.ledger_id, KIND, owner.table)
        table = SideTable(owner.table, self.target.history, app_id, self.storage_options, fence=self.fence).open()
        announce(table, self.record)
        report = write()
        if table.log is not None:  # one that is not there begins with the rows of the mirror
            self._hold(table)
        return report

    def _hold(self, table: SideTable) -> None:
        began = time.time()
        mirror = DeltaTable(self.owner.table, self.target.path, app_id_of(self.owner), self.storage_options)
        version = mirror.refresh().version
        history = History(table=table, folder=self.folder, lane=self.lane, by_spark=self.target.merge == "spark")
        history.take(mirror, version, self.key, self.place, self.record)
        settle(table, self.record)
        table.open().keep_on_disk(began)
        self.records.keep_beside(self.owner.table, KIND, table.record)
