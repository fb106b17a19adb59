"""Handles tables that have a change log or history in the lake, but no current-state table. The change log or history of such a table gets
the checks that the current-state table would get.

`write` calls the checks before it writes such a table. `run_batch` reports the result.
"""

from __future__ import annotations

import dataclasses
import time

from sluice.batch_manifest.table_report import TableReport
from sluice.batch_manifest.values import SchemaSegment, StagedTable
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.side_tables import change_log, history
from sluice.spark_jobs.side_tables.side_table import SideTable
from sluice.spark_jobs.table_owner import LakeWriter, TableRecord, refuse_unless_ours
from sluice.spark_jobs.tables.renamed_table import DDL_UNSUPPORTED
from sluice.spark_jobs.targets.report import TableTarget, report_of_buffered

REASON = "conf/ has current_state: false for the table"


def kinds_of(target: TableTarget) -> list[tuple[str, str]]:
    """Returns the kind and path of the table's history and of its change log, as far as conf/ configures them. The history comes first,
    because it has more information about the table.
    """
    every = ((history.KIND, target.history), (change_log.KIND, target.change_log))
    return [(kind, path) for kind, path in every if path]


def refuse_unless_left(writer: LakeWriter, record: TableRecord | None, table: SideTable) -> None:
    """Raises a TableError that stops the table if the change log or history is missing, or if another program replaced or restored it since
    the last run. Without a current-state table, Sluice could not restore the lost rows.
    """
    refuse_unless_ours(writer, record, table.found(writer.owner, record))


def refuse_other_name(name: str, segment: SchemaSegment) -> None:
    """Raises TableError for a renamed table. The table would need the rows that it had under its old name, and without a current-state
    table these rows are unknown.
    """
    why = (
        f"the table was {segment.renamed_from} before, and without a current-state table the rows from before "
        "the rename are unknown; read the rows with `sluice snapshot start`"
    )
    raise TableError(name, why, state=DDL_UNSUPPORTED, for_good=True)


def report(staged: StagedTable, target: TableTarget, before: int, after: SideTable, began: float) -> TableReport:
    """Returns the report of a table without a current-state table. `before` is the version of the change log or history before the batch.
    `began` is the value of `time.monotonic` before the table was written.
    """
    buffered = report_of_buffered(staged, target.kept, staged.rows, round((time.monotonic() - began) * 1000))
    return dataclasses.replace(
        buffered,
        buffered=False,
        way="small",
        reason=REASON,
        delta_version=after.version,
        delta_version_before=before,
        skipped=after.version == before,
        columns=tuple(after.columns.items()) if target.history else (),
    )
