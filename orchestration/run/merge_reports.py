"""Reports to Dagster which tables a merge run has merged. `assets` calls this module inside a run.

A table with an asset of its own gets a materialization. The other tables of a batch (`base.shown_tables`) get one materialization per
database. An error in a report never fails the run, because the tables are merged.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.orchestration.base.markdown import code
from sluice.orchestration.base.shown_tables import ShownTables, others_key, shown_tables
from sluice.orchestration.base.side_tables import SideAsset, side_events, side_tables
from sluice.orchestration.base.stored_together import store_now, stored_together
from sluice.orchestration.base.table_catalog import (
    DefinedColumns,
    SourceColumns,
    checkable,
    delta_key,
    size_metadata,
)
from sluice.orchestration.checks.stopped import FlowingTables, quarantine_evaluation, quarantines
from sluice.orchestration.run.merge_run import MergedTable

Metadata = dict[str, dg.MetadataValue[Any]]
LISTED_MAX = 100  # The materialization of a shared asset lists at most this many tables.
# The counts of a merged table. The materialization of a shared asset has their sums. Dagster plots the counts, so names and types must
# never change.
COUNTS = (
    "rows_inserted",
    "rows_updated",
    "rows_deleted",
    "rows_changed",
    "rows_rewritten_unchanged",
    "source_rows",
    "batch_bytes",
    "merge_ms",
    "files_added",
    "files_removed",
    "files_scanned",
    "files_pruned",
    "commit_conflicts",
    "source_inserts",
    "source_updates",
    "source_deletes",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportedTables:
    """The facts from Dagster's definitions that the reports of a destination's merge runs need. `checked` are the tables with the check
    `flowing`. `quarantining` are the tables with a check of their quarantine. `sides` has, by table, the change logs and histories that
    have assets.
    """

    config: SluiceConfig
    destination: str
    shown: ShownTables
    checked: tuple[str, ...]
    quarantining: frozenset[str]
    sides: Mapping[str, Sequence[SideAsset]]

    @property
    def drains(self) -> bool:
        return self.config.destinations[self.destination].runs == "drain"


def reported_tables(config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...]) -> ReportedTables:
    """Returns what the definitions know about the destination's `tables`."""
    shown = shown_tables(config, destination)
    own = shown.own(tables)
    checked = checkable(destination, [table.name for table in own])
    return ReportedTables(
        config=config,
        destination=destination,
        shown=shown,
        checked=tuple(checked),
        quarantining=frozenset(name for name in checked if quarantines(config, destination, name)),
        sides=side_tables(config, destination, own),
    )


class MergeReports:
    """Reports to Dagster the tables that one merge run has merged. A run that selects no assets calls `batch`, which reports all tables of
    a batch. A run that selects assets must yield an output for each asset. Until it has yielded all outputs, it calls `event` and `merged`
    for each table instead of `batch`.
    """

    def __init__(self, context: dg.OpExecutionContext, tables: ReportedTables) -> None:
        config, destination = tables.config, tables.destination
        self._context, self._tables = context, tables
        self._sources, self._flowing = SourceColumns(config, destination), FlowingTables(config, destination)
        self._defined = DefinedColumns(config, destination)
        # The tables whose check `flowing` is not reported yet. The check is reported once per table and run.
        self._unreported = set(tables.checked)

    def batch(self, merged: Sequence[MergedTable]) -> None:
        """Reports all tables of a batch as plain events, which belong to no output of the run."""
        with stored_together(self._context.instance):
            others = list[MergedTable]()
            for each in merged:
                if not self._tables.shown.has_asset(each.outcome.name):
                    others.append(each)
                elif (event := self.event(each)) is not None:
                    self.write(event)
                    self.merged(each)
            for shared in self._of_others(others):
                self.write(shared)

    def event(self, merged: MergedTable) -> dg.AssetMaterialization | dg.AssetObservation | None:
        """Returns the materialization of a merged table, or an observation if its changes are buffered. If the event cannot be built, logs
        a warning and returns None.
        """
        try:
            key = delta_key(self._tables.destination, merged.outcome.name)
            if merged.outcome.buffered:
                return dg.AssetObservation(key, metadata=buffered_metadata(merged))
            return _materialization(key, merged, metadata(merged) | self._columns(merged))
        except Exception as error:  # Whatever the error is, only the report of this table is missing.
            self._warn(f"{merged.outcome.name}: the table was merged, but Dagster cannot show the merge", error)
            return None

    def _columns(self, merged: MergedTable) -> Metadata:
        """Returns metadata about the columns of a merged table. Returns {} if the asset's definition shows the same columns."""
        name, columns = merged.outcome.name, merged.outcome.columns
        return {} if self._defined.shows(name, columns) else self._sources.metadata(name, columns)

    def write(self, event: dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation) -> None:
        """Writes an event to Dagster's log. Dagster also keeps each event in memory until the run ends. A draining run lasts long, so the
        event is removed from that memory.
        """
        self._context.log_event(event)  # type: ignore[arg-type]  # it takes evaluations of checks too
        if self._tables.drains:
            collections.deque(self._context.consume_events(), maxlen=0)

    def merged(self, merged: MergedTable) -> None:
        """Reports the change log, the history and the checks of a merged table."""
        name = merged.outcome.name
        self._sides(self._tables.sides.get(name, ()), merged)
        if name in self._tables.quarantining:
            self.quarantine(name)
        if name in self._unreported and not merged.outcome.buffered:
            self._unreported.remove(name)
            for result in self._flowing.passed(name):
                self.write(result)

    def quarantine(self, table: str) -> None:
        """Reports how many values of a table are in quarantine. If they cannot be counted, logs a warning and does not fail, because
        the batch is already merged.
        """
        # Reading the lake may take long. Other processes cannot store events before this run has stored its events.
        store_now(self._context.instance)
        try:
            found = quarantine_evaluation(self._tables.config, self._tables.destination, table)
        except dg.Failure as error:
            self._context.log.warning("%s: the number of values in quarantine is unknown: %s", table, error.description)
            return
        self.write(found)

    def _sides(self, sides: Sequence[SideAsset], merged: MergedTable) -> None:
        """Reports the change log and the history of a merged table as materialized, because the run wrote them too. Reports nothing if the
        table's changes are buffered.
        """
        if not sides or merged.outcome.buffered:
            return
        try:
            details: Metadata = {
                "source_rows": dg.MetadataValue.int(int(merged.outcome.source_rows)),
                "end_position": dg.MetadataValue.text(str(merged.batch.end)),
            }
            events = side_events(sides, merged.outcome.columns, details)
        except Exception as error:  # The table is merged, so an error in its report must not fail the run.
            self._warn(f"{merged.outcome.name}: Dagster cannot show the table's change log and history", error)
            return
        for event in events:
            self.write(event)

    def _of_others(self, others: Sequence[MergedTable]) -> Iterator[dg.AssetMaterialization]:
        """Yields one materialization per database for the tables of a batch that share an asset. Leaves out tables whose changes are
        buffered.
        """
        by_database = collections.defaultdict[str, list[MergedTable]](list)
        for each in others:
            if not each.outcome.buffered:
                by_database[each.outcome.database].append(each)
        for database, tables in by_database.items():
            try:
                key = others_key(self._tables.destination, database)
                yield _materialization(key, tables[0], others_metadata(tables))
            except Exception as error:  # The tables are merged, so an error in their report must not fail the run.
                self._warn(f"{len(tables)} tables of {database} were merged, but Dagster cannot show the merges", error)

    def _warn(self, what: str, error: Exception) -> None:
        self._context.log.warning("%s: %s: %s", what, type(error).__name__, error)


def _materialization(key: dg.AssetKey, merged: MergedTable, shown_values: Metadata) -> dg.AssetMaterialization:
    """Returns the materialization of an asset, with the end of the batch as data version. Dagster adds this tag to outputs of a run, but
    not to plain events.
    """
    version = dg.DataVersion(str(merged.batch.end)).value
    return dg.AssetMaterialization(key, metadata=shown_values, tags={DATA_VERSION_TAG: version})


def metadata(merged: MergedTable) -> Metadata:
    """Returns the metadata of a table's materialization, except the description of its columns. The numeric keys and their types must never
    change, so that Dagster plots unbroken lines.
    """
    outcome = merged.outcome
    whole = {
        **counts_of(merged),
        "delta_version": outcome.delta_version,
        "delta_version_before": outcome.delta_version_before,
    }
    return {
        **{name: dg.MetadataValue.int(int(value)) for name, value in whole.items()},
        "lag_seconds": dg.MetadataValue.float(float(merged.lag_seconds)),
        "merged_by": dg.MetadataValue.text(f"{outcome.way}: {outcome.reason}"),
        **_of_batch([merged]),
        "dagster/uri": dg.MetadataValue.text(outcome.path),
        **size_metadata(outcome.table_rows, outcome.table_bytes),
    }


def others_metadata(merged: Sequence[MergedTable]) -> Metadata:
    """Returns the metadata of the materialization for several tables of one batch: the sums of their counts, and a line for each of the
    tables with the most changes.
    """
    counts = [counts_of(each) for each in merged]
    most = sorted(merged, key=lambda each: (-each.outcome.source_rows, each.outcome.name))
    lines = [
        f"| {code(each.outcome.table)} | {counts_of(each)['rows_changed']} | {each.outcome.source_rows} | {each.outcome.delta_version} |"
        for each in most[:LISTED_MAX]
    ]
    left = len(merged) - len(lines)
    table = "\n".join(["| table | rows changed | source rows | Delta version |", "|---|---|---|---|", *lines])
    return {
        "tables_changed": dg.MetadataValue.int(len(merged)),
        **{name: dg.MetadataValue.int(sum(each[name] for each in counts)) for name in COUNTS},
        "lag_seconds": dg.MetadataValue.float(max(each.lag_seconds for each in merged)),
        **_of_batch(merged),
        "tables": dg.MetadataValue.md(f"{table}\n\n{f'and {left} more' if left else ''}"),
    }


def counts_of(merged: MergedTable) -> dict[str, int]:
    """Returns the counts of one merged table, in the order of COUNTS."""
    outcome = merged.outcome
    computed = {
        "rows_changed": outcome.rows_inserted + outcome.rows_updated + outcome.rows_deleted,
        "rows_rewritten_unchanged": outcome.rows_copied,
        "batch_bytes": outcome.bytes,
        "commit_conflicts": outcome.conflicts,
    }
    return {name: int(computed[name] if name in computed else getattr(outcome, name)) for name in COUNTS}


def _of_batch(merged: Sequence[MergedTable]) -> Metadata:
    batch, outcomes = merged[0].batch, [each.outcome for each in merged]
    return {
        "start_position": dg.MetadataValue.text(str(batch.start)),
        "end_position": dg.MetadataValue.text(str(batch.end)),
        "start_gtid_set": dg.MetadataValue.text(batch.start.gtid_set or "none"),
        "end_gtid_set": dg.MetadataValue.text(batch.end.gtid_set or "none"),
        "server_uuid": dg.MetadataValue.text(batch.end.server_uuid or "none"),
        "first_commit_time": dg.MetadataValue.timestamp(min(each.first_commit_time_us for each in outcomes) / 1e6),
        "last_commit_time": dg.MetadataValue.timestamp(max(each.last_commit_time_us for each in outcomes) / 1e6),
    }


def buffered_metadata(merged: MergedTable) -> Metadata:
    """Returns the metadata of an observation for a table whose changes are buffered because its snapshot is in progress."""
    return {
        "buffered_rows": dg.MetadataValue.int(int(merged.outcome.source_rows)),
        "end_position": dg.MetadataValue.text(str(merged.batch.end)),
    }
