"""Makes a Dagster storage as after days of operation. It has thousands of runs, which are copies of one real run with
other ids and times.
"""

# `from __future__ import annotations` is missing, because Dagster inspects the type of `context` at runtime.

import datetime as dt
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import sqlalchemy as db
import yaml
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.runs.schema import RunsTable
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage

ORDERS, ITEMS, ENGINE = (dg.AssetKey(["shop", name]) for name in ("orders", "items", "engine"))
CHECK = dg.AssetCheckKey(ITEMS, "flows")
RUNS, FEW_RUNS, DAYS = 2000, 200, 10.0
FAILED_EVERY = 10  # Every tenth run failed.
DAY = 86_400.0


def open_instance(home: Path) -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(str(home))


def storages(instance: dg.DagsterInstance) -> tuple[SqlRunStorage, SqlEventLogStorage]:
    runs, events = instance.run_storage, instance.event_log_storage
    assert isinstance(runs, SqlRunStorage)
    assert isinstance(events, SqlEventLogStorage)
    return runs, events


def merge_job(keys: tuple[dg.AssetKey, ...]) -> dg.JobDefinition:
    """Returns a job that reports tables as a merge does."""

    @dg.op(name="merge")
    def merge(context: dg.OpExecutionContext) -> None:
        for key in keys:
            context.log_event(dg.AssetMaterialization(key, metadata={"rows_inserted": 1}))
        if ITEMS in keys:
            context.log_event(dg.AssetObservation(ITEMS, metadata={"buffered_rows": 1}))
            check = dg.AssetCheckEvaluation(asset_key=ITEMS, check_name=CHECK.name, passed=True)
            context.log_event(check)  # type: ignore[arg-type]

    @dg.job(name="merge_shop_job", executor_def=dg.in_process_executor)
    def job() -> None:
        merge()

    return job


def make_old_home(home: Path, count: int, *, one_table: bool) -> None:
    """Makes a storage with old runs, and one run of today that materializes only one of the tables.

    With `one_table`, events are in one table, as in Postgres. Otherwise each run has a file for its events.
    """
    home.mkdir()
    consolidated = {
        "module": "dagster._core.storage.event_log",
        "class": "ConsolidatedSqliteEventLogStorage",
        "config": {"base_dir": str(home / "history")},
    }
    (home / "dagster.yaml").write_text(yaml.dump({"event_log_storage": consolidated} if one_table else {}))
    with open_instance(home) as instance:
        run_id = merge_job((ORDERS, ITEMS)).execute_in_process(instance=instance).run_id
        for _ in range(20):
            instance.report_runless_asset_event(dg.AssetObservation(ENGINE, metadata={"lag_seconds": 1.0}))
        age_runless_events(instance)
        _copy_run(instance, run_id, count)
        merge_job((ORDERS,)).execute_in_process(instance=instance)


def copy_home(home: Path, to: Path) -> Path:
    """Copies a Dagster storage to another folder. No process may use the storage during the copy."""
    shutil.copytree(home, to)
    settings = to / "dagster.yaml"
    settings.write_text(settings.read_text().replace(str(home), str(to)))
    return to


def age_runless_events(instance: dg.DagsterInstance) -> None:
    """Dates all events without a run three days back."""
    _, events = storages(instance)
    old = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(days=3)
    table = SqlEventLogStorageTable
    for connect in (events.index_connection, lambda: events.run_connection("")):
        with connect() as connection:
            connection.execute(table.update().where(table.c.run_id == "").values(timestamp=old))


def _copy_run(instance: dg.DagsterInstance, run_id: str, count: int) -> None:
    """Replaces a run by `count` copies that ended within the last DAYS days. The first copy is the oldest."""
    runs, events = storages(instance)
    ends = [time.time() - DAYS * DAY * (count - each) / count - 60 for each in range(count)]
    new_ids = [str(uuid.UUID(int=each + 1)) for each in range(count)]
    copied: list[tuple[db.Table, str, Callable[..., object]]] = [
        (RunsTable, "run_id", runs.connect),
        (SqlEventLogStorageTable, "run_id", events.index_connection),
        (AssetCheckExecutionsTable, "run_id", events.index_connection),
    ]
    for table, column, connect in copied:
        with connect() as connection:  # type: ignore[attr-defined]
            rows = connection.execute(db.select(table).where(table.c[column] == run_id)).mappings().fetchall()
            made = [
                _aged(dict(row), run_id, new_id, ended, failed=number % FAILED_EVERY == 0)
                for number, (new_id, ended) in enumerate(zip(new_ids, ends, strict=True))
                for row in rows
            ]
            connection.execute(table.insert(), made)
            connection.execute(table.delete().where(table.c[column] == run_id))
    shard = Path(instance.root_directory) / "history" / "runs" / f"{run_id}.db"
    if shard.exists():
        for new_id, ended in zip(new_ids, ends, strict=True):
            path = shard.with_name(f"{new_id}.db")
            shutil.copyfile(shard, path) if ended > time.time() - DAY else path.touch()
            os.utime(path, (ended, ended))


def _aged(row: dict[str, object], old_id: str, new_id: str, ended: float, *, failed: bool) -> dict[str, object]:
    row.pop("id")
    moment = dt.datetime.fromtimestamp(ended, dt.UTC).replace(tzinfo=None)
    for name, value in row.items():
        if isinstance(value, dt.datetime):
            row[name] = moment
        elif isinstance(value, str):
            row[name] = value.replace(old_id, new_id)
    if "run_body" in row:
        row |= {"start_time": ended - 5, "end_time": ended}
        row["status"] = "FAILURE" if failed else "SUCCESS"
        row["run_body"] = str(row["run_body"]).replace('"SUCCESS"', f'"{row["status"]}"')
    return row
