"""Kills Spark's server during a MERGE and an OPTIMIZE in each kind of store, while another writer commits to the table. When the
work is repeated, the table has each change once, and the commits of both writers.

The table has a partition per file that a statement writes, and the server is killed when the first file is in the store. So the
statement has not committed yet.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import CommitProperties

from benchmarks.servers.azurite.server import AzuriteServer
from sluice.console.toolchain.artifacts import EXTRAS
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.errors import SparkJobError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain import rule
from sluice.spark_jobs.maintain.tables import MaintainedTable, optimize
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.targets.layout import Layout
from tests.fix_servers import FEW_ROWS
from tests.spark.conftest import Lake
from tests.spark.staged import INSERT, LEDGER_ID, UPDATE_AFTER, Changes, Image, Schema

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.store]
NAME = "shop.orders"
ORDERS = Schema({"id": "bigint", "part": "int", "name": "string"}, key=("id",))
PARTS, ROWS, BATCHES = 8, 64, 3
SECONDS_MAX = 120.0
STORES = {"s3": "s3_store", "google": "fake_gcs", "azure": "azurite"}


@pytest.fixture(scope="module")
def mortal_spark(
    tmp_path_factory: pytest.TempPathFactory,
    stores_of_spark: Mapping[str, Mapping[str, str]],
    azure_server: AzuriteServer,
) -> Iterator[SparkConnectServer]:
    """Starts a Spark server that the tests of this file kill."""
    folder = tmp_path_factory.mktemp("mortal")
    settings = ServerSettings(more={**FEW_ROWS, **azure_server.spark_settings})
    server = SparkConnectServer(None, folder, memory="1g", settings=settings, extras=(*EXTRAS, "azure"))
    for store, options in stores_of_spark.items():
        server.add_settings(spark_settings(store, options), spark_environment(store, options))
    try:
        yield server.start()
    finally:
        server.kill()


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

    def merge_batch(self, staged: Path) -> None:
        self.merge_staged(staged, [NAME], layout=Layout(partition_by=("part",)))

    def killed_when(self, moment: Callable[[set[str]], bool], act: Callable[[], object]) -> None:
        """Kills the server while it executes `act`, when `moment` is true for the data files in the store. Then another writer commits,
        and the server starts again.
        """
        version = self.log(NAME).version()
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(act)
            deadline = time.monotonic() + SECONDS_MAX
            while not moment(self.data_files):
                assert not going.done(), "the statement ended before its files were seen"
                assert time.monotonic() < deadline, "the statement changed no file"
            self.server.kill()
            self.commit_of_others()
            self.server.start()
            with pytest.raises(SparkJobError):
                going.result(SECONDS_MAX)
        assert self.log(NAME).version() == version + 1, "the killed statement committed nothing"

    def commit_of_others(self) -> None:
        """Joins the files of one partition, as a platform does."""
        self.theirs.append(uuid.uuid4().hex)
        properties = CommitProperties(custom_metadata={"theirs": self.theirs[-1]})
        part = len(self.theirs) - 1
        self.log(NAME).optimize.compact(partition_filters=[("part", "=", str(part))], commit_properties=properties)


@pytest.fixture(params=STORES)
def killed_lake(request: pytest.FixtureRequest, tmp_path: Path, mortal_spark: SparkConnectServer) -> KilledLake:
    store = request.getfixturevalue(STORES[request.param])
    return KilledLake(
        tmp_path,
        SparkSettings(remote=mortal_spark.url, sessions_file=tmp_path / "sessions.json"),
        way="spark",
        root=f"{store.root}/{uuid.uuid4().hex[:12]}",
        storage_options=store.options,
        server=mortal_spark,
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


@pytest.mark.timeout(400)
def test_store_fault_a_batch_is_merged_once_when_spark_was_killed_in_its_merge(killed_lake: KilledLake) -> None:
    lake = killed_lake
    rows = [(key, f"of batch {BATCHES}" if key < ROWS else name) for key, name in written(lake)]
    staged, files = lake.stage({NAME: batch(BATCHES, updates=True)}), lake.data_files
    lake.killed_when(lambda found: bool(found - files), lambda: lake.merge_batch(staged))
    for _ in range(2):
        lake.merge_batch(staged)
    assert lake.rows(NAME, "id", "name") == rows
    require_both_writers(lake)


@pytest.mark.timeout(400)
def test_store_fault_files_are_joined_when_spark_was_killed_in_an_optimize(
    killed_lake: KilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = killed_lake
    rows, files = written(lake), lake.data_files
    monkeypatch.setattr(rule, "SMALL_FILES_MAX", 1)
    lake.killed_when(lambda found: bool(found - files), lambda: optimize(lake.spark, lake.table, wanted=True))
    joined = optimize(lake.spark, lake.table, wanted=True)
    assert joined is not None
    assert joined.after.files == PARTS
    assert lake.rows(NAME, "id", "name") == rows
    require_both_writers(lake)
