"""Tests that old runs and events are removed from Dagster's storage, and that everything that its pages show and the ticks read stays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import time
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.runs.schema import RunTagsTable
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_graphql.schema import create_schema

from sluice.orchestration.retention import prune as prune_module
from sluice.orchestration.retention import space, stored_events, stored_runs
from sluice.orchestration.retention.prune import Pruned, prune
from sluice.orchestration.retention.rules import EndedRun, RunRetention, is_outdated
from sluice.orchestration.retention.stored_events import StoredEvents
from sluice.orchestration.retention.stored_runs import StoredRuns
from tests.orchestration.retention.fix_old_runs import (
    CHECK,
    DAY,
    DAYS,
    ENGINE,
    FAILED_EVERY,
    FEW_RUNS,
    ITEMS,
    ORDERS,
    RUNS,
    copy_home,
    make_old_home,
    merge_job,
    open_instance,
    storages,
)

pytestmark = pytest.mark.scale
A_DAY = RunRetention(keep_hours=24.0)
PER_DAY, FEW_KEPT = RUNS / DAYS, 3


@pytest.fixture(scope="module", params=[False, True], ids=["a file per run", "one table"])
def few_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("few") / "home"
    make_old_home(home, FEW_RUNS, one_table=request.param)
    return home


@pytest.fixture
def home(few_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stored_runs, "NEWEST_RUNS_KEPT", FEW_KEPT)
    return copy_home(few_runs, tmp_path / "home")


class Once(NamedTuple):
    """A storage with thousands of runs that was pruned once. `before` has two facts from before this: the size of its index of events in
    bytes, and the id of the oldest run.
    """

    home: Path
    made: Pruned
    before: tuple[int, str]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    home = tmp_path_factory.mktemp("many") / "home"
    make_old_home(home, RUNS, one_table=False)
    with open_instance(home) as instance:
        before = size(home), instance.get_runs(ascending=True, limit=1)[0].run_id
        return Once(home, pruned(instance), before)


def pruned(instance: dg.DagsterInstance) -> Pruned:
    return prune(instance, A_DAY, label="", destinations=["shop"])


def content(instance: dg.DagsterInstance) -> dict[str, Any]:
    """Returns the content of the storage: runs by status, and the numbers of events and results."""
    _, events = storages(instance)
    with events.index_connection() as connection:
        rows = connection.execute(SqlEventLogStorageTable.select()).fetchall()
        results = connection.execute(AssetCheckExecutionsTable.select()).fetchall()
    return {
        "runs": sorted(each.run_id for each in instance.get_runs()),
        "events": sorted((each.run_id, each.id) for each in rows),
        "results": sorted(each.id for each in results),
    }


def query(instance: dg.DagsterInstance, text: str, **variables: Any) -> dict[str, Any]:
    """Executes a GraphQL query as Dagster's pages do."""
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context:
        requested = create_schema().execute_async(
            text, context_value=context.create_request_context(), variable_values=variables
        )
        found = asyncio.run(requested)
    assert not found.errors, found.errors
    assert found.data is not None
    return dict(found.data)


ASSET_PAGE = """query ($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
  assetMaterializations(limit: 100) { runId timestamp metadataEntries { label } runOrError { __typename } }
  assetObservations(limit: 100) { runId timestamp } } } }"""
RUN_PAGE = """query ($run: ID!) { runOrError(runId: $run) { __typename ... on Run { status
  eventConnection { events { __typename } } stepStats { stepKey status } } } }"""
RUNS_PAGE = "{ runsOrError(limit: 1000) { ... on Runs { results { runId status } } } }"


def test_a_day_of_runs_a_week_of_failures_and_the_newest_of_each_asset_are_kept(once: Once) -> None:
    with open_instance(once.home) as instance:
        runs = instance.get_runs()
        failed = [each for each in runs if each.status is dg.DagsterRunStatus.FAILURE]
        assert len(failed) == pytest.approx(7 * PER_DAY / FAILED_EVERY, abs=2)
        assert len(runs) - len(failed) == pytest.approx(PER_DAY * (1 - 1 / FAILED_EVERY) + 1, abs=3)
        assert once.made.runs == RUNS + 1 - len(runs)
        assert once.made.files >= once.made.runs - 1
        for key in (ORDERS, ITEMS):
            kept = instance.fetch_materializations(key, limit=1000).records
            assert {each.run_id for each in kept} <= {each.run_id for each in runs}
        assert len(instance.fetch_observations(ENGINE, limit=100).records) == 1, "three days old, and the newest"
        made = pruned(instance)
        assert made == Pruned(runs=0, files=0, events=0, check_results=0, snapshots=0, bytes_given_back=0)


def test_the_pages_of_assets_and_runs_work_afterwards(once: Once) -> None:
    with open_instance(once.home) as instance:
        asset = query(instance, ASSET_PAGE, key={"path": ITEMS.path})["assetOrError"]
        assert asset["assetMaterializations"]
        assert {each["runOrError"]["__typename"] for each in asset["assetMaterializations"]} == {"Run"}
        assert [each["label"] for each in asset["assetMaterializations"][0]["metadataEntries"]] == ["rows_inserted"]
        shown = query(instance, RUNS_PAGE)["runsOrError"]["results"]
        assert len(shown) == len(instance.get_runs())
        page = query(instance, RUN_PAGE, run=shown[0]["runId"])["runOrError"]
        assert page["status"] == "SUCCESS"
        assert page["stepStats"] == [{"stepKey": "merge", "status": "SUCCESS"}]
        assert query(instance, RUN_PAGE, run=once.before[1])["runOrError"]["__typename"] == "RunNotFoundError"


def test_the_file_shrinks(once: Once) -> None:
    assert size(once.home) < once.before[0] / 2
    assert once.made.bytes_given_back > once.before[0] / 2


def test_a_table_that_did_not_change_for_long_keeps_its_newest_events(home: Path) -> None:
    """The run of the events is gone, but queries of the asset are still answered."""
    later = time.time() + 30 * DAY
    with open_instance(home) as instance:
        for _ in range(FEW_KEPT):
            merge_job((ORDERS,)).execute_in_process(instance=instance)
        prune(instance, A_DAY, label="", destinations=["shop"], clock=lambda: later)
        assert len(instance.get_runs()) == FEW_KEPT
        asset = query(instance, ASSET_PAGE, key={"path": ITEMS.path})["assetOrError"]
        assert len(asset["assetMaterializations"]) == 1
        assert asset["assetMaterializations"][0]["runOrError"]["__typename"] == "RunNotFoundError"
        assert len(asset["assetObservations"]) == 1
        _, events = storages(instance)
        assert CHECK in events.get_latest_asset_check_execution_by_key([CHECK])


def test_a_file_that_was_copied_once_shrinks_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "FREE_BYTES_MIN", 2**20)
    file = tmp_path / "index.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE events (event TEXT)")
        assert space.give_back(str(file)) == 0
        database.execute("BEGIN")
        database.executemany("INSERT INTO events VALUES (?)", [("x" * 4000,)] * 2000)
        database.execute("DELETE FROM events WHERE rowid > 1000")
        database.execute("COMMIT")
        monkeypatch.setattr(space, "SMALL_BYTES_MAX", 0)
        assert space.give_back(str(file)) > 3 * 2**20, "it was made ready while it was small"
        assert space.give_back(str(file)) == 0
        assert database.execute("SELECT count(*) FROM events").fetchone() == (1000,)


def test_a_large_file_with_few_free_pages_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "SMALL_BYTES_MAX", 0)
    file = tmp_path / "index.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("CREATE TABLE events (event TEXT)")
        database.execute("BEGIN IMMEDIATE")
        assert space.give_back(str(file)) == 0, "a writer is not waited for"


def size(home: Path) -> int:
    return (home / "history" / "runs" / "index.db").stat().st_size


STEPS = [
    (StoredRuns, "remove"),
    (StoredEvents, "remove_files"),
    (StoredEvents, "remove_events"),
    (StoredEvents, "remove_runless_copies"),
    (StoredEvents, "remove_check_results"),
    (stored_events, "_newest_events"),
    (prune_module, "give_back"),
]
CALLED_OFTEN = {"remove", "_newest_events", "give_back"}  # The second call fails.


@pytest.mark.parametrize(("owner", "name"), STEPS)
def test_a_crash_in_any_step_is_made_up_for_by_the_next_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    whole, now = copy_home(home, tmp_path / "whole"), time.time()
    with open_instance(whole) as instance:
        prune(instance, A_DAY, label="", destinations=["shop"], clock=lambda: now)
        wanted = content(instance)
    step, calls = getattr(owner, name), itertools.count()

    def crash(*args: Any) -> Any:
        if name not in CALLED_OFTEN or next(calls):
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(stored_events, "PAGE", 300)
    monkeypatch.setattr(stored_runs, "PAGE", 50)
    with open_instance(home) as instance:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, crash)
            with pytest.raises(KeyboardInterrupt):
                prune(instance, A_DAY, label="", destinations=["shop"], clock=lambda: now)
        prune(instance, A_DAY, label="", destinations=["shop"], clock=lambda: now)
        assert content(instance) == wanted


def test_runs_and_assets_of_others_stay(home: Path) -> None:
    """Another code location may use the same storage."""
    with open_instance(home) as instance:
        runs, _ = storages(instance)
        theirs = instance.get_runs(ascending=True, limit=1)[0].run_id
        tag = {"run_id": theirs, "key": ".dagster/repository", "value": "__repository__@other"}
        with runs.connect() as connection:
            connection.execute(RunTagsTable.insert(), [tag])
        prune(instance, A_DAY, label="", destinations=["billing"])
        assert instance.get_run_by_id(theirs) is not None
        assert instance.get_records_for_run(theirs) is not None
        assert len(instance.fetch_observations(ENGINE, limit=100).records) == 20


def run(number: int, hours: float, *, failed: bool = False) -> EndedRun:
    return EndedRun(number=number, run_id=str(number), job="merge", failed=failed, ended_at=-3600 * hours)


@pytest.mark.parametrize(
    ("ended", "outdated"),
    [
        (run(1, 25), True),
        (run(1, 23), False),
        (run(1, 25, failed=True), False),
        (run(1, 169, failed=True), True),
        (run(7, 25), False),
        (run(1, -2), True),
    ],
    ids=["old", "of a day", "failed", "failed long ago", "of the newest", "dated in the future"],
)
def test_rule(ended: EndedRun, outdated: bool) -> None:
    assert is_outdated(ended, A_DAY, {"merge": 7}, now=0.0) is outdated
    assert not is_outdated(ended, A_DAY, {}, now=0.0), "its job has few runs"
