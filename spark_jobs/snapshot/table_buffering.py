"""Buffers a batch's changes of tables with a running snapshot, including the changes that foreign keys make. `run_batch` calls this
module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import StagedTable
from sluice.object_stores.errors import StoreError
from sluice.spark_jobs.cascades.play import Passed, UnderivableChanges
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.session import table_error
from sluice.spark_jobs.snapshot.buffered_cascades import (
    TooManyChangesError,
    buffer_changes,
    complete_up_to,
    mark_complete,
)
from sluice.spark_jobs.snapshot.buffering import BufferedChanges, SnapshotBuffers, buffer_table
from sluice.spark_jobs.staged_batch import StagedBatch
from sluice.spark_jobs.targets.report import TableTarget

NO_ERRORS: Mapping[str, TableError] = MappingProxyType({})
NOT_BUFFERED = "changes of the table could not be buffered"


class Buffering:
    """Buffers the changes of those tables of a batch that have a running snapshot. `live` are the tables among them that foreign keys may
    change in this batch. `reports` and `errors` have the result of each table.
    """

    def __init__(
        self,
        batch: StagedBatch,
        targets: Mapping[str, TableTarget],
        fence: Fence,
        holds: SnapshotBuffers,
        done: Callable[[TableReport], None],
    ) -> None:
        self._end, self._targets, self._fence, self._holds, self._done = (
            batch.end_order_key,
            targets,
            fence,
            holds,
            done,
        )
        self._tables = [table for table in batch.tables if holds.get(table.name) is not None]
        reached = {name for events in batch.cascades for name in events.live_names}
        self.live = frozenset(table.name for table in self._tables) & reached
        self.reports: dict[str, TableReport] = {}
        self.errors: dict[str, Exception] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of the batch's tables with a running snapshot."""
        return frozenset(table.name for table in self._tables)

    def complete(self) -> dict[str, int]:
        """Returns, for each table in `live` (the tables that foreign keys may change in this batch), the order key up to which all its
        changes are buffered. Raises TableError if the files of a buffer cannot be listed.
        """
        return {name: self._complete(name) for name in self.live}

    def _complete(self, name: str) -> int:
        buffered = self._buffered(name)
        try:
            return max(buffered.after, complete_up_to(buffered.cascades))
        except (OSError, StoreError) as error:
            raise TableError(
                name,
                f"the buffered changes of the table cannot be read: {error}; check the disk or object store "
                "with these changes",
                own=False,
            ) from error

    def buffer_others(self) -> None:
        """Buffers the changes of the tables that are not `live`."""
        for table in self._tables:
            if table.name not in self.live:
                self._try(table, ())

    def buffer_live(self, passed: Mapping[str, Sequence[Passed]], lost: Mapping[str, UnderivableChanges]) -> None:
        """Buffers the changes of the tables in `live` (the tables that foreign keys may change in this batch), and syncs these changes to
        disk. First restarts the snapshots of the tables in `lost`, whose changes could not be derived, so that their rows are read again.
        `passed` has the changes of parent rows that foreign keys pass on to each table. Raises TableError if one of these steps fails for a
        table. The run then derives no changes of foreign keys, and a repeated run derives them again.

        The restarts come first, because the run may crash after it has buffered all changes of a parent of a table in `lost`. A repeated
        run then derives no changes for the table in `lost`, so it would not restart the table's snapshot.
        """
        tables = [table for table in self._tables if table.name in self.live]
        for name in lost:
            with self._as_error(name):
                self._fence.check(name)
                self._unseen(name, lost[name].why, lost[name].through)
        for table in tables if not self.errors.keys() & self.live else ():
            self._try(table, passed.get(table.name, ()))
        if failed := sorted(self.errors.keys() & self.live):
            raise TableError(failed[0], NOT_BUFFERED, own=False) from self.errors[failed[0]]

    def refuse_live(self, why: str, errors: Mapping[str, TableError] = NO_ERRORS) -> None:
        """Records why nothing was written for the tables in `live` that have no result yet. `live` has the tables that foreign keys may
        change in this batch. The recorded error is the table's error in `errors`, or an error with the reason `why` if there is none.
        """
        for name in self.live - self.reports.keys() - self.errors.keys():
            self.errors[name] = errors.get(name) or TableError(name, why, own=False)

    def _try(self, table: StagedTable, changes: Sequence[Passed]) -> None:
        with self._as_error(table.name):
            self._fence.check(table.name)
            self.reports[table.name] = self._buffer(table, changes)
            self._done(self.reports[table.name])

    @contextlib.contextmanager
    def _as_error(self, name: str) -> Iterator[None]:
        """Records any exception as the error of the table, so that the other tables continue."""
        try:
            yield
        except Exception as error:
            self.errors[name] = table_error(name, error, NOT_BUFFERED)

    def _buffer(self, table: StagedTable, changes: Sequence[Passed]) -> TableReport:
        name, buffered = table.name, self._buffered(table.name)
        if name not in self.live:
            return buffer_table(table, self._targets[name], self._holds, buffered)
        try:
            buffer_changes(table, changes, buffered, self._end)
        except TooManyChangesError as error:
            buffered = self._unseen(name, str(error))
        report = buffer_table(table, self._targets[name], self._holds, buffered)
        if changes and self._buffered(name).after not in {buffered.after, self._end}:
            self._unseen(
                name, "foreign keys changed rows of the table in a batch in which the table was altered or truncated"
            )
        mark_complete(name, self._buffered(name), self._end)
        return report

    def _unseen(self, name: str, why: str, through: frozenset[str] = frozenset()) -> BufferedChanges:
        return self._holds.cascades_unseen(name, self._end, why, through)

    def _buffered(self, name: str) -> BufferedChanges:
        buffered = self._holds.get(name)
        if buffered is None:
            raise TableError(
                name, "the snapshot of the table is no longer open; Sluice tries the batch again", own=False
            )
        return buffered
