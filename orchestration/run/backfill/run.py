"""Applies the changes of a past interval again. Called by the jobs of `jobs`, and by `sluice backfill`.

All changes are read over a separate connection. The run lock is held from when the lake contains everything that was read until the last
table is merged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SluiceConfig
from sluice.orchestration.base import failpoints, lake_settings
from sluice.orchestration.base.lake_settings import spark_settings, storage_options
from sluice.orchestration.base.ports import MergeFailedError, Ports, SparkAwayError
from sluice.orchestration.run.backfill.into import RebuiltTable, place_of, run_into
from sluice.orchestration.run.backfill.request import BackfillListener, BackfillRequest
from sluice.orchestration.run.merge_run import only_writer_of_rows_read
from sluice.orchestration.run.spark_merge import KeptRecords, settings_unread, targets_of
from sluice.orchestration.run.table_locks import table_locks_of, written_target

if TYPE_CHECKING:
    from sluice.cdc_engine.instance.backfill.work import BackfillReading


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """The result of a backfill. `refused`: "database.table" → why it was left out. `read_to`: the position up to which changes were read.

    `rebuilt`: the separate table that was built, if requested.
    """

    begin: str
    end: str
    read_to: str
    outcomes: tuple[TableReport, ...]
    refused: dict[str, str]
    rebuilt: RebuiltTable | None = None

    def to_json(self) -> dict[str, Any]:
        counts = ("name", "source_rows", "rows_inserted", "rows_updated", "rows_deleted", "delta_version")
        tables = [{count: getattr(each, count) for count in counts} for each in self.outcomes]
        places = {"begin": self.begin, "end": self.end, "read_to": self.read_to}
        rebuilt = {"rebuilt": dataclasses.asdict(self.rebuilt)} if self.rebuilt else {}
        return {**places, "tables": tables, "refused": self.refused, **rebuilt}


def run_backfill(
    ports: Ports,
    config: SluiceConfig,
    request: BackfillRequest,
    listener: BackfillListener,
    *,
    run: str = "",
    wait_seconds: float = 0.0,
) -> Done:
    """Reads the changes and merges them. Raises SluiceError or MergeFailedError, with a sentence; what was merged before is correct.

    Always safe to repeat. `wait_seconds`: how long to wait for another backfill of the destination.
    """
    from sluice.cdc_engine.instance.backfill.rules import RequestedInterval  # noqa: PLC0415  imports the engine's packages
    from sluice.cdc_engine.instance.backfill.work import BackfillReading, folder_of  # noqa: PLC0415

    directory, given = config.destination_dir(request.destination), config.destinations[request.destination]
    interval = RequestedInterval(from_us=request.from_us, to_us=request.to_us, tables=request.tables)
    listener.say(str(request))
    if request.into:
        place_of(config, request)
    with folder_of(directory, wait_seconds) as folder:
        if request.into:
            return _done(request, *run_into(config, request, listener, folder))
        reading = BackfillReading(
            given, directory, interval, folder, now_us=time.time_ns() // 1000, progress=listener.progress
        )
        reading.read()
        listener.say(f"read from {reading.place.begin} to {reading.read_to}: {len(reading.tables)} tables have changes")
        failpoints.reach(failpoints.BEFORE_BACKFILL)
        with only_writer_of_rows_read(ports, config, request.destination, listener.say) as refusal:
            outcomes = _merge(config, request, reading, listener, run, refusal)
        failpoints.reach(failpoints.AFTER_BACKFILL)
        return _done(request, reading, None, outcomes)


def _done(
    request: BackfillRequest,
    reading: BackfillReading,
    rebuilt: RebuiltTable | None,
    outcomes: Sequence[TableReport] = (),
) -> Done:
    return Done(
        begin=str(reading.place.begin),
        end=str(reading.place.end if request.to_us is not None else reading.read_to),
        read_to=str(reading.read_to),
        outcomes=tuple(outcomes),
        refused=dict(reading.refused),
        rebuilt=rebuilt,
    )


def _merge(  # noqa: PLR0917  one caller
    config: SluiceConfig,
    request: BackfillRequest,
    reading: BackfillReading,
    listener: BackfillListener,
    run: str,
    refusal: Callable[[], str],
) -> list[TableReport]:
    """Merges what was read; the caller holds the run lock, whose fence is `refusal`. Raises MergeFailedError."""
    from sluice.cdc_engine.destination_files import LakeTables  # noqa: PLC0415  imported where it is used, as in runs
    from sluice.spark_jobs.errors import MergeError, SparkJobError, SparkUnavailableError  # noqa: PLC0415
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.merging.context import MergeContext  # noqa: PLC0415
    from sluice.spark_jobs.rows.interval import StagedInterval  # noqa: PLC0415
    from sluice.spark_jobs.rows.merge import MergedRows, merge_rows  # noqa: PLC0415
    from sluice.spark_jobs.staged_batch import Backfill  # noqa: PLC0415

    ledger_id, cursor = reading.catch_up()
    for name, why in reading.refused.items():
        listener.say(f"{name} is left out: {why}")
    if not reading.tables:
        listener.say("no table has changes in that interval, apart from those left out: nothing to merge")
        return []
    folders: list[Path] = [batch.path for batch in reading.staged]
    interval = StagedInterval(
        backfill=Backfill(backfill_id=folders[0].parent.parent.name, from_us=request.from_us, to_us=request.to_us or 0),
        destination=request.destination,
        ledger_id=ledger_id,
        epoch=cursor.epoch,
        folders=folders,
        changed_up_to=reading.changed_up_to,
        lake_at=cursor.order_key,
        read_to=reading.read_to.order_key,
        start=reading.place.begin.to_json(),
        end=cursor.to_json(),
    )
    merged: list[TableReport] = []
    targets, odd = targets_of(reading.tables, written_target(config, request.destination))
    failed = {name: settings_unread(name, error) for name, error in odd.items()}

    def done(outcome: TableReport, _up_to: int) -> None:
        merged.append(outcome)
        failpoints.reach(failpoints.BETWEEN_BACKFILLED)
        listener.say(
            f"{outcome.name}: {outcome.source_rows} keys; {outcome.rows_inserted} rows inserted, {outcome.rows_updated} "
            f"updated, {outcome.rows_deleted} deleted"
        )
        listener.done(outcome)

    try:
        merge_rows(
            interval,
            {name: MergedRows(target=each) for name, each in targets.items()},
            spark_settings(config, request.destination),
            MergeContext(
                fence=Fence(refusal),
                storage_options=storage_options(config.storage_options),
                records=KeptRecords(LakeTables(config.destination_dir(request.destination))),
                run=run,
                table_locks=table_locks_of(config, request.destination, run),
            ),
            on_table_done=done,
        )
    except SparkUnavailableError as error:
        raise SparkAwayError(lake_settings.told(config, error)) from error
    except MergeError as error:
        failed |= {each.table: each for each in error.errors}
    except SparkJobError as error:
        raise MergeFailedError(lake_settings.told(config, error)) from error
    if failed:
        whys, done_names = "; ".join(map(str, failed.values())), ", ".join(each.name for each in merged) or "none"
        sentence = f"{whys} (merged: {done_names}; not merged: {', '.join(failed)}; start the backfill again: it changes nothing twice)"
        raise MergeFailedError(lake_settings.told(config, sentence))
    return merged
