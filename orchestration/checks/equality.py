"""Defines the asset check `equals_lake`, which compares a source table with its Delta table, and the check's job and schedule.

Dagster shows a check's result only until the check's asset is materialized again, and every batch materializes the Delta table. So the
check belongs to the asset of the source table: on the Delta table's asset, the next merge would hide a difference.

The run's config limits what is compared: all rows, a share of the chunks, or the chunks that changed in the lake since they were last found
equal. Merges and comparisons can run at the same time, because the check takes no lock.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the types of `context` and `config` at
# runtime.

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from pydantic import Field

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import SluiceError
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.base.markdown import code
from sluice.orchestration.base.ports import CompareTables
from sluice.orchestration.base.shown_tables import others_source_key, shown_tables
from sluice.orchestration.base.table_catalog import checkable, checkable_keys, source_key

EQUAL_CHECK = "equals_lake"  # The check of the asset of a source table.
# The metadata key under which the check of a shared asset stores why each "database.table" differs. Programs read this metadata.
REASONS = "reasons"
# A sentence names at most NAMED_MAX tables. The metadata of a result lists at most REASONS_MAX tables.
NAMED_MAX, REASONS_MAX = 3, 100
Metadata = dict[str, dg.MetadataValue[Any]]
NIGHTLY = "17 3 * * *"  # The default time of the schedule. If conf/ sets no time, the schedule is switched off.
# The mode in a run's config → the mode of `Extent`. Dagster's enums cannot contain a hyphen, so the run's config has since_last.
MODES: dict[str, Literal["full", "sample", "since-last"]] = {
    "full": "full",
    "sample": "sample",
    "since_last": "since-last",
}


class EqualityRun(dg.Config):
    """The config of a run that compares the lake with the source. A person can change it in Dagster's launchpad."""

    mode: Literal["full", "sample", "since_last"] = Field(
        default="since_last",
        description="full: all rows; sample: some of the chunks; since_last: the chunks that changed since they were last found equal.",
    )
    percent: float = Field(default=10.0, description="sample: percentage of the chunks. Other modes ignore it.")
    settle_seconds: float = Field(
        default=300.0,
        description=(
            "Seconds to wait until the lake has all changes up to the position of the comparison. After that, differences that "
            "may be changes not merged yet are reported as undecided."
        ),
    )


def equality_check(
    config: SluiceConfig, destination: str, tables: Sequence[TableVersion], compare: CompareTables
) -> dg.AssetChecksDefinition | None:
    """Returns one definition that contains all checks, or None if there is no table to compare. Each asset that `_tables` returns gets one
    check `equals_lake`. An asset stands for one source table, or is shared by several tables.
    """
    tables_of, settings = _tables(config, destination, tables), config
    if not tables_of:
        return None
    specs = [
        dg.AssetCheckSpec(
            EQUAL_CHECK, asset=key, description=f"The Delta table of {_named(names)} has the same rows as the source."
        )
        for key, names in tables_of.items()
    ]

    @dg.multi_asset_check(name=_step(destination), specs=specs, can_subset=True)
    def check(context: dg.AssetCheckExecutionContext, config: EqualityRun) -> Iterator[dg.AssetCheckResult]:
        keys = {name: key.asset_key for key in context.selected_asset_check_keys for name in tables_of[key.asset_key]}
        extent = Extent(mode=MODES[config.mode], percent=config.percent, settle_seconds=config.settle_seconds)
        shared = dict[dg.AssetKey, list[TableResult]]()
        try:
            for found in compare(settings, destination, sorted(keys), extent):
                key = keys[found.table]
                if len(tables_of[key]) == 1:
                    yield result_of(key, found, repaired_metadata(settings, destination, found.table))
                    continue
                results = shared.setdefault(key, [])
                results.append(found)
                # The asset's result is reported as soon as its last table is compared. If a comparison of a later asset fails, this result
                # is already stored.
                if len(results) == len(tables_of[key]):
                    yield result_of_several(key, shared.pop(key))
            for key, results in shared.items():
                yield result_of_several(key, results)
        except SluiceError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from None

    return check


def equality_job(
    config: SluiceConfig, destination: str, tables: Sequence[TableVersion]
) -> UnresolvedAssetJobDefinition:
    """Returns the job that compares all tables of a destination. `equality` in conf/ limits which rows are compared."""
    bounds = config.destinations[destination].equality
    given = EqualityRun(mode="since_last" if bounds.mode == "since-last" else bounds.mode, percent=bounds.percent)
    keys = [dg.AssetCheckKey(key, EQUAL_CHECK) for key in _tables(config, destination, tables)]
    return dg.define_asset_job(
        equality_job_name(destination),
        selection=dg.AssetSelection.checks(*keys),
        config=dg.RunConfig(ops={_step(destination): given}),
        executor_def=dg.in_process_executor,
        description=f"Compares the Delta tables of {destination} with its source, while changes continue.",
    )


def equality_job_name(destination: str) -> str:
    """Returns the name of the job that compares all tables of a destination."""
    return f"{_step(destination)}_job"


def equality_schedule(
    config: SluiceConfig, destination: str, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Returns the schedule of the comparison. The schedule starts switched on if conf/ sets a time, and switched off otherwise."""
    schedule = config.destinations[destination].equality.schedule
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return dg.ScheduleDefinition(
        name=f"{_step(destination)}_schedule",
        job=job,
        description=(
            f"Compares the Delta tables of {destination} with the source. In conf/, `equality.mode` selects the rows, and "
            "`equality.schedule` sets the time and switches the schedule on."
        ),
        cron_schedule=schedule or NIGHTLY,
        execution_timezone="UTC",
        default_status=running if schedule else stopped,
    )


def repaired_metadata(config: SluiceConfig, destination: str, table: str) -> Metadata:
    """Returns metadata about the newest repair of a table, from its Delta log. Returns {} if the log has no repair."""
    from sluice.orchestration.base.lake_settings import storage_options, target  # noqa: PLC0415  not needed by merges
    from sluice.spark_jobs.rows.last_repair import last_repair  # noqa: PLC0415

    found = last_repair(target(config, destination, table).path, storage_options(config.storage_options))
    if found is None:
        return {}
    return {
        "repaired_at": dg.MetadataValue.timestamp(found.committed_at_us / 1e6),
        "repaired_rows_inserted": dg.MetadataValue.int(found.rows_inserted),
        "repaired_rows_updated": dg.MetadataValue.int(found.rows_updated),
        "repaired_rows_deleted": dg.MetadataValue.int(found.rows_deleted),
        "repaired_in_version": dg.MetadataValue.int(found.version),
        "repaired_by_run": dg.MetadataValue.text(found.run or "none"),
    }


def evaluation_of(config: SluiceConfig, destination: str, found: TableResult) -> dg.AssetCheckEvaluation:
    """Converts a comparison's result to an event, for runs that do not execute the check itself."""
    key = source_key(destination, found.table)
    made = result_of(key, found, repaired_metadata(config, destination, found.table))
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=EQUAL_CHECK,
        passed=made.passed,
        metadata=made.metadata,
        severity=made.severity,
        description=made.description,
    )


def result_of(key: dg.AssetKey, found: TableResult, more: Metadata | None = None) -> dg.AssetCheckResult:
    """Converts the comparison of one table to a check result. The metadata of the result says how many rows and chunks were compared, and
    at which position of the source. `more` is additional metadata.
    """
    metadata: dict[str, dg.MetadataValue[Any]] = {
        **(more or {}),
        "mode": dg.MetadataValue.text(found.mode),
        "rows": dg.MetadataValue.int(found.rows),
        "rows_in_the_lake": dg.MetadataValue.int(found.lake_rows),
        "chunks": dg.MetadataValue.int(found.chunks),
        "chunks_compared": dg.MetadataValue.int(found.chunks_compared),
        "rows_different": dg.MetadataValue.int(found.difference_count),
        "rows_in_motion": dg.MetadataValue.int(found.moving),
        "seconds": dg.MetadataValue.float(float(found.seconds)),
        "delta_version": dg.MetadataValue.int(found.version),
        "position": dg.MetadataValue.text(found.position or "none"),
        "gtid_set": dg.MetadataValue.text(found.gtid_set or "none"),
        "server_uuid": dg.MetadataValue.text(found.server_uuid or "none"),
        "checked_at": dg.MetadataValue.timestamp(found.checked_at_us / 1e6),
    }
    lines = [f"- chunk {each.chunk}" for each in found.chunks_different] + [f"- {each}" for each in found.differences]
    if lines:
        metadata["differences"] = dg.MetadataValue.md("\n".join(lines))
    if found.left_out:
        metadata["not_compared"] = dg.MetadataValue.text(", ".join(found.left_out))
    proven = found.verdict is Verdict.DIFFERENT
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=EQUAL_CHECK,
        passed=found.equal,
        severity=dg.AssetCheckSeverity.ERROR if proven else dg.AssetCheckSeverity.WARN,
        description=found.reason or (f"{found.difference_count} rows differ" if proven else None),
        metadata=metadata,
    )


def result_of_several(key: dg.AssetKey, found: Sequence[TableResult]) -> dg.AssetCheckResult:
    """Converts the results of tables that share an asset to one check result, which names the tables whose verdict is not EQUAL."""
    unequal = [each for each in found if not each.equal]
    verdicts = Counter(each.verdict for each in found)
    reasons = {each.table: each.reason or f"{each.difference_count} rows differ" for each in unequal[:REASONS_MAX]}
    lines = [f"- {code(name)}: {why}" for name, why in reasons.items()]
    left = len(unequal) - len(lines)
    metadata: Metadata = {
        "tables": dg.MetadataValue.int(len(found)),
        "tables_different": dg.MetadataValue.int(verdicts[Verdict.DIFFERENT]),
        "tables_undecided": dg.MetadataValue.int(verdicts[Verdict.UNDECIDED]),
        "tables_refused": dg.MetadataValue.int(verdicts[Verdict.REFUSED]),
        "rows": dg.MetadataValue.int(sum(each.rows for each in found)),
        "rows_in_the_lake": dg.MetadataValue.int(sum(each.lake_rows for each in found)),
        "rows_different": dg.MetadataValue.int(sum(each.difference_count for each in found)),
        "seconds": dg.MetadataValue.float(float(sum(each.seconds for each in found))),
    }
    if unequal:
        metadata[REASONS] = dg.MetadataValue.json(reasons)
        metadata["differences"] = dg.MetadataValue.md("\n".join([*lines, *([f"- and {left} more"] if left else [])]))
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=EQUAL_CHECK,
        passed=not unequal,
        severity=dg.AssetCheckSeverity.ERROR if verdicts[Verdict.DIFFERENT] else dg.AssetCheckSeverity.WARN,
        description=f"{len(unequal)} of {len(found)} tables were not found equal: {_named([each.table for each in unequal])}"
        if unequal
        else None,
        metadata=metadata,
    )


def compare_with_source(
    config: SluiceConfig, destination: str, tables: Sequence[str], extent: Extent
) -> Iterator[TableResult]:
    """Compares tables with the source, and yields one result per table. `real_ports` sets this function as `Ports.compare`."""
    from sluice.cdc_engine.instance.sources import read_by_engine, reader_of, source_of  # noqa: PLC0415  not needed by merges
    from sluice.equality.destination import ComparedDestination, compare_destination  # noqa: PLC0415
    from sluice.orchestration.base.lake_settings import storage_options  # noqa: PLC0415

    # This process may be a fork of a process that started before a failover, and may be on another host than the engine.
    settings = read_by_engine(config.destinations[destination], config.destination_dir(destination))
    now = config.model_copy(update={"destinations": {**config.destinations, destination: settings}})
    source = source_of(now.destinations[destination])
    reader = reader_of(now.destinations[destination])
    compared = ComparedDestination(now, destination, source, storage_options(config.storage_options), reader=reader)
    yield from compare_destination(compared, tables, extent)


def _step(destination: str) -> str:
    return f"equal_{destination}"


def _tables(
    config: SluiceConfig, destination: str, tables: Sequence[TableVersion]
) -> dict[dg.AssetKey, tuple[str, ...]]:
    """Returns the tables that the check of each asset compares. Leaves out tables from whose names Dagster cannot build the name of a
    check, and tables that have only a change log, because a change log has no rows to compare.
    """
    settings, shown = config.destinations[destination], shown_tables(config, destination)
    compared = [table for table in tables if settings.table(table.database, table.table).shows_rows]
    names = checkable(destination, [table.name for table in shown.own(compared)])
    others = shown.others(compared)
    keys = {database: others_source_key(destination, database) for database in others}
    return {
        **{source_key(destination, name): (name,) for name in names},
        **{keys[database]: tuple(each.name for each in others[database]) for database in checkable_keys(keys)},
    }


def _named(names: Sequence[str]) -> str:
    """Returns the first NAMED_MAX names as text. If there are more names, the text says how many more."""
    left = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {left} more" if left > 0 else "")
