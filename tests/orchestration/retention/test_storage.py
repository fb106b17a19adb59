"""Tests Dagster's storage with connections that are reused: it has the same files and answers as Dagster's own."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as db
import yaml
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickData, TickStatus
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs.schema import RunStorageSqlMetadata
from dagster._core.storage.schedules.schema import ScheduleStorageSqlMetadata

from sluice.console.stack.dagster_storage import storage_bytes, with_storage
from sluice.orchestration import storage
from sluice.orchestration.retention.space import give_back
from sluice.orchestration.storage import KeptConnections, KeptEvents, KeptFile, KeptRuns, KeptSchedules

LIMIT_SECONDS = 30.0
TABLES = 20
EMPTY_BYTES_MAX = 40_000
KEY = dg.AssetKey(["shop", "orders"])


@dg.asset(key=KEY)
def orders() -> None: ...


JOB = dg.Definitions(assets=[orders], jobs=[dg.define_asset_job("merge")]).resolve_job_def("merge")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagster.yaml").write_text(with_storage("telemetry: {enabled: false}", tmp_path))
    return tmp_path


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def _events(instance: dg.DagsterInstance) -> KeptEvents:
    kept = instance.event_log_storage
    assert isinstance(kept, KeptEvents)
    return kept


def test_dagsters_own_storage_reads_what_ours_wrote_and_continues(home: Path, instance: dg.DagsterInstance) -> None:
    first = JOB.execute_in_process(instance=instance).run_id
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}")
    with dg.DagsterInstance.from_config(str(home)) as dagsters:
        assert type(dagsters.event_log_storage) is SqliteEventLogStorage
        assert [run.run_id for run in dagsters.get_runs()] == [first]
        assert [entry.message for entry in dagsters.all_logs(first)] == [
            entry.message for entry in instance.all_logs(first)
        ]
        second = JOB.execute_in_process(instance=dagsters).run_id
    assert {run.run_id for run in instance.get_runs()} == {first, second}
    found = instance.get_latest_materialization_event(KEY)
    assert found is not None
    assert found.run_id == second


@pytest.mark.found
@pytest.mark.parametrize(
    ("kind", "tables"), [(KeptRuns, RunStorageSqlMetadata), (KeptSchedules, ScheduleStorageSqlMetadata)]
)
def test_processes_that_start_at_once_open_the_same_new_storage(
    tmp_path: Path, kind: type[KeptConnections], tables: db.MetaData
) -> None:
    """Defect 44: the daemon no longer waits for the webserver. If both found no storage, one failed with `table already exists`."""
    both = threading.Barrier(2)

    def meet(*_: object, **__: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)  # The other thread comes too, unless it waits until the tables exist.

    db.event.listen(tables, "before_create", meet)
    try:
        with ThreadPoolExecutor(2) as pool:
            opened = list(pool.map(kind.from_local, [str(tmp_path)] * 2))
    finally:
        db.event.remove(tables, "before_create", meet)
    assert [type(each) for each in opened] == [kind, kind]
    assert both.broken


def test_a_run_file_has_the_tables_that_dagster_creates(tmp_path: Path) -> None:
    ours, dagsters = KeptEvents(str(tmp_path / "ours")), SqliteEventLogStorage(str(tmp_path / "dagsters"))
    for each in (ours, dagsters):
        with each.run_connection("run"):
            pass
    ours.dispose()
    assert _schema(tmp_path / "ours" / "run.db") == _schema(tmp_path / "dagsters" / "run.db")
    assert not list((tmp_path / "ours").glob("*.new"))


def _schema(file: Path) -> tuple[list[str], list[str], str]:
    database = sqlite3.connect(file)
    try:
        tables = [
            row[0] for row in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        ]
        revisions = [row[0] for row in database.execute("SELECT version_num FROM alembic_version")]
        return tables, revisions, database.execute("PRAGMA journal_mode").fetchone()[0]
    finally:
        database.close()


@pytest.mark.scale
@pytest.mark.found
def test_the_events_of_the_tables_that_a_run_plans_are_stored_in_one_transaction_of_each_file(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 27: before a run began, each table of its batch cost two transactions in Dagster's storage."""
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "1000")
    began, begin = list[str](), KeptFile.begin

    def counted(self: KeptFile) -> Any:
        began.append(Path(self._path).stem)
        return begin(self)

    monkeypatch.setattr(KeptFile, "begin", counted)
    job = dg.Definitions(assets=[_asset(each) for each in range(TABLES)]).resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(job)
    planned = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    assert len(planned.records) == TABLES
    assert began.count(run.run_id) <= 3
    assert began.count("index") <= 3
    keys = [dg.AssetKey(["many", str(each)]) for each in range(TABLES)]
    assert {each.asset_entry.last_run_id for each in instance.get_asset_records(keys)} == {run.run_id}


def _asset(number: int) -> dg.AssetsDefinition:
    @dg.asset(key=["many", str(number)])
    def table() -> None: ...

    return table


def test_the_file_of_a_run_is_small_before_its_first_event(tmp_path: Path) -> None:
    """Each batch has such a file. With pages of 4 KiB it had 100 kB of empty tables and indexes."""
    assert len(KeptEvents(str(tmp_path))._empty_file()) < EMPTY_BYTES_MAX


def test_a_connection_is_used_again_and_does_not_sync_each_commit(instance: dg.DagsterInstance) -> None:
    events = _events(instance)
    ids = []
    for _ in range(2):
        with events.index_connection() as connection:
            ids.append(id(connection.connection.dbapi_connection))
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1
    assert ids[0] == ids[1]


def test_the_files_of_old_runs_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "RUN_FILES_KEPT", 2)
    events = KeptEvents(str(tmp_path))
    for number in range(4):
        with events.run_connection(f"run{number}"):
            pass
    assert not (tmp_path / "run1.db-wal").exists()
    assert (tmp_path / "run3.db-shm").exists()
    with events.run_connection("run0") as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM event_logs").scalar() == 0
    events.dispose()
    assert not list(tmp_path.glob("run*.db-*"))


@pytest.mark.parametrize("action", ["removed", "replaced"])
def test_a_file_that_was_removed_or_replaced_is_opened_again(action: str, tmp_path: Path) -> None:
    file, other = tmp_path / "a.db", tmp_path / "b.db"
    for each in (file, other):
        database = sqlite3.connect(each)
        database.execute(f"CREATE TABLE {each.stem} (x INT)")
        database.close()
    kept = KeptFile(f"sqlite:///{file}")
    with kept.begin() as connection:
        assert _tables(connection) == ["a"]
    if action == "removed":
        file.unlink()
    else:
        other.replace(file)
    with kept.begin() as connection:
        assert _tables(connection) == ([] if action == "removed" else ["b"])
    kept.close()


def _tables(connection: db.Connection) -> list[str]:
    return [row[0] for row in connection.exec_driver_sql("SELECT name FROM sqlite_master")]


def test_the_page_of_a_run_gets_events_while_the_writer_keeps_its_connection(
    home: Path, instance: dg.DagsterInstance
) -> None:
    """Dagster's own watcher waits for a change of the database file. The file changes only when SQLite copies its write-ahead log into
    it, so a page got no events.
    """
    run = instance.create_run_for_job(JOB)
    instance.report_engine_event("first", run)
    seen, reported = list[str](), threading.Semaphore(0)

    def callback(entry: dg.EventLogEntry, _: str) -> None:
        seen.append(entry.user_message or (entry.dagster_event.message if entry.dagster_event else "") or "")
        reported.release()

    with dg.DagsterInstance.from_config(str(home)) as page:
        page.watch_event_logs(run.run_id, None, callback)
        instance.report_engine_event("second", run)
        while "second" not in seen:
            assert reported.acquire(timeout=LIMIT_SECONDS)
        page.end_watch_event_logs(run.run_id, callback)


def test_two_processes_write_one_file(home: Path, instance: dg.DagsterInstance) -> None:
    with dg.DagsterInstance.from_config(str(home)) as other:
        for number in range(5):
            for each in (instance, other):
                each.report_runless_asset_event(dg.AssetObservation(KEY, metadata={"number": number}))
        assert len(instance.fetch_observations(KEY, limit=100).records) == 10
        assert len(other.fetch_observations(KEY, limit=100).records) == 10


def test_a_forked_process_opens_its_own_connections(tmp_path: Path) -> None:
    """SQLite forbids the use of a connection in a child of the process that opened it."""
    kept = KeptFile(f"sqlite:///{tmp_path / 'a.db'}")
    with kept.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE pids (pid INT)")
        parents = connection.connection.dbapi_connection
    child = os.fork()
    if child == 0:
        with kept.begin() as connection:
            own = connection.connection.dbapi_connection is not parents
            connection.exec_driver_sql(f"INSERT INTO pids VALUES ({os.getpid() if own else 0})")
        os._exit(0)
    os.waitpid(child, 0)
    with kept.begin() as connection:
        assert connection.connection.dbapi_connection is parents
        assert connection.exec_driver_sql("SELECT pid FROM pids").scalar() == child
    kept.close()


def test_a_file_shrinks_while_others_keep_it_open(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    kept = KeptFile(f"sqlite:///{file}")
    with kept.begin() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    with kept.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (x BLOB)")
        connection.exec_driver_sql("INSERT INTO a VALUES (zeroblob(20000000))")
    with kept.begin() as connection:
        connection.exec_driver_sql("DELETE FROM a")
    assert give_back(str(file)) > 10_000_000
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 1_000_000
    with kept.begin() as connection:
        connection.exec_driver_sql("INSERT INTO a VALUES (1)")
    kept.close()


@pytest.mark.parametrize("name", ["storage", "run_storage", "event_log_storage", "schedule_storage"])
def test_a_storage_that_dagster_yaml_names_stays(name: str, tmp_path: Path) -> None:
    settings = yaml.safe_dump({name: {"postgres": {}}})
    assert with_storage(settings, tmp_path) == settings


def test_ours_is_in_files_on_this_host(home: Path, instance: dg.DagsterInstance) -> None:
    assert (storage_bytes(home) or 0) > 0


def test_old_ticks_are_removed_now_and_then_and_not_after_each_tick(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("sluice.orchestration.storage.time.monotonic", lambda: clock[0])
    left = []
    for clock[0] in (1000.0, 1001.0, 1000.0 + storage.PURGE_SECONDS):
        data = TickData("origin", "shop_engine", InstigatorType.SENSOR, TickStatus.SKIPPED, 1.0, selector_id="shop")
        instance.create_tick(data)
        for statuses in ([TickStatus.SKIPPED], [TickStatus.SUCCESS, TickStatus.FAILURE]):
            instance.purge_ticks("origin", "shop", before=2.0, tick_statuses=statuses)
        left.append(len(instance.get_ticks("origin", "shop")))
    assert left == [0, 1, 0]
