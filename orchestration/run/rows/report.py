"""Reports an operation on rows to Dagster: each committed table as a materialization, with its checks as passed."""

from __future__ import annotations

import time
from typing import Any

import dagster as dg

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.progress import BINLOG, ReadProgress, figures
from sluice.equality.values import TableResult
from sluice.orchestration.base.side_tables import HISTORY
from sluice.orchestration.checks.equality import evaluation_of
from sluice.orchestration.run.rows.request import RowsListener
from sluice.orchestration.run.table_events import TableEvents

COUNTS = ("rows_inserted", "rows_updated", "rows_deleted", "source_rows", "delta_version", "delta_version_before")
PROGRESS_SECONDS = 10.0  # Progress is logged at most once in this many seconds, because Dagster stores each entry.


def listener_of(
    context: dg.OpExecutionContext, config: SluiceConfig, destination: str, description: str
) -> RowsListener:
    """Returns the callbacks that report the progress and the results of an operation in a Dagster run. `description` is the description of
    the materializations.
    """
    events, due = TableEvents(context, config, destination), time.monotonic() + PROGRESS_SECONDS

    def done(report: TableReport) -> None:
        metadata = _of_table(report)
        events.written(report.name, report, metadata, description)
        # An operation also writes the table's history, but not its change log, because a change log has only changes of the stream.
        events.sides_written(report.name, report, metadata, (HISTORY,))
        events.passed(report.name)

    def checked(result: TableResult) -> None:
        if events.shown.has_asset(result.table):
            context.log_event(evaluation_of(config, destination, result))  # type: ignore[arg-type]  # Dagster takes it

    def progress(made: ReadProgress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + PROGRESS_SECONDS
            context.log.info("progress of reading the binlog: %s", figures(made, BINLOG))

    return RowsListener(say=context.log.info, done=done, checked=checked, progress=progress)


def _of_table(report: TableReport) -> dict[str, dg.MetadataValue[Any]]:
    return {
        **{name: dg.MetadataValue.int(int(getattr(report, name))) for name in COUNTS},
        "merged_by": dg.MetadataValue.text(report.reason),
        "first_commit_time": dg.MetadataValue.timestamp(report.first_commit_time_us / 1e6),
        "last_commit_time": dg.MetadataValue.timestamp(report.last_commit_time_us / 1e6),
    }
