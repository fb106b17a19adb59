"""Merges a backfill: each table's folded images in one commit, by the same code and guard as the stream's. A run calls it.

The caller holds the run lock, so that no table moves meanwhile. Doing it again, wholly or in part, changes nothing that is right already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spark_jobs.backfill.fold import folded
from spark_jobs.errors import MergeError, SparkUnavailableError, TableError
from spark_jobs.merging.merge import NO_RECORDS, merge_table
from spark_jobs.report import TableReport, TableTarget
from spark_jobs.session import SparkSettings, first_line, is_away, open_lanes
from spark_jobs.staged_batch import Backfill, StagedBatch, StagedTable, app_id_of, read_staged_batch
from spark_jobs.tables.delta_table import DeltaTable
from spark_jobs.tables.table_owner import Owner, TableRecords

REASON = "a backfill is merged by Spark"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stretch:
    """What was read: `folders` of staged batches that follow each other. `backfill`: its id and times, which the commits keep.

    `changed_up_to`: order key of the interval's end. `lake_at`: order key up to which the lake has every table, at least; `read_to`: of
    the end of what was read. `ledger_id`: of the destination now. `start`, `end`: positions, as in a manifest.
    """

    backfill: Backfill
    destination: str
    ledger_id: str
    epoch: int
    folders: Sequence[Path]
    changed_up_to: int
    lake_at: int
    read_to: int
    start: Mapping[str, object]
    end: Mapping[str, object]


def places(stretch: Stretch, tables: Mapping[str, TableTarget], storage_options: Mapping[str, str]) -> dict[str, int]:
    """By "database.table" the order key up to which the lake has it. Raises TableError where a log cannot be read."""
    found = {}
    for name, target in tables.items():
        owner = Owner(ledger_id=stretch.ledger_id, destination=stretch.destination, table=name)
        table = DeltaTable(name, target.path, app_id_of(owner), storage_options)
        found[name] = max(stretch.lake_at, table.refresh().applied_order_key)
    return found


def merge_backfill(
    stretch: Stretch,
    tables: Mapping[str, TableTarget],
    spark: SparkSettings,
    *,
    on_table_done: Callable[[TableReport], None],
    storage_options: Mapping[str, str] | None = None,
    records: TableRecords = NO_RECORDS,
    run: str = "",
) -> list[TableReport]:
    """Merges the tables, one after the other; those of which nothing is meant have no report.

    Raises SparkUnavailableError, or MergeError after the other tables have finished when one could not be merged.
    """
    options = dict(storage_options or {})
    up_to = places(stretch, tables, options)
    reports: list[TableReport] = []
    errors: list[TableError] = []
    staged = [read_staged_batch(folder) for folder in stretch.folders]
    with open_lanes(spark, 1) as lanes:
        for name, target in tables.items():
            try:
                table = _folded(stretch, staged, name, up_to[name])
                if table is None:
                    continue
                batch = _batch(stretch, (table,))
                report = merge_table(lanes[0], batch, table, target, options, records=records, run=run, reason=REASON)
                reports.append(report)
                on_table_done(report)
            except Exception as error:
                errors.append(_told(name, error))
    if errors:
        failed, merged = tuple(each.table for each in errors), tuple(each.name for each in reports)
        raise MergeError(str(errors[0]), merged, failed, tuple(errors))
    return reports


def _told(name: str, error: Exception) -> TableError:
    if is_away(error):
        raise SparkUnavailableError(
            f"Spark went away while the backfill of {name} was merged ({first_line(error)}); begin it again"
        ) from error
    return (
        error if isinstance(error, TableError) else TableError(name, f"Spark could not merge it: {first_line(error)}")
    )


def _folded(stretch: Stretch, staged: Sequence[StagedBatch], name: str, up_to: int) -> StagedTable | None:
    """The table with one segment; None where no key is meant. Raises TableError."""
    if up_to > stretch.read_to:
        raise TableError(
            name, "the lake is further than what was read of the stream; begin the backfill again", own=False
        )
    found = [table for batch in staged for table in batch.tables if table.name == name]
    segments = [segment for table in found for segment in table.changes]
    if any(len(table.changes) != len(table.segments) for table in found):
        raise TableError(name, "the table itself changed in the interval; ask for the backfill again", own=False)
    if not segments:
        return None
    path = stretch.folders[0].parent / f"{len(name)}-{segments[0].path.name}"
    segment = folded(name, segments, path, stretch.changed_up_to, up_to)
    if segment is None:
        return None
    return StagedTable(database=found[0].database, table=found[0].table, segments=(segment,))


def _batch(stretch: Stretch, tables: tuple[StagedTable, ...]) -> StagedBatch:
    return StagedBatch(
        directory=stretch.folders[0],
        destination=stretch.destination,
        ledger_id=stretch.ledger_id,
        epoch=stretch.epoch,
        delivery=0,
        start=stretch.start,
        end=stretch.end,
        tables=tables,
        backfill=stretch.backfill,
    )
