"""Kills Spark's server during a MERGE, an OPTIMIZE and a VACUUM in each kind of store, while another writer commits to the table. When the
work is repeated, the table has each change once, and the commits of both writers.

The table has a partition per file that a statement writes, and the server is killed when the first file is in the store. So the
statement has not committed yet. During VACUUM, the server is killed when the log says that VACUUM has started.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import CommitProperties

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
PARTS, ROWS, BATCHES = 8, 64, 3
LEFT_FILES = {"s3": 400, "gs": 60, "abfs": 30}  # By scheme of the store. Removing them takes a second.
SECONDS_MAX = 120.0
STORES = {"s3": "s3_store", "google": "fake_gcs", "azure": "azurite"}


@dataclasses.dataclass
class KilledLake(Lake):
    """A lake whose Spark server is killed. `theirs` are the ids of the other writer's commits."""

    server: SparkConnectServer = dataclasses.field(kw_only=True)
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

    def killed_when(self, moment: Callable[[], bool], act: Callable[[], object]) -> None:
        """Kills the server during `act`, when `moment` returns true. Then another writer commits, and the server starts again."""
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(act)
            deadline = time.monotonic() + SECONDS_MAX
            while not moment():
                assert not going.done(), "the statement ended before its effect was seen"
                assert time.monotonic() < deadline, "the statement had no effect"
            self.server.kill()
            self.commit_of_others()
            self.server.start()
            with pytest.raises(SparkJobError):
                going.result(SECONDS_MAX)

    def commit_of_others(self) -> None:
        """Joins the files of one partition, as a platform does."""
        self.theirs.append(uuid.uuid4().hex)
        properties = CommitProperties(custom_metadata={"theirs": self.theirs[-1]})
        part = len(self.theirs) - 1
        self.log(NAME).optimize.compact(partition_filters=[("part", "=", str(part))], commit_properties=properties)


@pytest.fixture(params=STORES)
def killed_lake(request: pytest.FixtureRequest, tmp_path: Path, second_spark_server: SparkConnectServer) -> KilledLake:
    store = request.getfixturevalue(STORES[request.param])
    return KilledLake(
        tmp_path,
        SparkSettings(remote=second_spark_server.url, sessions_file=tmp_path / "sessions.json"),
        way="spark",
        root=f"{store.root}/{uuid.uuid4().hex[:12]}",
        storage_options=store.options,
        server=second_spark_server.start(),  # An earlier test may have killed it and failed.
    )


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


def require_batch_merged_once(lake: KilledLake) -> None:
    """Kills the server during a MERGE. The batch is then merged twice."""
    staged, files, version = lake.stage({NAME: batch(BATCHES, updates=True)}), lake.data_files, lake.version
    lake.killed_when(lambda: bool(lake.data_files - files), lambda: lake.merge_batch(staged))
    assert lake.version == version + 1, "the killed statement committed nothing"
    for _ in range(2):
        lake.merge_batch(staged)


def require_vacuumed(lake: KilledLake) -> None:
    """Kills the server during a VACUUM. The next one removes the remaining files."""
    left = lake.leave_files()

    def vacuumed() -> Maintained | None:
        return vacuum(lake.spark, lake.table, 0.0, logged=0.0, log_days=1)

    lake.killed_when(lambda: "VACUUM START" in lake.operations, vacuumed)
    assert "VACUUM END" not in lake.operations
    remaining = left & lake.data_files
    done = vacuumed()
    assert done is not None
    assert done.removed_files >= len(remaining)
    assert lake.data_files == {file.rpartition(f"{NAME}/")[2] for file in lake.log(NAME).file_uris()}


def require_joined(lake: KilledLake) -> None:
    """Kills the server during an OPTIMIZE. The next one joins the files."""
    files, version = lake.data_files, lake.version
    lake.killed_when(lambda: bool(lake.data_files - files), lambda: optimize(lake.spark, lake.table, wanted=True))
    assert lake.version == version + 1, "the killed statement committed nothing"
    joined = optimize(lake.spark, lake.table, wanted=True)
    assert joined is not None
    assert joined.after.files == PARTS


@pytest.mark.timeout(600)
def test_store_fault_a_merge_a_vacuum_and_an_optimize_are_completed_when_spark_was_killed_in_them(
    killed_lake: KilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = killed_lake
    rows = [(key, f"of batch {BATCHES}" if key < ROWS else name) for key, name in written(lake)]
    require_batch_merged_once(lake)
    require_vacuumed(lake)
    monkeypatch.setattr(rule, "SMALL_FILES_MAX", 1)
    require_joined(lake)
    assert lake.rows(NAME, "id", "name") == rows
    require_both_writers(lake)
