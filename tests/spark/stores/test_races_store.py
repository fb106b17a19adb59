"""Tests another writer that commits to a table while Sluice merges batches into it, on each kind of store: no change of either writer is
lost.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.session import SparkSession

from sluice.batch_manifest.table_report import TableReport
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.small.merge import Declined, SmallJob, merge_small
from sluice.spark_jobs.sql_text import delta_path
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.spark.conftest import Lake
from tests.spark.small.test_kill_fault import ORDERS
from tests.spark.small.test_small_merge import while_it_commits
from tests.spark.staged import INSERT, Changes, Image, Schema
from tests.waiting import wait_for

NAME = "shop.log"
BATCHES = 12
STORES = {"s3": "s3_store", "azure": "azurite", "google": "fake_gcs"}
# The field of a commit in which the other writer, Spark or deltalake, stores the commit's name.
NAME_OF_COMMIT = "userMetadata"


class Colleague:
    """Compacts a table again and again until it is stopped, as a platform does. `compact` makes a commit with the given name, and returns
    whether the store accepted it. `committed` has the names of the accepted commits.
    """

    def __init__(self, compact: Callable[[str], bool]) -> None:
        self.committed: list[str] = []
        self.errors: list[BaseException] = []
        self._compact = compact
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
                name = uuid.uuid4().hex
                if self._compact(name):
                    self.committed.append(name)
        except BaseException as error:  # The test asserts that there is none.
            self.errors.append(error)


def by_deltalake(lake: Lake) -> Callable[[str], bool]:
    def compact(name: str) -> bool:
        properties = CommitProperties(custom_metadata={NAME_OF_COMMIT: name})
        try:
            done = lake.log(NAME).optimize.compact(commit_properties=properties)
        except CommitFailedError:
            return False  # Sluice has committed first.
        return bool(done["numFilesRemoved"])

    return compact


def by_spark(lake: Lake, session: SparkSession) -> Callable[[str], bool]:
    def compact(name: str) -> bool:
        session.conf.set(f"spark.databricks.delta.commitInfo.{NAME_OF_COMMIT}", name)
        try:
            (done,) = session.sql(f"OPTIMIZE {delta_path(lake.path(NAME))}").collect()
        except SparkConnectGrpcException as error:
            if "DELTA_CONCURRENT" not in str(error):
                raise
            return False
        return bool(done["metrics"]["numFilesRemoved"])

    return compact


@pytest.fixture(params=["local", *STORES])
def located(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """Returns an empty lake in a folder or a store."""
    if request.param == "local":
        return lake
    store = request.getfixturevalue(STORES[request.param])
    return dataclasses.replace(lake, root=f"{store.root}/{uuid.uuid4().hex[:12]}", storage_options=store.options)


@pytest.fixture
def raced(located: Lake) -> Lake:
    """Returns a lake whose table has the first two batches in two files."""
    located.way = "small"
    merge_first(located)
    return located


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
    with Colleague(by_deltalake(raced)) as colleague:
        for number in range(2, BATCHES):
            merge(raced, number)
        wait_for("the other writer has committed", lambda: colleague.committed or colleague.errors)
    assert not colleague.errors
    require_all(raced, colleague.committed)


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
@pytest.mark.parametrize("located", STORES, indirect=True)
def test_store_merges_by_spark_and_compactions_replace_no_commit_of_each_other(
    located: Lake, second_session: SparkSession
) -> None:
    """Checks two other writers, one after the other: first deltalake compacts the table, and then another Spark server does."""
    located.way = "spark"
    for number in (0, 1):
        located.merge({NAME: batch(number, ("id",))})
    committed: list[str] = []
    middle = BATCHES // 2 + 1
    for compact, first, end in (
        (by_deltalake(located), 2, middle),
        (by_spark(located, second_session), middle, BATCHES),
    ):
        with Colleague(compact) as colleague:
            for number in range(first, end):
                located.merge({NAME: batch(number, ("id",))})
            wait_for("the other writer has committed", lambda: colleague.committed or colleague.errors)
        assert not colleague.errors
        committed += colleague.committed
    require_all(located, committed)


@pytest.fixture
def second_session(second_spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(second_spark_server.start().url).create()
    yield session
    session.stop()


def require_all(raced: Lake, committed: list[str]) -> None:
    """Checks that the log has these commits of other writers in this order, and that the table has the rows of all batches."""
    names = [each.get(NAME_OF_COMMIT) for each in reversed(raced.log(NAME).history())]
    assert [name for name in names if name in committed] == committed
    assert raced.rows(NAME, "id") == [(number,) for number in range(BATCHES)]
