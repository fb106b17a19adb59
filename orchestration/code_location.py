"""Builds the definitions of a code location from a configuration and the list of tables of each destination. Starts nothing."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import dagster as dg

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.assets import delta_assets, merge_job, merge_name, source_specs
from sluice.orchestration.base.shown_tables import grouped_now, others_specs, shown_tables
from sluice.orchestration.base.side_tables import side_specs, side_tables
from sluice.orchestration.base.table_catalog import default_key, defined_tables, delta_key, named, source_key
from sluice.orchestration.base.translation import Side, keep_default_key
from sluice.orchestration.checks.equality import equality_check, equality_job, equality_schedule
from sluice.orchestration.checks.stopped import destination_checks
from sluice.orchestration.retention.jobs import prune_job, prune_schedule
from sluice.orchestration.run.catch_up_job import catch_up_job
from sluice.orchestration.run.decisions.job import decide_job
from sluice.orchestration.run.instance_jobs import instance_job
from sluice.orchestration.run.maintain_jobs import maintain_job, maintain_schedules
from sluice.orchestration.run.rows.job import backfill_by_hour_job, rows_job
from sluice.orchestration.run.snapshot_run import snapshot_job
from sluice.orchestration.run_kinds import run_kinds
from sluice.orchestration.sensor.engine_asset import engine_asset
from sluice.orchestration.sensor.lake_watch import LakeWatch
from sluice.orchestration.sensor.snapshot_sensor import snapshot_sensor
from sluice.orchestration.sensor.tick import DestinationSensor, tick_seconds
from sluice.orchestration.sensors import engine_sensor

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.contracts import TableVersion
    from sluice.orchestration.base.ports import Ports

log = logging.getLogger(__name__)


def destination_definitions(
    config: SluiceConfig, destination: str, ports: Ports, taken: dict[dg.AssetKey, str] | None = None
) -> dg.Definitions:
    """Returns all definitions of one destination. If the definition of a table's asset fails, or if another asset has the same asset key,
    the table has no asset. Runs merge such a table nevertheless, and the engine's status names the table. `taken` has the asset keys of the
    destinations that are defined already, and gets those of this destination.
    """
    tables, clashes = _with_own_keys(config, destination, {} if taken is None else taken)
    try:
        return _definitions(config, destination, ports, tables, clashes)
    except (SluiceError, OSError):
        raise
    except Exception:
        undefined = {table.name: why for table in tables if (why := _why_undefined(config, destination, ports, table))}
        if not undefined:
            raise
        log.exception(
            "%s: runs merge these tables, but their assets cannot be defined: %s", destination, ", ".join(undefined)
        )
        rest = tuple(table for table in tables if table.name not in undefined)
        return _definitions(config, destination, ports, rest, (*clashes, *undefined.values()))


def _with_own_keys(
    config: SluiceConfig, destination: str, taken: dict[dg.AssetKey, str]
) -> tuple[tuple[TableVersion, ...], tuple[str, ...]]:
    """Returns the tables that can be defined, and a sentence about each other table. A table cannot be defined if the translation, a user's
    function that changes asset specs, gives it an asset key that another asset has. `taken` maps the keys of all assets so far to their
    tables, and gets the keys of the returned tables. Tables of the destination may share a source asset if the translation gives them equal
    specs.
    """
    tables, shown = defined_tables(config, destination), shown_tables(config, destination)
    own = shown.own(tables)
    sides = side_tables(config, destination, own)
    specs = functools.cache(
        lambda: dict(zip((each.name for each in own), source_specs(config, destination, own), strict=True))
    )
    found: list[TableVersion] = []
    clashes: list[str] = []
    sources: dict[dg.AssetKey, str] = {}  # For each key of a source asset, the first table that has it.
    for table in tables:
        if not shown.has_asset(table.name):
            found.append(table)
            continue
        names = [table.name, *(side.name for side in sides[table.name])]
        keys = [delta_key(destination, each) for each in names]
        source = source_key(destination, table.name)
        if source not in sources or specs()[sources[source]] != specs()[table.name]:
            keys.append(source)
        if clash := next((key for at, key in enumerate(keys) if key in taken or key in keys[:at]), None):
            clashes.append(
                f"{table.name} has no asset of its own in Dagster, because the translation gives it the key "
                f"{clash.to_user_string()} of {taken.get(clash, table.name)}: compute the key also from `database` and `destination`; "
                "runs merge its changes nevertheless"
            )
            for each in names:
                keep_default_key(Side.LAKE, named(destination, each), default_key(destination, each))
            continue
        taken.update(dict.fromkeys(keys, f"{table.name} of {destination}"))
        sources.setdefault(source, table.name)
        found.append(table)
    return tuple(found), tuple(clashes)


def _why_undefined(config: SluiceConfig, destination: str, ports: Ports, table: TableVersion) -> str:
    """Returns why the definitions of a table cannot be built, or ""."""
    try:
        _definitions(config, destination, ports, (table,))
    except Exception as error:  # Whatever the error is, only this table loses its asset.
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        return f"{table.name} has no asset in Dagster, because its definition failed ({why}); runs merge its changes nevertheless"
    return ""


def _definitions(
    config: SluiceConfig,
    destination: str,
    ports: Ports,
    tables: tuple[TableVersion, ...],
    undefined: tuple[str, ...] = (),
) -> dg.Definitions:
    """Returns the definitions of a destination, with assets for `tables`. `undefined` has a sentence about each table without an asset."""
    job, shown = merge_job(config, destination, tables, ports), shown_tables(config, destination)
    own = shown.own(tables)

    def run_lock_held(directory: Path) -> bool:
        files = ports.files()
        return files.run_lock_held(directory) or files.drain_lock_held(directory)

    def open_run_endpoint(directory: Path) -> None:
        from sluice.orchestration.rpc.run_endpoint import open_run_endpoint  # noqa: PLC0415  needed by engine processes only

        open_run_endpoint(ports.host, directory)

    line = DestinationSensor(
        destination=destination,
        op_name=merge_name(destination),
        tables=tuple(table.name for table in own),
        selects_assets=not shown.grouped,
        grouped_now=functools.partial(grouped_now, config, destination),
        run_lock_held=run_lock_held,
        tick_seconds=tick_seconds(len(config.destinations)),
        destinations=len(config.destinations),
        lake=LakeWatch(config, destination),
        drains=config.destinations[destination].runs == "drain",
        lag_seconds_max=config.destinations[destination].lag_seconds_max,
        open_run_endpoint=open_run_endpoint if config.engine.kind == "embedded" else lambda _: None,
        conf_troubles=lambda: (*ports.conf_troubles(destination), *undefined),
        kinds=run_kinds(config, destination),
        only_one=len(config.destinations) == 1,
        ledger=lambda: read_ledger(config.destination_dir(destination)).ledger_id,
    )
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
        engine_asset(config, destination),
        *source_specs(config, destination, own),
        *others_specs(config, shown, tables),
    ]
    if own:
        assets.append(delta_assets(config, destination, tables, ports))
        sides = side_tables(config, destination, own).values()
        assets += side_specs(config, [side for of_table in sides for side in of_table])
    reading = snapshot_job(config, destination, ports)
    looking_after = maintain_job(config, destination, ports)
    checks, jobs, schedules = (
        [destination_checks(config, destination, own)],
        [job, reading, backfill_by_hour_job(config, destination, ports)],
        maintain_schedules(config, destination, looking_after),
    )
    jobs = [*jobs, looking_after]
    if comparison := equality_check(config, destination, tables, ports.compare):
        compare = equality_job(config, destination, tables)
        checks, jobs = [*checks, comparison], [*jobs, compare]
        schedules = [*schedules, equality_schedule(config, destination, compare)]
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=jobs,
        schedules=schedules,
        sensors=[engine_sensor(line, job, ports.host), snapshot_sensor(config, destination, reading)],
    )


def build_definitions(config: SluiceConfig, ports: Ports) -> dg.Definitions:
    """Returns the definitions of Sluice's own code location. `ports` are the real ones, or fakes in tests."""
    own = dg.Definitions(executor=dg.in_process_executor)
    if config.destinations:
        pruning = prune_job(config)
        own = dg.Definitions(jobs=[pruning], schedules=[prune_schedule(pruning)], executor=dg.in_process_executor)
    return dg.Definitions.merge(definitions_of(config, ports), own)


def definitions_of(config: SluiceConfig, ports: Ports) -> dg.Definitions:
    """Returns the definitions for a user's code location, where the user chooses the executor of the jobs. Leaves out the job that removes
    old runs, because it would also remove runs of the user's own jobs.
    """
    if not config.destinations:  # The jobs below need at least one destination.
        return dg.Definitions()
    taken = dict[dg.AssetKey, str]()
    parts = [destination_definitions(config, name, ports, taken) for name in sorted(config.destinations)]
    deciding = (instance_job(config), decide_job(config, ports))
    jobs = [rows_job(config, ports), *deciding, catch_up_job(config)]
    return dg.Definitions.merge(*parts, dg.Definitions(jobs=jobs))
