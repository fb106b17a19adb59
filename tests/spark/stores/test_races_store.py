"""Another writer commits to a table while Sluice merges small batches into it, on each kind of store: nothing of either writer is lost."""

from __future__ import annotations

import threading
import uuid

import pytest
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from benchmarks.servers.s3 import S3Server
from tests.spark.conftest import Lake
from tests.spark.small.test_kill_fault import ORDERS
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


@pytest.fixture(params=["local", "s3"])
def raced(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    if request.param == "s3":
        store: S3Server = request.getfixturevalue("s3_store")
        lake.root, lake.storage_options = f"s3://{store.bucket}/{uuid.uuid4().hex[:12]}", store.options
    lake.way = "small"
    return lake


def batch(number: int) -> list[Image]:
    return [Image(INSERT, 10 * number + 1, {"id": number, "name": "x"})]


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_small_merge_and_a_compaction_replace_no_commit_of_each_other(raced: Lake) -> None:
    schema = Schema(ORDERS.columns)
    for number in (0, 1):
        raced.merge({NAME: [Changes(schema, batch(number))]})
    with Colleague(raced) as colleague:
        for number in range(2, BATCHES):
            raced.merge({NAME: [Changes(schema, batch(number))]})
        wait_for("the other writer has committed", lambda: colleague.committed or colleague.errors)
    history = raced.log(NAME).history()
    assert not colleague.errors
    assert {each["colleague"] for each in history if "colleague" in each} == set(colleague.committed)
    assert raced.rows(NAME, "id") == [(number,) for number in range(BATCHES)]
