"""Defines the assets and the merge job of one destination. Each Delta table has an asset, downstream of the external asset of its source
table.

A run merges its whole batch, whatever assets the run selects, because the batch is acked as a unit. The run reports the tables of the
selected assets as its outputs, and all other tables of the batch as plain events. A run may yield each output only once. So if later
batches of a run with `runs: drain` change a table again, the run reports the table as a plain event. If a destination has so many tables
that they share assets (`base.shown_tables`), its merge job selects no assets.

A run without a batch was started with "Materialize" in Dagster's UI. Such a run requests a re-snapshot of the selected tables.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import datetime as dt
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.table_list.values import Comments
from sluice.orchestration.base.batch_reference import DRAIN, BatchReference, BatchReferenceError, check_tags
from sluice.orchestration.base.markdown import plain
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.base.table_catalog import (
    DELTA_KINDS,
    DefinedColumns,
    default_key,
    default_source_key,
    delta_key,
    foreign_keys,
    group_of,
    named,
    owners_of,
    source_comments,
    source_group_of,
    source_key,
    source_schema,
)
from sluice.orchestration.base.translation import Side, shown_spec
from sluice.orchestration.run.drain_run import DrainRun, Unreported, claim_of, drain
from sluice.orchestration.run.merge_reports import MergeReports, reported_tables
from sluice.orchestration.run.merge_run import MergedTable, as_failure, failure, merge_one, only_writer, take
from sluice.orchestration.run.snapshot_run import request_snapshots

MergeJob = dg.JobDefinition | UnresolvedAssetJobDefinition

# The run config of the merge job: the fields of a BatchReference. All fields are optional, because the config is empty if a person presses
# "Materialize".
MERGE_CONFIG = {
    "destination": dg.Field(str, is_required=False, description="The destination, a file of conf/destinations."),
    "ledger": dg.Field(
        str,
        is_required=False,
        description="The id of the batch's ledger. If the destination's ledger has another id, the run writes nothing.",
    ),
    "batch": dg.Field(int, is_required=False, description="The id of the batch in its ledger."),
    "first_end": dg.Field(
        int, is_required=False, description="The order key at which the batch ended when it was staged first."
    ),
    "delivery": dg.Field(
        int, is_required=False, description="The number of this delivery. A ledger never repeats a number."
    ),
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
    """Returns the assets of the Delta tables, and the step that merges a batch into these tables. The caller ensures that at least one of
    `tables` has an asset of its own.
    """
    reported = reported_tables(config, destination, tables)
    own = reported.shown.own(tables)
    outs: dict[str, dg.AssetOut] = {}
    ins: dict[str, dg.AssetIn] = {}
    upstream: dict[str, set[dg.AssetKey]] = {}
    table_of = {delta_key(destination, table.name): table.name for table in own}
    followed, comments = foreign_keys(config, destination), source_comments(config, destination)
    columns = DefinedColumns(config, destination)
    for table in own:
        name = _port_name(table.name)
        shown = columns.metadata(table)
        outs[name] = _delta_out(config, destination, table, followed.get(table.name, ()), comments, columns=shown)
        ins[f"source_{name}"] = dg.AssetIn(key=source_key(destination, table.name), dagster_type=dg.Nothing)
        upstream[name] = {source_key(destination, table.name)}

    @dg.multi_asset(
        name=f"{merge_name(destination)}__assets" if reported.shown.grouped else merge_name(destination),
        outs=outs,
        ins=ins,
        internal_asset_deps=upstream,
        can_subset=True,
        config_schema=MERGE_CONFIG,
    )
    def merge(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        selected, op = set(context.selected_asset_keys), context.op_execution_context
        if not op.op_config:
            # The config is empty if somebody pressed "Materialize".
            with as_failure():
                request_snapshots(op, config, destination, sorted(table_of[key] for key in selected))
            return
        reports = MergeReports(op, reported)
        for tables_of_batch in _merged(op, config, destination, ports):
            if selected:
                yield from _results(reports, tables_of_batch, selected)
            else:
                reports.batch(tables_of_batch)

    return merge


def _results(
    reports: MergeReports, tables: Sequence[MergedTable], selected: set[dg.AssetKey]
) -> Iterator[dg.MaterializeResult[Any]]:
    """Reports the tables of a batch. If the event of a table is a materialization and its asset is in `selected`, yields the event as an
    output of the run. Then removes the asset from `selected`, because a run may yield each output only once. Reports all other tables as
    plain events. Leaves out a table whose event cannot be built.
    """
    for merged in tables:
        event = reports.event(merged)
        if event is None:
            continue
        key = event.asset_key
        if key in selected and isinstance(event, dg.AssetMaterialization):
            selected.remove(key)
            version = dg.DataVersion(str(merged.batch.end))
            yield dg.MaterializeResult(asset_key=key, metadata=event.metadata, data_version=version)
        else:
            reports.write(event)
        reports.merged(merged)


def _described(comments: Comments, table: TableVersion, sentence: str) -> str:
    """Returns the description of an asset: the table's comment in the source, if there is one, and then `sentence`."""
    comment = comments.get(table.name, {}).get("", "")
    return f"{plain(comment)}\n\n{sentence}" if comment else sentence


def merge_job(config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...], ports: Ports) -> MergeJob:
    """Returns the merge job that the sensor requests.

    If there are no tables, or so many that tables share assets, the job is a plain op that reports every table as an event. Dagster would
    need too long to build a selection of assets from so many tables.
    """
    name, reported = f"{merge_name(destination)}_job", reported_tables(config, destination, tables)
    description = (
        f"Merges one staged batch of {destination} into its Delta tables. The sensor {destination}_engine starts this job. If a person "
        'starts the job, as with "Materialize" on a table, the job requests a re-snapshot of the selected tables. The sensor '
        f"{destination}_snapshots then starts the run that reads and publishes these tables."
    )
    if tables and not reported.shown.grouped:
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
        reports = MergeReports(context, reported)
        for merged in _merged(context, config, destination, ports):
            reports.batch(merged)

    @dg.job(name=name, executor_def=dg.in_process_executor, description=description)
    def job() -> None:
        merge()

    return job


def _merged(
    context: dg.OpExecutionContext, config: SluiceConfig, destination: str, ports: Ports
) -> Iterator[Sequence[MergedTable]]:
    """Merges the batch of this run, or batch after batch if the run drains. Yields the tables of each batch after the batch is merged, and
    in a draining run after the batch is settled. For every expected error, raises dg.Failure with a message for users.
    """
    try:
        reference = BatchReference.from_config(context.op_config)
        check_tags(reference, context.run.tags)
        if reference.destination != destination:
            raise BatchReferenceError(
                f"{reference} does not belong to {destination}, the destination of this job; nothing was written: leave merge runs to "
                "the sensor of the batch's destination"
            )
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
    config: SluiceConfig,
    destination: str,
    table: TableVersion,
    followed: Sequence[str],
    comments: Comments,
    *,
    columns: Mapping[str, Any],
) -> dg.AssetOut:
    """Returns the output of the merge step for a table. `followed` has a sentence about each foreign key that changes rows of the table
    without row events. `comments` are those of all tables in the source. `columns` is metadata about the table's columns.
    """
    path = config.kept_path(destination, table.database, table.table)
    details: dict[str, Any] = {"dagster/uri": path, **columns}
    if config.catalog is not None:
        side = next((kind for kind in ("log", "history") if path.endswith(f"__{kind}")), "")
        name = config.catalog_name(destination, table.database, table.table, side)
        details["dagster/table_name"] = ".".join(name)
    if followed:
        details["foreign_keys"] = dg.MetadataValue.md("\n".join(f"- {sentence}" for sentence in followed))
    key = f"keyed by {', '.join(table.key)}" if table.key else "without a key: every change is appended"
    settings = config.destinations[destination]
    if not settings.table(table.database, table.table).current_state:
        key = "as the table's history" if path.endswith("__history") else "as the table's change log"
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
    # The output is optional, because a run may select tables that its batch does not have.
    return dg.AssetOut.from_spec(
        shown_spec(Side.LAKE, named(destination, table.name), spec), dagster_type=dg.Nothing, is_required=False
    )


def _port_name(name: str) -> str:
    """Returns a name for Dagster's inputs and outputs: a hash of the table's name. MySQL allows characters that Dagster forbids, and
    replacing these characters could give two tables the same name.
    """
    return f"t{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
