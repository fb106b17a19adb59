"""Tests another writer that commits to a table while Sluice merges batches into it, on each kind of store: no change of either writer is
lost.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import S3Server
from sluice.batch_manifest.table_report import TableReport
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.small.merge import Declined, SmallJob, merge_small
from sluice.spark_jobs.staged_batch import read_staged_batch
from tests.spark.conftest import Lake
from tests.spark.small.test_kill_fault import ORDERS
from tests.spark.small.test_small_merge import while_it_commits
from tests.spark.staged import INSERT, Changes, Image, Schema
from tests.waiting import wait_for

NAME = "shop.log"
BATCHES = 12


class Colleague:
    """Compacts a table again and again until it is stopped, as a platform does. `committed`: the commits that the store accepted."""

    def __init__(self, lake: Lake) -> None:
        self.committed: list[str] = []
        self.errors: list[BaseException] = []
        self._lake = lake
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Colleague:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._compact()
        except BaseException as error:  # The test asserts that there is none.
            self.errors.append(error)

    def _compact(self) -> None:
        name = uuid.uuid4().hex
        properties = CommitProperties(custom_metadata={"colleague": name})
        try:
            done = self._lake.log(NAME).optimize.compact(commit_properties=properties)
        except CommitFailedError:
            return  # Sluice was first: the colleague is told.
        if done["numFilesRemoved"]:
            self.committed.append(name)


def in_s3(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    store: S3Server = request.getfixturevalue("s3_store")
    return dataclasses.replace(lake, root=f"s3://{store.bucket}/{uuid.uuid4().hex[:12]}", storage_options=store.options)


def in_google(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    store: FakeGcsServer = request.getfixturevalue("fake_gcs")
    return dataclasses.replace(lake, root=f"gs://{store.bucket}/{uuid.uuid4().hex[:12]}", storage_options=store.options)


def in_azure(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """Azurite has no endpoint for Spark, so Spark makes the table in a folder, which is then uploaded."""
    store: AzuriteServer = request.getfixturevalue("azurite")
    there = dataclasses.replace(
        lake, root=f"az://{store.container}/{uuid.uuid4().hex[:12]}", storage_options=store.options
    )
    merge_first(lake)
    StoreFolder(there.path(NAME), there.storage_options).put(Path(lake.path(NAME)))
    return there


@pytest.fixture(params=["local", "s3", "azure", "google"])
def raced(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """Creates a lake whose table has the first two batches in two files."""
    lake.way = "small"
    match request.param:
        case "azure":
            return in_azure(request, lake)
        case "s3":
            lake = in_s3(request, lake)
        case "google":
            lake = in_google(request, lake)
    merge_first(lake)
    return lake


def merge_first(lake: Lake) -> None:
    for number in (0, 1):
        merge(lake, number)


def merge(lake: Lake, number: int) -> TableReport:
    return lake.merge({NAME: batch(number)})[NAME]


def batch(number: int, key: tuple[str, ...] = ()) -> list[Changes]:
    schema = Schema(ORDERS.columns, key)
    return [Changes(schema, [Image(INSERT, 10 * number + 1, {"id": number, "name": "x"})])]


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_small_merge_and_a_compaction_replace_no_commit_of_each_other(raced: Lake) -> None:
    with Colleague(raced) as colleague:
        for number in range(2, BATCHES):
            merge(raced, number)
        wait_for("the other writer has committed", lambda: colleague.committed or colleague.errors)
    require_all(raced, colleague)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_small_merge_that_another_writer_came_before_is_done_again_and_counted(
    raced: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = read_staged_batch(raced.stage({NAME: batch(2)}))
    job = SmallJob(
        batch=dataclasses.replace(staged, tables=()),
        staged=staged.tables[0],
        target=raced.target(NAME),
        known=None,
        staged_at=0.0,
        storage_options=raced.storage_options,
        makes_tables=False,
    )
    conflicts = CommitConflicts()
    tried = while_it_commits(monkeypatch, raced.log(NAME).optimize.compact)
    assert not isinstance(merge_small(job, conflicts), Declined)
    assert (len(tried), conflicts.of(NAME)) == (2, 1)
    assert raced.rows(NAME, "id") == [(0,), (1,), (2,)]


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
@pytest.mark.parametrize("located", [in_s3, in_google])
def test_store_merges_by_spark_and_compactions_replace_no_commit_of_each_other(
    request: pytest.FixtureRequest, lake: Lake, located: Callable[[pytest.FixtureRequest, Lake], Lake]
) -> None:
    lake = dataclasses.replace(located(request, lake), way="spark")
    for number in (0, 1):
        lake.merge({NAME: batch(number, ("id",))})
    with Colleague(lake) as colleague:
        for number in range(2, BATCHES):
            lake.merge({NAME: batch(number, ("id",))})
        wait_for("the other writer has committed", lambda: colleague.committed or colleague.errors)
    require_all(lake, colleague)


def require_all(raced: Lake, colleague: Colleague) -> None:
    history = raced.log(NAME).history()
    assert not colleague.errors
    assert {each["colleague"] for each in history if "colleague" in each} == set(colleague.committed)
    assert raced.rows(NAME, "id") == [(number,) for number in range(BATCHES)]
