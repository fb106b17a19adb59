"""Tests Spark in each kind of store: a run that is killed during a MERGE, a CREATE TABLE that was killed, OPTIMIZE and VACUUM."""

from __future__ import annotations

import contextlib
import uuid
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain import rule
from sluice.spark_jobs.maintain.tables import MaintainedTable, optimize, vacuum
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.new_table import ENGINE_INFO
from sluice.spark_jobs.targets.layout import Layout
from tests.spark.conftest import Lake
from tests.spark.small.test_kill_fault import (
    AFTER,
    BOTH,
    FIRST,
    LOG,
    ORDERS,
    Gate,
    require_all_once,
    run_killed_at,
    runs,
)
from tests.spark.staged import INSERT, LEDGER_ID, Changes, Image

__all__ = ["runs"]
pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]
DURING = "during"
STORES = {"s3": "s3_store", "google": "fake_gcs", "azure": "azurite"}


@pytest.fixture(params=STORES)
def store_lake(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    store = request.getfixturevalue(STORES[request.param])
    lake.root, lake.storage_options = f"{store.root}/{uuid.uuid4().hex[:12]}", store.options
    lake.way = "spark"
    return lake


def run_by_spark(lake: Lake, directory: Path, gate: Gate) -> None:
    """Merges a batch with Spark, in the run that is killed. The run reports to the gate before Spark executes the first commit (DURING), or
    stops after this commit (AFTER).
    """
    commit = LakeSession.commit

    def gated(session: LakeSession, name: str, statement: str) -> None:
        if gate.location == DURING:
            gate.stands.touch()
        commit(session, name, statement)
        gate.stop_here(AFTER)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeSession, "commit", gated)
        lake.merge_staged(directory, BOTH)


@pytest.mark.parametrize("location", [DURING, AFTER])
def test_store_fault_a_merge_by_spark_whose_run_is_killed_is_finished_by_the_next(
    store_lake: Lake, tmp_path: Path, runs: list[BaseProcess], location: str
) -> None:
    """Spark may still execute the statement of the killed run, and commit it while the next run merges."""
    store_lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(LOG, FIRST)]})
    gate, directory = Gate(tmp_path, location), store_lake.stage(BOTH)
    run_killed_at(gate, store_lake, directory, runs, run_by_spark)
    with contextlib.suppress(MergeError):  # The commit of the killed run came first. Sluice merges such a batch again.
        store_lake.merge_staged(directory, BOTH)
    store_lake.merge_staged(directory, BOTH)
    require_all_once(store_lake)
    assert all(each.skipped for each in store_lake.merge_staged(directory, BOTH).values())
    require_all_once(store_lake)


@pytest.mark.found
def test_store_fault_a_table_is_created_where_a_killed_create_table_left_directories(store_lake: Lake) -> None:
    """Defect 72: a run was killed between the directories of a log and its first commit. Spark took the directories for the table, so each
    later CREATE TABLE IF NOT EXISTS did nothing, and each merge ended with "a commit of another writer".
    """
    first = {"shop.log": [Changes(LOG, FIRST)]}
    store_lake.merge(first)
    folder = StoreFolder(store_lake.path("shop.log"), store_lake.storage_options)
    folder.remove_files([name for name in folder.sizes() if "." in name])  # The objects of directories stay.
    with pytest.raises(MergeError, match="has left an empty directory at this path"):
        store_lake.merge(first, layout=Layout(partition_by=("name",)))
    assert store_lake.merge(first)["shop.log"].rows_inserted == len(FIRST)
    assert store_lake.log("shop.log").history()[-1]["engineInfo"] == ENGINE_INFO
    later = [Changes(LOG, [Image(INSERT, 91, {"id": 9, "name": "later"})])]
    assert store_lake.merge({"shop.log": later})["shop.log"].rows_inserted == 1


def test_store_files_are_joined_by_optimize_and_the_former_ones_removed_by_vacuum(
    store_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "shop.log"
    for number in range(4):
        store_lake.merge({name: [Changes(LOG, [Image(INSERT, 10 * number + 1, {"id": number, "name": "x"})])]})
    rows = [(number, "x") for number in range(4)]
    assert store_lake.rows(name, "id", "name") == rows
    table = MaintainedTable(
        owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=name),
        path=store_lake.path(name),
        storage_options=store_lake.storage_options,
        fence=BY_HAND,
    )
    monkeypatch.setattr(rule, "SMALL_FILES_MAX", 1)
    joined = optimize(store_lake.spark, table, wanted=True)
    assert joined is not None
    assert (joined.act, joined.after.files) == ("compact", 1)
    assert joined.before.files > 1
    removed = vacuum(store_lake.spark, table, 0.0, logged=0.0, log_days=1)
    assert removed is not None
    assert removed.removed_files >= joined.before.files
    folder = StoreFolder(store_lake.path(name), store_lake.storage_options)
    assert len([each for each in folder.sizes() if each.endswith(".parquet") and "_delta_log" not in each]) == 1
    assert store_lake.rows(name, "id", "name") == rows
    later = [Changes(LOG, [Image(INSERT, 91, {"id": 9, "name": "later"})])]
    assert store_lake.merge({name: later})[name].way == "spark"
    assert store_lake.rows(name, "id", "name") == [*rows, (9, "later")]
