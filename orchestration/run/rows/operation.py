"""Carries out an operation on rows: `backfill` or `repair` chooses keys and reads what must be merged, and this module merges it under the
run lock. docs/concepts/operations-on-rows.md describes the steps.

During the reading, merge runs continue to merge the stream into the same tables. Merge runs need not buffer these changes, because the
operation reads the changes again from the binlog, up to the lake's position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.lake_settings import lake_error_line, lake_errors, spark_settings, storage_options
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.run.consistent_snapshots import SnapshotAmendments
from sluice.orchestration.run.merge_run import only_writer_of_rows_read
from sluice.orchestration.run.spark_merge import KeptRecords, settings_unread, targets_of
from sluice.orchestration.run.table_locks import table_locks_of, written_target

if TYPE_CHECKING:
    from sluice.batch_manifest.table_report import TableReport
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.instance.rows.work import BackfillReading
    from sluice.cdc_engine.position import Position
    from sluice.orchestration.base.ports import Ports
    from sluice.orchestration.run.rows.request import RowsListener
    from sluice.spark_jobs.errors import TableError
    from sluice.spark_jobs.rows.fold import Read
    from sluice.spark_jobs.rows.merge import StagedInterval
    from sluice.spark_jobs.staged_batch import Backfill

NOT_IN_SNAPSHOT = (
    "the rows of the table are correct, but its version could not be added to the newest consistent "
    "snapshot; the snapshot of the next batch includes the table"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsRun:
    """The dependencies of an operation on rows of a destination. `run` is the id of the Dagster run, or empty for a command. `wait_seconds`
    is how many seconds to wait until another operation on the destination's rows has ended.
    """

    ports: Ports
    config: SluiceConfig
    destination: str
    listener: RowsListener
    run: str = ""
    wait_seconds: float = 0.0

    @property
    def directory(self) -> Path:
        return self.config.destination_dir(self.destination)


class RowsOperation(Protocol):
    """An operation on rows, which `operate` carries out: a backfill or a repair.

    - `marks` has the operation's id, kind and times, which its commits store. The marks are complete after `read`.
    - `refused` has the reason for each "database.table" that is left out.
    - `leaves_out` decides what happens if a table cannot be merged and the cause is in the table itself. If True, the table is added to
      `refused`. If False, the operation fails after the other tables were merged.
    """

    leaves_out: bool

    @property
    def refused(self) -> dict[str, str]: ...
    @property
    def marks(self) -> Backfill: ...

    def read(self, folder: Path) -> BackfillReading | None:
        """Chooses rows, and reads them and the stream's changes into a folder. Returns None if there is nothing to merge. Raises
        SluiceError with a message for users.
        """

    def rows(self, reading: BackfillReading) -> Mapping[str, Read | None]:
        """Returns the tables to merge, each with the rows that were read. A table has None if the operation is a backfill, which reads no
        rows from the source and merges the keys that changed in the interval. The caller holds the run lock, and `reading` has caught up
        with the lake.
        """


def operate(run: RowsRun, operation: RowsOperation) -> list[TableReport]:
    """Reads and merges rows, and returns the reports of the merged tables. Raises SluiceError or MergeFailedError with a message for users.
    Tables that were merged before the error are correct.

    The caller may repeat the operation at any time. Until its first commit, the operation writes only to a temporary folder. Each commit
    corrects one table completely.
    """
    from sluice.cdc_engine.instance.rows.work import folder_of  # noqa: PLC0415  imports the engine's packages

    with folder_of(run.directory, run.wait_seconds) as folder:
        reading = operation.read(folder)
        if reading is None:
            return []
        failpoints.reach(failpoints.BEFORE_ROWS)
        with only_writer_of_rows_read(run.ports, run.config, run.destination, run.listener.say) as refusal:
            reports = _merge(run, operation, reading, refusal)
        failpoints.reach(failpoints.AFTER_ROWS)
        return reports


def _merge(
    run: RowsRun, operation: RowsOperation, reading: BackfillReading, refusal: Callable[[], str]
) -> list[TableReport]:
    """Merges the rows and changes of `reading`, and returns the reports of the merged tables. The caller holds the run lock, whose fence is
    `refusal`.
    """
    from sluice.spark_jobs.errors import SparkJobError  # noqa: PLC0415  imported where it is used
    from sluice.spark_jobs.session import table_error  # noqa: PLC0415

    lake = reading.catch_up()
    rows = operation.rows(reading)
    if not rows:
        return []
    merged: list[TableReport] = []
    snapshots = SnapshotAmendments(run.config, run.destination)

    def done(report: TableReport, up_to: int) -> None:
        merged.append(report)
        failpoints.reach(failpoints.BETWEEN_ROWS)
        try:
            snapshots.add(report.name, up_to, refusal)
        except (SluiceError, SparkJobError):
            raise
        except Exception as error:
            raise table_error(report.name, error, NOT_IN_SNAPSHOT) from error
        run.listener.merged(report)

    def left(name: str, keys: int) -> None:
        run.listener.say(
            f"{name}: {keys} of the differing keys are left as they are, because the source did not find rows by these "
            "keys; the next comparison shows whether they still differ"
        )

    failed = _merge_tables(run, _interval(run, operation, reading, lake), rows, refusal, (done, left))
    if failed and not (operation.leaves_out and all(each.own for each in failed.values())):
        raise MergeFailedError(lake_error_line(run.config, _not_merged(operation.marks.kind, merged, failed)))
    for name, error in failed.items():
        operation.refused[name] = lake_error_line(run.config, error.reason)
    with lake_errors(run.config):
        snapshots.write(refusal)
    return merged


def _interval(
    run: RowsRun, operation: RowsOperation, reading: BackfillReading, lake: tuple[str, Position]
) -> StagedInterval:
    """Returns the changes of the stream that `reading` has read and staged, in the form that `merge_rows` needs. `lake` has the ledger's id
    and cursor, as `reading.catch_up` returns them.
    """
    from sluice.spark_jobs.rows.merge import StagedInterval  # noqa: PLC0415

    ledger_id, cursor = lake
    return StagedInterval(
        backfill=operation.marks,
        destination=run.destination,
        ledger_id=ledger_id,
        epoch=cursor.epoch,
        folders=[batch.path for batch in reading.staged],
        changed_in=reading.changed_in,
        lake_at=cursor.order_key,
        read_to=reading.read_to.order_key,
        start=reading.interval.begin.to_json(),
        end=cursor.to_json(),
    )


def _merge_tables(
    run: RowsRun,
    interval: StagedInterval,
    rows: Mapping[str, Read | None],
    refusal: Callable[[], str],
    callbacks: tuple[Callable[[TableReport, int], None], Callable[[str, int], None]],
) -> dict[str, TableError]:
    """Merges the tables of `rows` and returns the errors of tables that could not be merged. The first of `callbacks` gets the report of a
    merged table and the order key up to which the table is merged. The second gets a table's name and the number of its keys whose rows
    were found neither in the source nor in the stream. Raises SluiceError or MergeFailedError, with a message for users, if the cause
    concerns more than one table.
    """
    from sluice.cdc_engine.destination_files import LakeTables  # noqa: PLC0415
    from sluice.spark_jobs.errors import MergeError  # noqa: PLC0415
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.merging.context import MergeContext  # noqa: PLC0415
    from sluice.spark_jobs.rows.merge import MergedRows, merge_rows  # noqa: PLC0415

    config, (done, left) = run.config, callbacks
    targets, odd = targets_of(tuple(rows), written_target(config, run.destination))
    failed = {name: settings_unread(name, error) for name, error in odd.items()}
    context = MergeContext(
        fence=Fence(refusal),
        storage_options=storage_options(config.storage_options),
        records=KeptRecords(LakeTables(run.directory)),
        run=run.run,
        table_locks=table_locks_of(config, run.destination, run.run),
    )
    tables = {name: MergedRows(target=each, read=rows[name]) for name, each in targets.items()}
    spark = spark_settings(config, run.destination)
    with lake_errors(config):
        try:
            merge_rows(interval, tables, spark, context, on_table_done=done, on_left=left)
        except MergeError as error:
            failed |= {each.table: each for each in error.errors}
    return failed


def _not_merged(act: str, merged: Sequence[TableReport], failed: Mapping[str, TableError]) -> str:
    """Returns a message with the errors of the tables in `failed`, which could not be merged, and with the names of the tables in `merged`.
    `act` is the operation that must be started again: backfill or repair.
    """
    whys, there = "; ".join(map(str, failed.values())), ", ".join(each.name for each in merged) or "none"
    return f"{whys} (merged: {there}; not merged: {', '.join(failed)}; start the {act} again: a second {act} applies no change twice)"
