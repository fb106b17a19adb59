"""Provides a lake in a folder of the test, and functions that read its tables, for the tests of the merge."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.other_spark import SPARK35
from sluice.batch_manifest.table_report import TableReport
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.spark_jobs import session
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.small import shipped
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.fix_servers import FEW_ROWS, WITH_VECTORS
from tests.spark.staged import Segment, stage


@pytest.fixture(autouse=True)
def code_of_this_test() -> Iterator[None]:
    """Makes each test write the code for executors itself, because the code may contain what a test has replaced."""
    shipped.forget()
    yield
    shipped.forget()


@dataclasses.dataclass
class Lake:
    """Delta tables in one folder, or under `root` in an object store, and batches that are merged into them."""

    folder: Path
    spark: SparkSettings
    way: SmallSetting = "auto"
    root: str = ""
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    deliveries: itertools.count[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def path(self, name: str) -> str:
        return f"{self.root or self.folder / 'lake'}/{name}"

    def target(self, name: str, **options: Any) -> TableTarget:
        return TableTarget(**{"path": self.path(name), "merge": self.way, **options})

    def stage(self, tables: Mapping[str, Sequence[Segment]], **options: Any) -> Path:
        return stage(self.folder / "staging", tables, delivery=next(self.deliveries), **options)

    def merge(self, tables: Mapping[str, Sequence[Segment]], **options: Any) -> dict[str, TableReport]:
        """Stages and merges one batch. The options are those of the targets."""
        return self.merge_staged(self.stage(tables), tables, **options)

    def merge_staged(self, directory: Path, tables: Iterable[str], **options: Any) -> dict[str, TableReport]:
        targets = {name: self.target(name, **options) for name in tables}
        return {
            report.name: report
            for report in merge_batch(
                read_staged_batch(directory), targets, self.spark, BatchContext(storage_options=self.storage_options)
            )
        }

    def log(self, name: str) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.path(name), storage_options=dict(self.storage_options) or None)

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Returns all rows of a table, sorted. They are read without Spark, and deletion vectors are applied."""
        query = f"SELECT {', '.join(columns)} FROM t"
        batches = deltalake.QueryBuilder().register("t", self.log(name)).execute(query).read_all()
        found = [tuple(row.values()) for row in pa.table(batches).to_pylist()]
        return sorted(found, key=lambda row: [(value is not None, value) for value in row])


@pytest.fixture(scope="session")
def spark_server(few_rows_spark_server: SparkConnectServer) -> SparkConnectServer:
    """Returns the Spark of this folder. The folder SHARED_SPARK (tests/conftest.py) uses a Spark with the product's settings instead."""
    return few_rows_spark_server


@pytest.fixture(scope="session")
def second_spark_server(
    tmp_path_factory: pytest.TempPathFactory, stores_of_spark: Mapping[str, Mapping[str, str]]
) -> Iterator[SparkConnectServer]:
    """Starts another Spark server, which writes the same tables as the first one. The server has task slots for statements that wait for a
    suspended store.
    """
    settings, folder = ServerSettings(more={**FEW_ROWS, "spark.master": "local[24]"}), tmp_path_factory.mktemp("second")
    server = SparkConnectServer(None, folder, memory="1g", settings=settings, extras=tuple(stores_of_spark))
    for store, options in stores_of_spark.items():
        server.add_settings(spark_settings(store, options), spark_environment(store, options))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def lake(tmp_path: Path, spark_server: SparkConnectServer) -> Lake:
    """Returns an empty lake with the shared Spark server. A test of both ways of merging also uses the fixture `way`. A test of one way
    sets `lake.way`.
    """
    return Lake(tmp_path, SparkSettings(remote=spark_server.url, sessions_file=tmp_path / "lanes.json"))


@pytest.fixture(scope="session")
def spark35_server(
    tmp_path_factory: pytest.TempPathFactory,
    stores_of_spark: Mapping[str, Mapping[str, str]],
    azure_server: AzuriteServer,
    gcs_server: FakeGcsServer,
) -> Iterator[SparkConnectServer]:
    """Starts a Spark 3.5 with Delta 3.3 without Sluice, and with clients of each kind of store."""
    folder = tmp_path_factory.mktemp("spark35")
    server = SPARK35.server(
        folder,
        more={**azure_server.wasb_settings, **gcs_server.old_client_settings},
        stores=("spark35-google", "spark35-azure"),
    )
    for store, options in stores_of_spark.items():
        server.add_settings(spark_settings(store, options), spark_environment(store, options))
    server.add_settings({}, azure_server.wasb_environment(folder))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="module", params=["spark", "small"])
def way(request: pytest.FixtureRequest) -> SmallSetting:
    """Runs the test with both ways of merging."""
    chosen: SmallSetting = request.param
    return chosen


@pytest.fixture
def marks_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Spark use deletion vectors for small tables too. The other settings of small merges stay, because compiling code for a few
    rows would take most of the time of such a test.
    """
    monkeypatch.setattr(session, "SMALL_SETTINGS", WITH_VECTORS)
