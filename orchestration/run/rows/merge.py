"""Merges the rows that an operation has read, under the run lock. `backfill` and `repair` call it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.orchestration.base.lake_settings import spark_settings, storage_options, told
from sluice.orchestration.base.ports import MergeFailedError, SparkAwayError
from sluice.orchestration.run.spark_merge import KeptRecords, settings_unread, targets_of
from sluice.orchestration.run.table_locks import table_locks_of, written_target

if TYPE_CHECKING:
    from sluice.batch_manifest.table_report import TableReport
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.instance.rows.work import BackfillReading
    from sluice.cdc_engine.position import Position
    from sluice.spark_jobs.errors import TableError
    from sluice.spark_jobs.fence import Fence
    from sluice.spark_jobs.rows.fold import Read
    from sluice.spark_jobs.staged_batch import Backfill


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOperation:
    """An operation on rows that holds the run lock. `backfill`: its id, kind and times, which its commits store. `fence`: of the run lock.
    `run`: the Dagster run, or empty.
    """

    config: SluiceConfig
    destination: str
    backfill: Backfill
    fence: Fence
    run: str = ""


def merge_read(
    operation: RowsOperation,
    reading: BackfillReading,
    lake: tuple[str, Position],
    reads: Mapping[str, Read | None],
    *,
    done: Callable[[TableReport, int], None],
    on_left: Callable[[str, int], None] = lambda _name, _keys: None,
) -> tuple[list[TableReport], dict[str, TableError]]:
    """Merges into the tables of `reads`: the rows that were read, or if None the keys that changed in the interval. `lake`: the ledger's id
    and cursor, as `reading.catch_up` returns them. `done`, `on_left`: see `spark_jobs.rows.merge`.

    Returns the reports of the merged tables, and the errors of the others. Raises SluiceError or MergeFailedError, with a sentence, if the
    cause is not one table.
    """
    from sluice.cdc_engine.destination_files import LakeTables  # noqa: PLC0415  imported where it is used, as in runs
    from sluice.spark_jobs.errors import MergeError, SparkJobError, SparkUnavailableError  # noqa: PLC0415
    from sluice.spark_jobs.merging.context import MergeContext  # noqa: PLC0415
    from sluice.spark_jobs.rows.merge import MergedRows, StagedInterval, merge_rows  # noqa: PLC0415

    config, destination, (ledger_id, cursor) = operation.config, operation.destination, lake
    interval = StagedInterval(
        backfill=operation.backfill,
        destination=destination,
        ledger_id=ledger_id,
        epoch=cursor.epoch,
        folders=[batch.path for batch in reading.staged],
        changed_up_to=reading.changed_up_to,
        lake_at=cursor.order_key,
        read_to=reading.read_to.order_key,
        start=reading.place.begin.to_json(),
        end=cursor.to_json(),
    )
    targets, odd = targets_of(tuple(reads), written_target(config, destination))
    failed = {name: settings_unread(name, error) for name, error in odd.items()}
    merged: list[TableReport] = []

    def table_done(report: TableReport, up_to: int) -> None:
        merged.append(report)
        done(report, up_to)

    try:
        merge_rows(
            interval,
            {name: MergedRows(target=each, read=reads[name]) for name, each in targets.items()},
            spark_settings(config, destination),
            MergeContext(
                fence=operation.fence,
                storage_options=storage_options(config.storage_options),
                records=KeptRecords(LakeTables(config.destination_dir(destination))),
                run=operation.run,
                table_locks=table_locks_of(config, destination, operation.run),
            ),
            on_table_done=table_done,
            on_left=on_left,
        )
    except SparkUnavailableError as error:
        raise SparkAwayError(told(config, error)) from error
    except MergeError as error:
        failed |= {each.table: each for each in error.errors}
    except SparkJobError as error:
        raise MergeFailedError(told(config, error)) from error
    return merged, failed


def not_merged(act: str, merged: Sequence[TableReport], failed: Mapping[str, TableError]) -> str:
    """Returns the sentence about tables that could not be merged. `act`: backfill or repair."""
    whys, there = "; ".join(map(str, failed.values())), ", ".join(each.name for each in merged) or "none"
    return f"{whys} (merged: {there}; not merged: {', '.join(failed)}; start the {act} again: it changes nothing twice)"
