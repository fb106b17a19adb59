"""Maintains the Delta tables of a destination. The jobs of `maintain_jobs` and `sluice maintain` call this module.

The run takes the run lock for each table separately, and only if the table needs work. So merges can run between two tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.errors import ConfigurationError, SluiceError
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.table_meta.table_list.reading import read_table
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.lake_settings import lake_error_line, spark_settings, storage_options, target
from sluice.orchestration.base.ports import MergeFailedError, Ports, SparkAwayError
from sluice.orchestration.run.merge_run import only_writer
from sluice.orchestration.run.spark_merge import KeptRecords
from sluice.orchestration.run.table_locks import known_clashes, table_locks_of, writers_of

if TYPE_CHECKING:
    from sluice.spark_jobs.maintain.tables import Maintained, MaintainedTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaintainRequest:
    """The requested maintenance. `tables` are "database.table"; if empty, all tables in the lake are maintained. `force` rewrites files
    even if the benefit is small. VACUUM removes files that left a table more than `retention_hours` ago. If `retention_hours` is None,
    conf/ sets the time.
    """

    destination: str
    tables: tuple[str, ...] = ()
    optimize: bool = True
    vacuum: bool = False
    force: bool = False
    retention_hours: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looked:
    """The result of the maintenance. `done` has what was done with each table, or why nothing was done. `failed` has the reason for each
    "database.table" that failed. `hours` is how long VACUUM keeps files that left a table, or 0 if no VACUUM was requested.
    `snapshots_removed` is the number of removed consistent snapshots.
    """

    done: tuple[Maintained, ...]
    failed: dict[str, str]
    hours: float = 0.0
    snapshots_removed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [each.to_json() for each in self.done],
            "failed": self.failed,
            "retention_hours": self.hours,
            "consistent_snapshots_removed": self.snapshots_removed,
        }


def run_maintenance(  # noqa: PLR0917  its dependencies and listeners
    ports: Ports,
    config: SluiceConfig,
    request: MaintainRequest,
    say: Callable[[str], None],
    done: Callable[[Maintained], None] = lambda _: None,
    run: str = "",
) -> Looked:
    """Maintains the tables one after another. If one table fails, the others are maintained nevertheless. The caller may repeat the
    maintenance at any time. Raises SluiceError, MergeFailedError or SparkAwayError for a cause that concerns all tables.
    """
    from sluice.spark_jobs.errors import SparkUnavailableError, TableError  # noqa: PLC0415  pyspark takes a second to import

    names = _names(config, request)
    made: list[Maintained] = []
    failed: dict[str, str] = {}
    hours, snapshots_removed = 0.0, 0
    try:
        if request.vacuum:
            hours, snapshots_removed, failed = _before_vacuum(ports, config, request, names, say)
            names = [name for name in names if name not in failed]
        clashes = known_clashes(config) if request.vacuum else {}
        for name in names:
            given = request
            # If another table is inside this table's folder, VACUUM would delete the other table's files, because this table's log does not
            # name them.
            if clash := clashes.get((request.destination, name)):
                given = dataclasses.replace(request, vacuum=False)
                failed[name] = f"VACUUM did not process the table: {clash}"
                say(f"{name}: {failed[name]}")
            try:
                table = _table(config, request.destination, name, run)
                current_state = target(config, request.destination, name).current_state
                for each in _one(ports, config, given, table, say) if current_state else ():
                    made.append(each)
                    say(sentence_of(each))
                    done(each)
                for each in _side_tables(ports, config, given, table, say):
                    made.append(each)
                    say(sentence_of(each))
            except (SparkUnavailableError, SluiceError):
                raise
            except Exception as error:  # Whatever the error is, the other tables are maintained.
                failed[name] = lake_error_line(config, _sentence(error))
                say(f"{name}: {failed[name]}")
                continue
            failpoints.reach(failpoints.BETWEEN_MAINTAINED)
    except SparkUnavailableError as error:
        raise SparkAwayError(lake_error_line(config, error)) from error
    except TableError as error:
        raise MergeFailedError(lake_error_line(config, error)) from error
    failpoints.reach(failpoints.AFTER_MAINTENANCE)
    return Looked(done=tuple(made), failed=failed, hours=hours, snapshots_removed=snapshots_removed)


def _sentence(error: Exception) -> str:
    """Returns why a table could not be maintained, without the table's name."""
    from sluice.spark_jobs.errors import TableError  # noqa: PLC0415

    if isinstance(error, TableError):
        return error.reason
    if isinstance(error, MergeFailedError):
        return str(error)
    return f"the table could not be maintained: {type(error).__name__}: {error}"


def sentence_of(made: Maintained) -> str:
    """Returns a sentence about the maintenance of one table, for users."""
    before, after = made.before, made.after
    files = f"{before.files} files ({before.bytes} bytes) before, {after.files} ({after.bytes}) after"
    removed = f"; {made.removed_files} files removed" if made.act == "vacuum" else ""
    return f"{made.name}: {made.act}: {made.reason}; {files}{removed}"


def _names(config: SluiceConfig, request: MaintainRequest) -> list[str]:
    """Returns the requested tables, or all tables in the lake if none was requested. Raises ConfigurationError if a requested table is not
    in the lake.
    """
    there = LakeTables(config.destination_dir(request.destination)).names
    if unknown := sorted(set(request.tables) - set(there)):
        raise ConfigurationError(
            f"{', '.join(unknown)}: the lake of {request.destination} has no such table; its tables: "
            f"{', '.join(there) or 'none yet'}"
        )
    return sorted(request.tables) or there


def _before_vacuum(
    ports: Ports, config: SluiceConfig, request: MaintainRequest, names: Sequence[str], say: Callable[[str], None]
) -> tuple[float, int, dict[str, str]]:
    """Removes consistent snapshots that need files which VACUUM may delete. Returns for how many hours files must stay, the number of
    removed snapshots, and the reason for each table whose log cannot be read. VACUUM leaves out these tables.
    """
    from sluice.consistent_snapshot.find import consistent_snapshots_path  # noqa: PLC0415
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.maintain.rule import RETENTION_HOURS, snapshot_hours  # noqa: PLC0415
    from sluice.spark_jobs.maintain.tables import logged_hours, newest_snapshot_age_hours, prune_consistent_snapshots  # noqa: PLC0415

    path, options = consistent_snapshots_path(config.lake, request.destination), storage_options(config.storage_options)
    with only_writer(ports, config, request.destination, say) as refusal:
        hours = _hours(config, request)
        if hours > (requested := _requested_hours(config, request)):
            say(
                f"files that left a table are kept for {hours:.0f} hours instead of {requested:g}, because the newest consistent "
                "snapshot of the tables needs them"
            )
        found: list[float | None] = []
        failed: dict[str, str] = {}
        for name in names:
            try:
                if target(config, request.destination, name).current_state:
                    found.append(logged_hours(_table(config, request.destination, name, "")))
            except SluiceError:
                raise
            except Exception as error:  # Whatever the error is, the other tables are maintained.
                failed[name] = lake_error_line(config, _sentence(error))
                say(f"{name}: {failed[name]}")
        logged = min((each for each in found if each is not None), default=RETENTION_HOURS)
        kept = snapshot_hours(hours, logged, newest_snapshot_age_hours(path, options))
        return hours, prune_consistent_snapshots(path, kept, Fence(refusal), options), failed


def _requested_hours(config: SluiceConfig, request: MaintainRequest) -> float:
    configured = config.destinations[request.destination].maintenance.retention_hours
    return configured if request.retention_hours is None else request.retention_hours


def _hours(config: SluiceConfig, request: MaintainRequest, names: Collection[str] | None = None) -> float:
    """Returns for how many hours VACUUM must keep files that left the tables `names`; None means all tables. The result is the requested
    time, or more if the newest consistent snapshot needs older files. While a destination is stopped, no newer snapshot is made, so the
    result rises with time. Raises TableError if the snapshots cannot be read.
    """
    from sluice.consistent_snapshot.find import consistent_snapshots_path  # noqa: PLC0415
    from sluice.spark_jobs.maintain.rule import hours_kept  # noqa: PLC0415
    from sluice.spark_jobs.maintain.tables import newest_snapshot_age_hours  # noqa: PLC0415

    path, options = consistent_snapshots_path(config.lake, request.destination), storage_options(config.storage_options)
    return hours_kept(_requested_hours(config, request), newest_snapshot_age_hours(path, options, names))


def _one(
    ports: Ports, config: SluiceConfig, request: MaintainRequest, table: MaintainedTable, say: Callable[[str], None]
) -> list[Maintained]:
    """Maintains the current-state table of one table. Takes the run lock if the Delta table needs work. If it needs no work, but the
    table's record (`LakeTables`) has an older version, takes the run lock to update the record, unless another run holds the lock.

    Returns what was done. If nothing was done, the only entry says why. Returns [] if there is no Delta table. Raises TableError,
    SparkUnavailableError or MergeFailedError.
    """
    from sluice.spark_jobs.maintain.rule import MaintenanceAct  # noqa: PLC0415
    from sluice.spark_jobs.maintain.tables import catch_up, lags, looked_at, optimize, vacuum  # noqa: PLC0415

    planned = looked_at(table, wanted=request.force)
    if planned is None:
        return []
    optimizes = request.optimize and planned.act != MaintenanceAct.NOTHING
    if not optimizes and not request.vacuum:
        # If the table's record has an older version than the Delta table (`lags`), `catch_up` updates the record. But if another run holds
        # the run lock, that run updates the record, and waiting for the lock would delay the other tables.
        if lags(table, planned.before) and not ports.files().run_lock_held(config.destination_dir(request.destination)):
            with _only_writer_of(table, ports, config, say) as own:
                catch_up(own)
        return [planned]
    spark = spark_settings(config, request.destination)
    with _only_writer_of(table, ports, config, say) as own:
        failpoints.reach(failpoints.BEFORE_MAINTENANCE)
        found = [optimize(spark, own, wanted=request.force)] if optimizes else []
        if request.vacuum:
            writers = writers_of(config, request.destination, table.name)
            given = [config.destinations[each].maintenance for each in writers]
            logged, log_days = max(each.retention_hours for each in given), max(each.log_days for each in given)
            catch_up(own)  # The next consistent snapshot then names the table's current version.
            hours = max(_hours(config, _of(request, each), names) for each, names in writers.items())
            found.append(vacuum(spark, own, hours, logged=logged, log_days=log_days))
    return [each for each in found if each is not None]


@contextlib.contextmanager
def _only_writer_of(
    table: MaintainedTable, ports: Ports, config: SluiceConfig, say: Callable[[str], None]
) -> Iterator[MaintainedTable]:
    """Takes the run lock. Yields `table` with the lock's fence. Reads the records of the lake again, because the previous holder of the
    lock may have written the table.
    """
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415

    destination = table.owner.destination
    with only_writer(ports, config, destination, say) as refusal:
        records = KeptRecords(LakeTables(config.destination_dir(destination)))
        yield dataclasses.replace(table, fence=Fence(refusal), records=records)


def _of(request: MaintainRequest, destination: str) -> MaintainRequest:
    return dataclasses.replace(request, destination=destination)


def _side_tables(
    ports: Ports, config: SluiceConfig, request: MaintainRequest, table: MaintainedTable, say: Callable[[str], None]
) -> list[Maintained]:
    """Maintains a table's change log and history. Takes the run lock only if the change log or the history needs work. Raises TableError or
    MergeFailedError.
    """
    from sluice.spark_jobs.maintain.rule import MaintenanceAct  # noqa: PLC0415
    from sluice.spark_jobs.maintain.side_tables import MaintainedSideTable, compact, planned, vacuum  # noqa: PLC0415

    found: list[Maintained | None] = []
    given = target(config, request.destination, table.name)
    for kind, path in (("log", given.change_log), ("history", given.history)):
        side = MaintainedSideTable(current_state=table, path=path, kind=kind)
        if not path or (plan := planned(side, wanted=request.force)) is None:
            continue
        optimizes = request.optimize and plan.act != MaintenanceAct.NOTHING
        if not optimizes and not request.vacuum:
            found.append(plan)
            continue
        with _only_writer_of(table, ports, config, say) as own:
            side = dataclasses.replace(side, current_state=own)
            if optimizes and (plan := planned(side, wanted=request.force)) is not None:
                found.append(compact(side, plan))
            if request.vacuum:
                found.append(vacuum(side, _hours(config, request, (side.name,))))
    return [each for each in found if each is not None]


def _table(config: SluiceConfig, destination: str, name: str, run: str) -> MaintainedTable:
    from sluice.spark_jobs.maintain.tables import MaintainedTable  # noqa: PLC0415
    from sluice.spark_jobs.staged_batch import DELETED  # noqa: PLC0415
    from sluice.spark_jobs.table_owner import Owner  # noqa: PLC0415

    directory, given = config.destination_dir(destination), target(config, destination, name)
    listed = read_table(directory, name)
    known = listed.version if listed is not None else None
    configured = config.destinations[destination].table(*name.split(".", 1)).key
    key = tuple(configured) or (known.key if known else ())
    marks = (DELETED,) if given.deletes == "soft" and key else ()
    return MaintainedTable(
        owner=Owner(ledger_id=read_ledger(directory).ledger_id, destination=destination, table=name),
        path=given.path,
        shared=given.shared,
        table_locks=table_locks_of(config, destination, run),
        key=key[0] if key else "",
        columns=(*_captured_columns(config, destination, known), *marks),
        storage_options=storage_options(config.storage_options),
        records=KeptRecords(LakeTables(directory)),
        run=run,
    )


def _captured_columns(config: SluiceConfig, destination: str, table: TableVersion | None) -> tuple[str, ...]:
    """Returns the names of the columns that conf/ captures. Returns () if the table itself is not captured."""
    settings = config.destinations[destination]
    captured = _column_filter(settings.column_include, settings.column_exclude)
    return tuple(table.columns[index].name for index in captured.kept(table)) if table is not None else ()


@functools.lru_cache(maxsize=16)
def _column_filter(include: str, exclude: str) -> ColumnFilter:
    """Returns the filter of the captured columns. It is made once, because a run may maintain thousands of tables."""
    return ColumnFilter(include, exclude)
