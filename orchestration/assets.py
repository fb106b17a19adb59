"""Defines the assets and the merge job of one destination: one asset per Delta table, downstream of the external asset of its source
table.

A run merges its whole batch, whatever assets it selects, because the batch is acked as a unit. The selection only decides which tables
the run reports as materializations of its outputs. The run reports all other tables of the batch as plain events. With `runs: drain`, the
run also reports all tables of its later batches as plain events. A run without a batch was started with "Materialize" in Dagster's UI: it
requests a re-snapshot of the selected tables.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import collections
import datetime as dt
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.history.tables_file import Comments
from sluice.orchestration.base.batch_reference import DRAIN, BatchReference, BatchReferenceError, check_tags
from sluice.orchestration.base.markdown import plain
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.base.side_tables import SideAsset, side_events, side_tables
from sluice.orchestration.base.table_catalog import (
    DELTA_KINDS,
    SourceColumns,
    checkable,
    default_key,
    default_source_key,
    delta_key,
    foreign_keys,
    group_of,
    named,
    owners_of,
    size_metadata,
    source_comments,
    source_group_of,
    source_key,
    source_schema,
)
from sluice.orchestration.base.translation import Side, shown_spec
from sluice.orchestration.checks.stopped import FlowingTables, quarantine_evaluation, quarantines
from sluice.orchestration.run.drain_run import DrainRun, Unreported, claim_of, drain
from sluice.orchestration.run.merge_run import MergedTable, as_failure, failure, merge_one, only_writer, take
from sluice.orchestration.run.snapshot_run import request_snapshots

MergeJob = dg.JobDefinition | UnresolvedAssetJobDefinition

# A config without fields is valid: a person who presses "Materialize" names no batch.
MERGE_CONFIG = {
    "destination": dg.Field(str, is_required=False, description="The destination, a file of conf/destinations."),
    "ledger": dg.Field(
        str, is_required=False, description="The ledger of the batch. Runs of another ledger settle nothing."
    ),
    "batch": dg.Field(int, is_required=False, description="The id of the batch in its ledger."),
    "first_end": dg.Field(int, is_required=False, description="The order key up to which it was staged first."),
    "delivery": dg.Field(int, is_required=False, description="The number of this delivery. It never repeats."),
}


def merge_name(destination: str) -> str:
    """Returns the name of the merge step of a destination. The name of the merge job is the same with `_job` appended."""
    return f"merge_{destination}"


def source_specs(config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...]) -> list[dg.AssetSpec]:
    """Returns the specs of the external assets for the tables in the source."""
    settings, comments = config.destinations[destination], source_comments(config, destination)
    return [
        shown_spec(
            Side.SOURCE,
            named(destination, table.name),
            dg.AssetSpec(
                default_source_key(destination, table.name),
                group_name=source_group_of(settings, table.name),
                owners=owners_of(settings, table.name),
                kinds={"mysql"},
                description=_described(comments, table, f"The table {table.name} in the source of {destination}."),
                metadata={"dagster/column_schema": source_schema(table.columns, comments.get(table.name, {}))}
                if table.columns
                else None,
            ),
        )
        for table in tables
    ]


def delta_assets(
    config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...], ports: Ports
) -> dg.AssetsDefinition:
    """Returns the assets of the Delta tables, one per table, and the step that merges a batch into them. `tables` must not be empty."""
    drains = config.destinations[destination].runs == "drain"
    outs: dict[str, dg.AssetOut] = {}
    ins: dict[str, dg.AssetIn] = {}
    upstream: dict[str, set[dg.AssetKey]] = {}
    table_of = {delta_key(destination, table.name): table.name for table in tables}
    checked = checkable(destination, table_of.values())
    quarantining = [name for name in checked if quarantines(config, destination, name)]
    followed, sides = foreign_keys(config, destination), side_tables(config, destination, tables)
    comments = source_comments(config, destination)
    for table in tables:
        name = _port_name(table.name)
        outs[name] = _delta_out(config, destination, table, followed.get(table.name, ()), comments)
        ins[f"source_{name}"] = dg.AssetIn(key=source_key(destination, table.name), dagster_type=dg.Nothing)
        upstream[name] = {source_key(destination, table.name)}

    @dg.multi_asset(
        name=merge_name(destination),
        outs=outs,
        ins=ins,
        internal_asset_deps=upstream,
        can_subset=True,
        config_schema=MERGE_CONFIG,
    )
    def merge(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        selected, unreported = set(context.selected_asset_keys), set(checked)
        op, sources, flowing = (
            context.op_execution_context,
            SourceColumns(config, destination),
            FlowingTables(config, destination),
        )
        if not op.op_config:
            # The config is empty if somebody pressed "Materialize".
            with as_failure():
                request_snapshots(op, config, destination, sorted(table_of[key] for key in selected))
            return
        for merged in _merged(op, config, destination, ports):
            event = _event(op, destination, merged, sources)
            if event is None:
                continue
            key = event.asset_key
            if key in selected and isinstance(event, dg.AssetMaterialization):
                selected.remove(key)  # A run may yield each output only once.
                yield dg.MaterializeResult(
                    asset_key=key,
                    metadata=event.metadata,
                    data_version=dg.DataVersion(str(merged.batch.end)),
                )
            else:
                _tell(op, event, drains=drains)
            _tell_sides(op, sides.get(merged.outcome.name, ()), merged, drains=drains)
            if merged.outcome.name in quarantining:
                tell_quarantine(op, config, destination, merged.outcome.name)
            if merged.outcome.name in unreported and not merged.outcome.buffered:
                unreported.remove(merged.outcome.name)
                for result in flowing.passed(merged.outcome.name):
                    _tell(op, result, drains=drains)

    return merge


def _described(comments: Comments, table: TableVersion, sentence: str) -> str:
    """Returns the description of an asset: the table's comment in the source, if it has one, and `sentence`."""
    comment = comments.get(table.name, {}).get("", "")
    return f"{plain(comment)}\n\n{sentence}" if comment else sentence


def merge_job(config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...], ports: Ports) -> MergeJob:
    """Returns the merge job that the sensor requests. If `tables` is empty, the job is a plain op that reports every table as an event."""
    name, drains = f"{merge_name(destination)}_job", config.destinations[destination].runs == "drain"
    description = (
        f"Merges one staged batch of {destination} into its Delta tables: the sensor {destination}_engine starts it. Started by hand, as "
        'by "Materialize" on a table, it requests a re-snapshot of the selected tables; the sensor '
        f"{destination}_snapshots then starts the run that reads and publishes them."
    )
    if tables:
        return dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(
                *(delta_key(destination, table.name) for table in tables)
            ).without_checks(),
            executor_def=dg.in_process_executor,  # With Dagster's default executor, a run would start a second process for its step.
            description=description,
        )

    @dg.op(name=merge_name(destination), config_schema=MERGE_CONFIG)
    def merge(context: dg.OpExecutionContext) -> None:
        sources = SourceColumns(config, destination)
        for merged in _merged(context, config, destination, ports):
            event = _event(context, destination, merged, sources)
            if event is not None:
                _tell(context, event, drains=drains)

    @dg.job(name=name, executor_def=dg.in_process_executor, description=description)
    def job() -> None:
        merge()

    return job


def _tell(
    context: dg.OpExecutionContext,
    event: dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation,
    *,
    drains: bool,
) -> None:
    """Writes an event to Dagster's log. Dagster keeps each event in memory until the run ends. If `drains` is set, this function removes
    the logged event from that memory.
    """
    context.log_event(event)  # type: ignore[arg-type]  # it takes evaluations of checks too
    if drains:
        collections.deque(context.consume_events(), maxlen=0)


def _tell_sides(
    context: dg.OpExecutionContext, sides: Sequence[SideAsset], merged: MergedTable, *, drains: bool
) -> None:
    """Reports the change log and the history of a merged table as materialized, because the run wrote them too. Reports nothing for a
    table whose changes are buffered.
    """
    if not sides or merged.outcome.buffered:
        return
    try:
        details = {
            "source_rows": dg.MetadataValue.int(int(merged.outcome.source_rows)),
            "end_position": dg.MetadataValue.text(str(merged.batch.end)),
        }
        events = side_events(sides, merged.outcome.columns, details)
    except Exception as error:  # As in `_event`, an error in the report must not fail the merge.
        why = f"{type(error).__name__}: {error}"
        context.log.warning("%s: Dagster cannot show its change log and history: %s", merged.outcome.name, why)
        return
    for event in events:
        _tell(context, event, drains=drains)


def tell_quarantine(context: dg.OpExecutionContext, config: SluiceConfig, destination: str, table: str) -> None:
    """Reports how many values of a table are in quarantine. If they cannot be counted, it logs a warning and does not fail the run,
    because the batch is already merged.
    """
    try:
        found = quarantine_evaluation(config, destination, table)
    except dg.Failure as error:
        context.log.warning("%s: the number of values in quarantine is unknown: %s", table, error.description)
        return
    _tell(context, found, drains=config.destinations[destination].runs == "drain")


def _event(
    context: dg.OpExecutionContext, destination: str, merged: MergedTable, sources: SourceColumns
) -> dg.AssetMaterialization | dg.AssetObservation | None:
    """Returns the event that a run reports for a merged table, or None if building the event fails. The table is merged in both cases."""
    try:
        key = delta_key(destination, merged.outcome.name)
        if merged.outcome.buffered:
            return dg.AssetObservation(key, metadata=buffered_metadata(merged))
        return _materialization(key, merged, sources)
    except Exception as error:  # An error of any kind concerns only the report of this table.
        context.log.warning(
            "%s: merged, but Dagster cannot show it: %s: %s", merged.outcome.name, type(error).__name__, error
        )
        return None


def _materialization(key: dg.AssetKey, merged: MergedTable, sources: SourceColumns) -> dg.AssetMaterialization:
    """Returns the materialization of a table that is not an output of this run, with the same content as an output's materialization."""
    return dg.AssetMaterialization(
        key, metadata=metadata(merged, sources), tags={DATA_VERSION_TAG: dg.DataVersion(str(merged.batch.end)).value}
    )


def metadata(merged: MergedTable, sources: SourceColumns) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of a materialization. The numeric keys and their types must never change, so that Dagster plots unbroken
    lines.
    """
    outcome = merged.outcome
    whole = {
        "rows_inserted": outcome.rows_inserted,
        "rows_updated": outcome.rows_updated,
        "rows_deleted": outcome.rows_deleted,
        "rows_changed": outcome.rows_inserted + outcome.rows_updated + outcome.rows_deleted,
        "rows_rewritten_unchanged": outcome.rows_copied,
        "source_rows": outcome.source_rows,
        "batch_bytes": outcome.bytes,
        "merge_ms": outcome.merge_ms,
        "files_added": outcome.files_added,
        "files_removed": outcome.files_removed,
        "files_scanned": outcome.files_scanned,
        "files_pruned": outcome.files_pruned,
        "delta_version": outcome.delta_version,
        "delta_version_before": outcome.delta_version_before,
        "source_inserts": outcome.source_inserts,
        "source_updates": outcome.source_updates,
        "source_deletes": outcome.source_deletes,
    }
    return {
        **{name: dg.MetadataValue.int(int(value)) for name, value in whole.items()},
        "lag_seconds": dg.MetadataValue.float(float(merged.lag_seconds)),
        "start_position": dg.MetadataValue.text(str(merged.batch.start)),
        "merged_by": dg.MetadataValue.text(f"{outcome.way}: {outcome.reason}"),
        "end_position": dg.MetadataValue.text(str(merged.batch.end)),
        "start_gtid_set": dg.MetadataValue.text(merged.batch.start.gtid_set or "none"),
        "end_gtid_set": dg.MetadataValue.text(merged.batch.end.gtid_set or "none"),
        "server_uuid": dg.MetadataValue.text(merged.batch.end.server_uuid or "none"),
        "first_commit_time": dg.MetadataValue.timestamp(outcome.first_commit_time_us / 1e6),
        "last_commit_time": dg.MetadataValue.timestamp(outcome.last_commit_time_us / 1e6),
        "dagster/uri": dg.MetadataValue.text(outcome.path),
        **size_metadata(outcome.table_rows, outcome.table_bytes),
        **sources.metadata(outcome.name, outcome.columns),
    }


def buffered_metadata(merged: MergedTable) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of an observation for a table whose changes are buffered because its snapshot is in progress."""
    return {
        "held_rows": dg.MetadataValue.int(int(merged.outcome.source_rows)),
        "end_position": dg.MetadataValue.text(str(merged.batch.end)),
    }


def _merged(
    context: dg.OpExecutionContext, config: SluiceConfig, destination: str, ports: Ports
) -> Iterator[MergedTable]:
    """Merges the batches of this run and yields each table when it is merged. Raises dg.Failure with one sentence for every expected
    error.
    """
    try:
        reference = BatchReference.from_config(context.op_config)
        check_tags(reference, context.run.tags)
        if reference.destination != destination:
            raise BatchReferenceError(f"{reference} is not of {destination}, whose job this is; nothing was written")
        say, run = context.log.info, context.run.run_id
        if config.destinations[destination].runs == DRAIN:
            claim, unreported = claim_of(context.instance, run), Unreported(context.instance, destination)
            work = DrainRun(ports=ports, config=config, claim=claim, unreported=unreported, run=run, say=say)
            yield from drain(work, reference)
            return
        with only_writer(ports, config, destination, say):
            take(ports, config, reference, say)
            yield from merge_one(ports, config, reference, say, run=run)
    except (BatchReferenceError, MergeFailedError) as error:
        raise failure(error) from None


def _delta_out(
    config: SluiceConfig, destination: str, table: TableVersion, followed: Sequence[str], comments: Comments
) -> dg.AssetOut:
    """Returns the output of a table. `followed`: a sentence about each foreign key that changes rows of the table without row events.
    `comments`: the comments of all tables in the source.
    """
    path = config.kept_path(destination, table.database, table.table)
    details: dict[str, Any] = {"dagster/uri": path}
    if config.catalog is not None:
        side = next((kind for kind in ("log", "history") if path.endswith(f"__{kind}")), "")
        name = config.catalog_name(destination, table.database, table.table, side)
        details["dagster/table_name"] = ".".join(name)
    if followed:
        details["foreign_keys"] = dg.MetadataValue.md("\n".join(f"- {sentence}" for sentence in followed))
    key = f"keyed by {', '.join(table.key)}" if table.key else "without a key: every change is appended"
    settings = config.destinations[destination]
    if not settings.table(table.database, table.table).current_state:
        key = "its history instead of its rows" if path.endswith("__history") else "its change log instead of its rows"
    minutes = settings.table(table.database, table.table).fresh_within_minutes
    fresh = dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(minutes=minutes)) if minutes else None
    spec = dg.AssetSpec(
        default_key(destination, table.name),
        group_name=group_of(settings, table.name),
        owners=owners_of(settings, table.name),
        freshness_policy=fresh,
        kinds=DELTA_KINDS,
        description=_described(comments, table, f"The rows of {table.name} in the source of {destination}, {key}."),
        metadata=details,
    )
    # The output is optional, because a batch may lack tables that its run selects.
    return dg.AssetOut.from_spec(
        shown_spec(Side.LAKE, named(destination, table.name), spec), dagster_type=dg.Nothing, is_required=False
    )


def _port_name(name: str) -> str:
    """Returns a name for Dagster's inputs and outputs, which is a hash of the table's name. MySQL's names may contain characters that
    Dagster forbids, and replacing them could make two names equal.
    """
    return f"t{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
