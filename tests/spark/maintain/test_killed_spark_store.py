"""Kills Spark's server during a MERGE, an OPTIMIZE and a VACUUM in each kind of store, while another writer commits to the table. When the
work is repeated, the table has each change once, and the commits of both writers.

The table has a partition per file that a statement writes, and its store is suspended when the first file is in the store. So the
statement has not committed yet. During VACUUM, the store is suspended when the log says that VACUUM has started. The server is killed
when all stores are suspended.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import CommitProperties

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import S3Server
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.errors import SparkJobError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain import rule
from sluice.spark_jobs.maintain.tables import Maintained, MaintainedTable, optimize, vacuum
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.targets.layout import Layout
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, LEDGER_ID, UPDATE_AFTER, Changes, Image, Schema

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]
NAME = "shop.orders"
ORDERS = Schema({"id": "bigint", "part": "int", "name": "string"}, key=("id",))
PARTS, ROWS, BATCHES = 8, 64, 2
LEFT_FILES = {"s3": 400, "gs": 60, "abfs": 30}  # By scheme of the store. Removing them takes a second.
SECONDS_MAX = 120.0
# A statement takes at least half a second from its first effect to its end. Looking without a pause would take the processor from Spark.
LOOK_SECONDS = 0.05


Act = Callable[["KilledLake"], object]
Moment = Callable[["KilledLake"], bool]


@dataclasses.dataclass
class KilledLake(Lake):
    """A lake in `store` whose Spark server is killed. `theirs` are the ids of the other writer's commits."""

    store: S3Server | FakeGcsServer | AzuriteServer = dataclasses.field(kw_only=True)
    theirs: list[str] = dataclasses.field(default_factory=list)

    @property
    def data_files(self) -> set[str]:
        names = StoreFolder(self.path(NAME), self.storage_options).sizes()
        return {name for name in names if name.endswith(".parquet") and not name.startswith("_delta_log/")}

    @property
    def table(self) -> MaintainedTable:
        return MaintainedTable(
            owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME),
            path=self.path(NAME),
            storage_options=self.storage_options,
            fence=BY_HAND,
        )

    @property
    def version(self) -> int:
        return self.log(NAME).version()

    @property
    def operations(self) -> set[str]:
        """The names of the operations that the log has."""
        return {each["operation"] for each in self.log(NAME).history()}

    def merge_batch(self, staged: Path) -> None:
        self.merge_staged(staged, [NAME], layout=Layout(partition_by=("part",)))

    def leave_files(self) -> set[str]:
        """Writes files that no version of the table has. Returns their names."""
        names = {f"part=0/part-{number:05}.parquet" for number in range(LEFT_FILES[self.root.partition(":")[0]])}
        for name in names:
            file = self.folder / "left" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"of a killed MERGE")
        StoreFolder(self.path(NAME), self.storage_options).put(self.folder / "left")
        return names

    def suspend_store_when(self, moment: Moment, statement: Future[object]) -> None:
        """Suspends the store when `moment` returns true, which must be before the statement ends."""
        deadline = time.monotonic() + SECONDS_MAX
        while not moment(self):
            assert not statement.done(), "the statement ended before its effect was seen"
            assert time.monotonic() < deadline, "the statement had no effect"
            threading.Event().wait(LOOK_SECONDS)
        self.store.stall()

    def commit_of_others(self) -> None:
        """Joins the files of one partition, as another writer of the table. Each call joins the next partition."""
        self.theirs.append(uuid.uuid4().hex)
        properties = CommitProperties(custom_metadata={"theirs": self.theirs[-1]})
        part = len(self.theirs) - 1
        self.log(NAME).optimize.compact(partition_filters=[("part", "=", str(part))], commit_properties=properties)


@dataclasses.dataclass
class KilledSpark:
    """A Spark server, and one lake of it in each kind of store."""

    server: SparkConnectServer
    lakes: Sequence[KilledLake]

    def killed_when(self, moment: Moment, act: Act) -> None:
        """Kills the server during `act` in all lakes, when `moment` has returned true for each of them. Then another writer commits, and
        the server starts again.
        """
        with ThreadPoolExecutor(2 * len(self.lakes)) as pool:
            going = [pool.submit(act, lake) for lake in self.lakes]
            try:
                for each in [
                    pool.submit(lake.suspend_store_when, moment, statement)
                    for lake, statement in zip(self.lakes, going, strict=True)
                ]:
                    each.result()
                self.server.kill()
            finally:
                for lake in self.lakes:
                    lake.store.resume()
            for lake in self.lakes:
                lake.commit_of_others()
            self.server.start()
            for statement in going:
                with pytest.raises(SparkJobError):
                    statement.result(SECONDS_MAX)


@pytest.fixture
def killed_spark(
    tmp_path: Path,
    second_spark_server: SparkConnectServer,
    s3_store: S3Server,
    fake_gcs: FakeGcsServer,
    azurite: AzuriteServer,
) -> KilledSpark:
    def lake(store: S3Server | FakeGcsServer | AzuriteServer) -> KilledLake:
        folder = tmp_path / type(store).__name__
        folder.mkdir()
        return KilledLake(
            folder,
            SparkSettings(remote=second_spark_server.url, sessions_file=folder / "sessions.json"),
            way="spark",
            root=f"{store.root}/{uuid.uuid4().hex[:12]}",
            storage_options=store.options,
            store=store,
        )

    # An earlier test may have killed the server, and failed before it started the server again.
    server = second_spark_server.start()
    return KilledSpark(server, [lake(store) for store in (s3_store, fake_gcs, azurite)])


def batch(number: int, *, updates: bool = False) -> list[Changes]:
    first = 0 if updates else number * ROWS
    images = [
        Image(
            UPDATE_AFTER if updates else INSERT,
            1000 * number + key + 1,
            {"id": first + key, "part": key % PARTS, "name": f"of batch {number}"},
        )
        for key in range(ROWS)
    ]
    return [Changes(ORDERS, images)]


def written(lake: KilledLake) -> list[tuple[int, str]]:
    """Writes BATCHES batches. Returns the rows."""
    for number in range(BATCHES):
        lake.merge_batch(lake.stage({NAME: batch(number)}))
    return [(key, f"of batch {key // ROWS}") for key in range(BATCHES * ROWS)]


def require_both_writers(lake: KilledLake) -> None:
    """Checks that the log has each version once, and the commits of the other writer in their order."""
    history = lake.log(NAME).history()
    assert [each["theirs"] for each in reversed(history) if "theirs" in each] == lake.theirs
    assert sorted(each["version"] for each in history) == list(range(len(history)))


def writes(before: Mapping[str, set[str]]) -> Moment:
    """Returns the moment at which a lake has a file that it did not have in `before`, by the root of the lake."""
    return lambda lake: bool(lake.data_files - before[lake.root])


def require_batch_merged_once(spark: KilledSpark) -> None:
    """Kills the server during a MERGE. The batch is then merged twice."""
    staged = {lake.root: lake.stage({NAME: batch(BATCHES, updates=True)}) for lake in spark.lakes}
    versions = {lake.root: lake.version for lake in spark.lakes}
    moment = writes({lake.root: lake.data_files for lake in spark.lakes})
    spark.killed_when(moment, lambda lake: lake.merge_batch(staged[lake.root]))
    for lake in spark.lakes:
        assert lake.version == versions[lake.root] + 1, "the killed statement committed nothing"
        for _ in range(2):
            lake.merge_batch(staged[lake.root])


def vacuumed(lake: KilledLake) -> Maintained | None:
    return vacuum(lake.spark, lake.table, 0.0, logged=0.0, log_days=1)


def require_vacuumed(spark: KilledSpark) -> None:
    """Kills the server during a VACUUM. The next one removes the remaining files."""
    left = {lake.root: lake.leave_files() for lake in spark.lakes}
    spark.killed_when(lambda lake: "VACUUM START" in lake.operations, vacuumed)
    for lake in spark.lakes:
        assert "VACUUM END" not in lake.operations
        remaining = left[lake.root] & lake.data_files
        done = vacuumed(lake)
        assert done is not None
        assert done.removed_files >= len(remaining)
        assert lake.data_files == {file.rpartition(f"{NAME}/")[2] for file in lake.log(NAME).file_uris()}


def joined(lake: KilledLake) -> Maintained | None:
    return optimize(lake.spark, lake.table, wanted=True)


def require_joined(spark: KilledSpark) -> None:
    """Kills the server during an OPTIMIZE. The next one joins the files."""
    versions = {lake.root: lake.version for lake in spark.lakes}
    spark.killed_when(writes({lake.root: lake.data_files for lake in spark.lakes}), joined)
    for lake in spark.lakes:
        assert lake.version == versions[lake.root] + 1, "the killed statement committed nothing"
        done = joined(lake)
        assert done is not None
        assert done.after.files == PARTS


@pytest.mark.timeout(900)
def test_store_fault_a_merge_a_vacuum_and_an_optimize_are_completed_when_spark_was_killed_in_them(
    killed_spark: KilledSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        [(key, f"of batch {BATCHES}" if key < ROWS else name) for key, name in written(lake)]
        for lake in killed_spark.lakes
    ]
    require_batch_merged_once(killed_spark)
    require_vacuumed(killed_spark)
    monkeypatch.setattr(rule, "SMALL_FILES_MAX", 1)
    require_joined(killed_spark)
    for lake, expected in zip(killed_spark.lakes, rows, strict=True):
        assert lake.rows(NAME, "id", "name") == expected
        require_both_writers(lake)
