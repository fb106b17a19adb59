"""Merges a batch with `spark_jobs`. Only runs import this module."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.commit_conflicts import add_commit_conflicts
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot.record import RestartCause
from sluice.cdc_engine.snapshot.records import SnapshotRecords, Transition
from sluice.object_stores.options import without_secrets
from sluice.orchestration.base.lake_settings import spark_settings, storage_options
from sluice.orchestration.base.ports import (
    BatchDamagedError,
    MergeFailedError,
    MergeOrder,
    SparkAwayError,
    TableFailure,
)
from sluice.orchestration.run.catalog.registration import register_after_run
from sluice.orchestration.run.consistent_snapshots import publish_for_batch
from sluice.orchestration.run.table_locks import table_locks_of, written_target

if TYPE_CHECKING:
    from sluice.cdc_engine.snapshot.record import SnapshotRecord
    from sluice.spark_jobs.errors import MergeError, TableError
    from sluice.spark_jobs.snapshot.buffering import BufferedChanges
    from sluice.spark_jobs.staged_batch import StagedBatch
    from sluice.spark_jobs.table_owner import TableRecord
    from sluice.spark_jobs.targets.report import TableTarget

logger = logging.getLogger(__name__)


def spark_merge(order: MergeOrder, on_table_done: Callable[[TableReport], None]) -> None:
    """Merges a staged batch into the Delta tables, publishes the consistent snapshot, and registers the tables in the catalog. Calls
    `on_table_done` with the report of each table. Implements `ports.Merge`.

    Raises SparkAwayError if Spark does not answer, BatchDamagedError if the staged files cannot be used, and MergeFailedError after any
    other failure.
    """
    from sluice.spark_jobs.batch.context import BatchContext  # noqa: PLC0415
    from sluice.spark_jobs.batch.run_batch import merge_batch  # noqa: PLC0415
    from sluice.spark_jobs.conflicts import CommitConflicts  # noqa: PLC0415
    from sluice.spark_jobs.errors import (  # noqa: PLC0415  pyspark takes a second to import
        MergeError,
        SparkJobError,
        SparkUnavailableError,
        StagedBatchError,
    )
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.staged_files.local_copy import local_copy  # noqa: PLC0415
    from sluice.spark_jobs.staged_files.read import read_staged_batch  # noqa: PLC0415

    config = order.config
    options = storage_options(config.storage_options)
    redacted = functools.partial(without_secrets, storage_options=options)
    buffers = OpenSnapshots(SnapshotRecords(config.destination_dir(order.destination)))
    find = written_target(config, order.destination)
    targets, odd = targets_of(order.tables, find)
    written: dict[str, tuple[tuple[str, str], ...]] = {}
    conflicts = CommitConflicts()

    def done(report: TableReport) -> None:
        written[report.path] = report.columns
        on_table_done(report)

    def merged(batch: StagedBatch) -> None:
        _refuse(odd, order.tables)
        publish_for_batch(config, order.destination, order.run, batch, fence, buffered=buffers.names)

    try:
        context = BatchContext(
            fence=(fence := Fence(order.refusal)),
            storage_options=options,
            records=KeptRecords(LakeTables(config.destination_dir(order.destination))),
            target_of=find,
            run=order.run,
            table_locks=table_locks_of(config, order.destination, order.run),
            buffers=buffers,
            quarantine_path=config.quarantine_path(order.destination),
            conflicts=conflicts,
        )
        spark = spark_settings(config, order.destination)
        with local_copy(order.batch_dir, order.stored, options) as folder:
            batch = read_staged_batch(folder, order.stored)
            merge_batch(batch, targets, spark, context, on_table_done=done, on_merged=merged)
        _refuse(odd, order.tables)
        register_after_run(config, order.destination, written)
    except SparkUnavailableError as error:
        raise SparkAwayError(redacted(str(error))) from error
    except StagedBatchError as error:
        raise BatchDamagedError(str(error)) from error
    except MergeError as error:
        raise MergeFailedError(redacted(str(error)), failures_of(error, redacted)) from error
    except (SparkJobError, SluiceError) as error:
        raise MergeFailedError(redacted(str(error))) from error
    finally:
        _keep_conflicts(order, conflicts.total)


def _keep_conflicts(order: MergeOrder, count: int) -> None:
    """Adds the number of the batch's commit conflicts to the destination's total, which the engine's status shows. If this fails, only logs
    a warning, because the merge does not depend on the total.
    """
    if not count:
        return
    try:
        add_commit_conflicts(order.config.destination_dir(order.destination), count)
    except SluiceError as error:
        logger.warning(
            "%s: the %s commit conflicts of this run could not be added to the total in the destination's status: %s",
            order.destination,
            count,
            error,
        )


def targets_of(
    names: Sequence[str], find: Callable[[str], TableTarget]
) -> tuple[dict[str, TableTarget], dict[str, Exception]]:
    """Returns the target of each table (where and how it is merged), and the errors of tables whose target cannot be built. Raises
    SluiceError for an error that concerns all tables.
    """
    targets, odd = dict[str, "TableTarget"](), dict[str, Exception]()
    for name in names:
        try:
            targets[name] = find(name)
        except SluiceError:
            raise
        except Exception as error:  # Whatever the error is, the other tables are merged.
            odd[name] = error
    return targets, odd


def settings_unread(name: str, error: Exception) -> TableError:
    """Returns the merge error for a table whose target cannot be built."""
    from sluice.spark_jobs.session import table_error  # noqa: PLC0415  pyspark takes a second to import

    return table_error(name, error, "the settings or the path of the table cannot be read")


def _refuse(odd: Mapping[str, Exception], names: Sequence[str]) -> None:
    """Raises MergeError for tables whose target could not be built. Call this after the other tables of the batch were merged, so that the
    error does not affect the other tables.
    """
    from sluice.spark_jobs.errors import MergeError  # noqa: PLC0415

    if odd:
        errors = [settings_unread(name, error) for name, error in odd.items()]
        rest = tuple(name for name in names if name not in odd)
        raise MergeError(str(errors[0]), rest, tuple(odd), tuple(each for each in errors if each.own))


class OpenSnapshots:
    """The snapshots that were open when a run began. A merge uses this object (protocol `SnapshotBuffers`) to find the tables whose changes
    it buffers, and to restart snapshots or mark them as failed. The caller holds the run lock.
    """

    def __init__(self, records: SnapshotRecords) -> None:
        self._records = records
        self._open = {each.name: each for each in records.all() if each.is_open}

    def get(self, name: str) -> BufferedChanges | None:
        record = self._open.get(name)
        return self._buffered(record) if record else None

    @property
    def names(self) -> tuple[str, ...]:
        """The tables whose changes are buffered."""
        return tuple(self._open)

    def again(self, name: str, order_key: int, why: str, *, images: bool = False) -> BufferedChanges:
        cause = RestartCause.IMAGES if images else None
        return self._restarted(name, lambda now: now.again(why, buffered_after=order_key, cause=cause))

    def cascades_unseen(self, name: str, order_key: int, why: str, through: frozenset[str]) -> BufferedChanges:
        return self._restarted(name, lambda now: now.cascades_unseen(why, buffered_after=order_key, through=through))

    def _restarted(self, name: str, transition: Transition) -> BufferedChanges:
        """Stores that the snapshot of a table starts again, and removes the changes that were buffered before the restart. Without the
        removal, a paused snapshot would keep the files of all its restarts. If the changes cannot be removed, logs a warning.
        """
        with _kept_elsewhere(name):
            record = self._records.update(name, transition)
        self._open[name] = record
        try:
            self._records.sweep_buffered(name)
        except SluiceError as error:
            # The files that are left are removed at the next restart of this snapshot, or when the snapshot begins to read or ends.
            logger.warning(
                "the changes of %s that were buffered before the restart of its snapshot could not be removed: %s; Sluice tries again",
                name,
                error,
            )
        return self._buffered(record)

    def _buffered(self, record: SnapshotRecord) -> BufferedChanges:
        from sluice.spark_jobs.snapshot.buffering import BufferedChanges  # noqa: PLC0415

        return BufferedChanges(
            files=self._records.changes(record),
            after=record.buffered_after,
            restarts=record.restarts_for(RestartCause.IMAGES),
            cascades=self._records.cascades(record),
        )

    def fail(self, name: str, why: str) -> None:
        with _kept_elsewhere(name):
            self._records.update(name, lambda now: now.failed(why))


@contextlib.contextmanager
def _kept_elsewhere(name: str) -> Iterator[None]:
    """Converts a SluiceError to a TableError with `own=False`. The SluiceError says that a record could not be read or written, so the
    cause is not in the table. The merge is tried again, and the table does not stop.
    """
    from sluice.spark_jobs.errors import TableError  # noqa: PLC0415

    try:
        yield
    except SluiceError as error:
        raise TableError(name, str(error), own=False) from error


class KeptRecords:
    """Reads and writes the stored id and version of each Delta table (`lake-tables/`), as the `TableRecord` that `spark_jobs` uses."""

    def __init__(self, tables: LakeTables) -> None:
        self._tables = tables

    def get(self, name: str) -> TableRecord | None:
        from sluice.spark_jobs.table_owner import TableRecord  # noqa: PLC0415

        kept = self._tables.get(name)
        return TableRecord(table_id=kept[0], version=kept[1]) if kept else None

    def keep(self, name: str, record: TableRecord) -> None:
        self.keep_all({name: record})

    def keep_all(self, records: Mapping[str, TableRecord]) -> None:
        self._tables.keep({name: (record.table_id, record.version) for name, record in records.items()})

    def side_table(self, name: str, kind: str) -> TableRecord | None:
        from sluice.spark_jobs.table_owner import TableRecord  # noqa: PLC0415

        kept = self._tables.side_tables(name).get(kind)
        return TableRecord(table_id=kept[0], version=kept[1]) if kept else None

    def keep_side_table(self, name: str, kind: str, record: TableRecord) -> None:
        self._tables.keep_side_table(name, kind, (record.table_id, record.version))

    def forget_current_state_table(self, name: str) -> None:
        self._tables.forget(name, whole=False)


def failures_of(error: MergeError, redacted: Callable[[str], str] = str) -> dict[str, TableFailure]:
    """Returns, by table name, each failure whose cause is in the table itself. `redacted` removes secrets from the reasons.

    Returns {} if several tables failed, no table was merged, and all failures have the state TABLE_MISSING or MERGE_FAILED. In this case
    the cause is the lake itself, for example an unmounted disk, and the tables do not stop.
    """
    from sluice.spark_jobs.errors import MERGE_FAILED  # noqa: PLC0415
    from sluice.spark_jobs.table_owner import TABLE_MISSING  # noqa: PLC0415

    of_the_lake = {TABLE_MISSING, MERGE_FAILED}
    if len(error.errors) > 1 and not error.merged and all(each.state in of_the_lake for each in error.errors):
        return {}
    return {each.table: TableFailure(each.state, redacted(each.reason), each.for_good) for each in error.errors}
