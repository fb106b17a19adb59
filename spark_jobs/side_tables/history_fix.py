"""Updates the history of a table after a repair, a backfill or a replay of quarantined values has written the current-state table.

Delta cannot commit to two tables at once, so there are four steps. A commit in the history announces the write. The current-state table is
written. The history is updated from the current-state table. Another commit in the history confirms the update. If the confirmation is
missing after a crash (`is_due`), the next batch or repair compares the history with the current-state table again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sluice.spark_jobs.fence import READ_ONLY, Fence
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.side_tables.history import KIND, History
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id_of
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.table_owner import Owner, TableRecords
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.targets.report import TableTarget

# Kinds of commits without rows in a history. WRITES announces a write of the current-state table, and CONFIRMED confirms that the history
# has been compared with this table after the write. Each kind has its own app id.
WRITES, CONFIRMED = "current-state-writes", "current-state-compared"
Written = TypeVar("Written")


def is_due(table: SideTable) -> bool:
    """Returns whether a write of the current-state table was announced and has not been confirmed yet."""
    return table.log is not None and table.aside(WRITES).applied > table.aside(CONFIRMED).applied


def announce(table: SideTable, user_metadata: str) -> None:
    """Announces a write of the current-state table by a commit in the history, and syncs this commit to disk. If the run then crashes, the
    next batch or repair compares the history with the current-state table. Does nothing if there is no history, or if an earlier announced
    write has not been confirmed yet.
    """
    if table.log is not None and not is_due(table):
        began = time.time()
        table.aside(WRITES).mark(table.aside(CONFIRMED).applied + 1, user_metadata)
        table.open().keep_on_disk(began)


def settle(table: SideTable, user_metadata: str) -> None:
    """Confirms the announced writes by a commit in the history, so that no later run compares the history with the current-state table
    again. Called after this comparison. Does nothing if every announced write (`announce`) is confirmed.
    """
    if is_due(table):
        table.aside(CONFIRMED).mark(table.aside(WRITES).applied, user_metadata)
        table.open()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryFix:
    """Writes a current-state table, for example for a repair, and updates the history of the table.

    `folder` is for files that Spark reads. The current-state table includes all changes up to `position`, an order key and a commit time
    (µs). `record` is the metadata of the commits. `fence` is the fence of the run.
    """

    session: LakeSession | None
    folder: Path
    owner: Owner
    target: TableTarget
    key: Sequence[str]
    position: tuple[int, int]
    record: str
    storage_options: Mapping[str, str]
    records: TableRecords
    fence: Fence = READ_ONLY

    def do(self, write: Callable[[], Written]) -> Written:
        """Calls `write`, which writes the current-state table. Then updates the history from that table, unless there is no history to
        update: conf/ configures none, it does not exist yet, or the table has no key. Raises TableError, or the exceptions of `write`.
        """
        if not self.target.history or not self.key:
            return write()
        owner = self.owner
        app_id = side_app_id_of(owner.destination, owner.ledger_id, KIND, owner.table)
        table = SideTable(owner.table, self.target.history, app_id, self.storage_options, fence=self.fence).open()
        announce(table, self.record)
        report = write()
        # A history that does not exist yet needs no update: when it is created, it begins with the rows that the current-state table has at
        # that time.
        if table.log is not None:
            self._update(table)
        return report

    def _update(self, table: SideTable) -> None:
        began = time.time()
        current_state = DeltaTable(self.owner.table, self.target.path, app_id_of(self.owner), self.storage_options)
        version = current_state.refresh().version
        history = History(table=table, folder=self.folder, session=self.session, by_spark=self.target.merge == "spark")
        history.take(current_state, version, self.key, self.position, self.record)
        settle(table, self.record)
        table.open().keep_on_disk(began)
        self.records.keep_side_table(self.owner.table, KIND, table.record)
