"""Reports an operation on rows to Dagster: one materialization per table that has its commit, and the checks that this passes."""

from __future__ import annotations

from typing import Any

import dagster as dg

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SluiceConfig
from sluice.equality.values import TableResult
from sluice.orchestration.base.side_tables import HISTORY, WrittenSides
from sluice.orchestration.base.table_catalog import SourceColumns, delta_key, size_metadata
from sluice.orchestration.checks.equality import evaluation_of
from sluice.orchestration.checks.stopped import FlowingTables
from sluice.orchestration.run.rows.request import RowsListener

COUNTS = ("rows_inserted", "rows_updated", "rows_deleted", "source_rows", "delta_version", "delta_version_before")


def listener_of(
    context: dg.OpExecutionContext, config: SluiceConfig, destination: str, description: str
) -> RowsListener:
    """Returns the callbacks of an operation in a run. `description`: what the materializations say."""
    flowing, sides = FlowingTables(config, destination), WrittenSides(config, destination)

    def history(report: TableReport) -> None:
        """Reports the history, which is compared with the table after it was written. A change log has the stream's changes alone."""
        try:
            for event in sides.events(report.name, report.columns, _of_table(report), (HISTORY,)):
                context.log_event(event)
        except Exception as error:  # The error may be of any kind; it concerns what Dagster shows.
            context.log.warning("%s: Dagster cannot show its history: %s: %s", report.name, type(error).__name__, error)

    def done(report: TableReport) -> None:
        columns = SourceColumns(config, destination).metadata(report.name, report.columns)
        metadata = {**_of_table(report), **size_metadata(report.table_rows, report.table_bytes), **columns}
        key = delta_key(destination, report.name)
        context.log_event(dg.AssetMaterialization(key, description=description, metadata=metadata))
        history(report)
        for result in flowing.passed(report.name):
            context.log_event(result)  # type: ignore[arg-type]  # it takes evaluations of checks too

    def checked(result: TableResult) -> None:
        context.log_event(evaluation_of(config, destination, result))  # type: ignore[arg-type]  # Dagster takes it

    return RowsListener(say=context.log.info, done=done, checked=checked)


def _of_table(report: TableReport) -> dict[str, dg.MetadataValue[Any]]:
    return {
        **{name: dg.MetadataValue.int(int(getattr(report, name))) for name in COUNTS},
        "merged_by": dg.MetadataValue.text(report.reason),
        "first_commit_time": dg.MetadataValue.timestamp(report.first_commit_time_us / 1e6),
        "last_commit_time": dg.MetadataValue.timestamp(report.last_commit_time_us / 1e6),
    }
