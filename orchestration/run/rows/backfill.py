"""Applies the changes of a past interval again. Called by the jobs of `backfill_jobs`, and by `sluice backfill`.

All changes are read over a separate connection. The run lock is held from when the lake contains everything that was read until the last
table is merged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SluiceConfig
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.lake_settings import told
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.merge_run import only_writer_of_rows_read
from sluice.orchestration.run.rows.into import RebuiltTable, place_of, run_into
from sluice.orchestration.run.rows.merge import RowsOperation, merge_read, not_merged
from sluice.orchestration.run.rows.request import BackfillRequest, RowsListener, counts_of

if TYPE_CHECKING:
    from sluice.cdc_engine.instance.rows.work import BackfillReading


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
        tables = [counts_of(each) for each in self.outcomes]
        places = {"begin": self.begin, "end": self.end, "read_to": self.read_to}
        rebuilt = {"rebuilt": dataclasses.asdict(self.rebuilt)} if self.rebuilt else {}
        return {**places, "tables": tables, "refused": self.refused, **rebuilt}


def run_backfill(
    ports: Ports,
    config: SluiceConfig,
    request: BackfillRequest,
    listener: RowsListener,
    *,
    run: str = "",
    wait_seconds: float = 0.0,
) -> Done:
    """Reads the changes and merges them. Raises SluiceError or MergeFailedError, with a sentence; what was merged before is correct.

    Always safe to repeat. `wait_seconds`: how long to wait for another backfill of the destination.
    """
    from sluice.cdc_engine.instance.rows.rules import RequestedInterval  # noqa: PLC0415  imports the engine's packages
    from sluice.cdc_engine.instance.rows.work import BackfillReading, folder_of  # noqa: PLC0415

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
    listener: RowsListener,
    run: str,
    refusal: Callable[[], str],
) -> list[TableReport]:
    """Merges what was read; the caller holds the run lock, whose fence is `refusal`. Raises MergeFailedError."""
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.staged_batch import Backfill  # noqa: PLC0415

    lake = reading.catch_up()
    for name, why in reading.refused.items():
        listener.say(f"{name} is left out: {why}")
    if not reading.tables:
        listener.say("no table has changes in that interval, apart from those left out: nothing to merge")
        return []
    operation = RowsOperation(
        config=config,
        destination=request.destination,
        backfill=Backfill(backfill_id=reading.folder.name, from_us=request.from_us, to_us=request.to_us or 0),
        fence=Fence(refusal),
        run=run,
    )

    def done(report: TableReport, _up_to: int) -> None:
        failpoints.reach(failpoints.BETWEEN_BACKFILLED)
        listener.merged(report)

    merged, failed = merge_read(operation, reading, lake, dict.fromkeys(reading.tables), done=done)
    if failed:
        raise MergeFailedError(told(config, not_merged("backfill", merged, failed)))
    return merged
