"""Tests that the Spark server runs Delta with Sluice's settings, and that no process remains after the server is stopped or killed."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.console.toolchain.artifacts import EXTRAS
from sluice.console.toolchain.spark import log_store
from sluice.console.toolchain.spark.collector import collector_options
from sluice.console.toolchain.spark.server import PYTHON_DAEMON, ServerSettings, SparkConnectServer
from sluice.spark_jobs.object_store import spark_settings
from tests.waiting import wait_until_gone

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(spark_server.url).create()
    yield session
    session.stop()


def test_settings_of_the_file_hold(session: SparkSession) -> None:
    wanted = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.host": "127.0.0.1",
    }
    assert {key: session.conf.get(key) for key in wanted} == wanted


def test_the_serial_collector_limits_the_memory_of_a_server_with_two_tasks(spark_server: SparkConnectServer) -> None:
    given = psutil.Process(spark_server.pid).cmdline()
    assert {*collector_options(2)} <= {*given}
    assert "-XX:+UseSerialGC" in given


def test_a_server_with_more_tasks_or_an_unknown_number_collects_with_more_threads() -> None:
    assert collector_options(3) == collector_options(0) == ["-XX:+UseParallelGC"]


def test_delta_tables_have_deletion_vectors(session: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path / 'table'}`"
    session.sql(f"CREATE TABLE {table} (id INT) USING delta")
    properties = session.sql(f"SHOW TBLPROPERTIES {table}").collect()
    assert ("delta.enableDeletionVectors", "true") in [tuple(row) for row in properties]


def test_a_new_python_worker_has_the_packages_of_small_merges(session: SparkSession) -> None:
    def work(batches: Iterable[Any]) -> Iterable[Any]:
        import sys  # noqa: PLC0415

        loaded = ", ".join(sorted({"deltalake", "pandas", "pyarrow.compute"} & {*sys.modules}))
        import pyarrow as pa  # noqa: PLC0415  as the worker has done

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"loaded": [loaded]})

    rows = session.range(0, 1, 1, 1).mapInArrow(work, "loaded string").collect()
    assert [row["loaded"] for row in rows] == ["deltalake, pandas, pyarrow.compute"]


def test_a_python_worker_imports_nothing_from_zip_files(session: SparkSession) -> None:
    """If a worker imported from zip files, each task would read the file lists of Spark's zip files and its jar again, once for each
    importer.
    """

    def work(batches: Iterable[Any]) -> Iterable[Any]:
        import sys  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415  as the worker has done

        for _ in batches:
            importers = {path: type(each).__name__ for path, each in sys.path_importer_cache.items()}
            yield pa.RecordBatch.from_pydict(
                {"zips": [", ".join(path for path, name in importers.items() if name == "zipimporter")]}
            )

    rows = session.range(0, 1, 1, 1).mapInArrow(work, "zips string").collect()
    assert [row["zips"] for row in rows] == [""]


@pytest.mark.parametrize(
    ("file", "more", "is_local"),
    [
        ("spark.master local[2]", {}, True),
        ("spark.master=spark://host:7077", {}, False),
        ("spark.master local[2]", {"spark.master": "spark://host:7077"}, False),
        ("# spark.master yarn", {}, True),
    ],
)
def test_only_a_local_spark_starts_workers_by_sluice(
    tmp_path: Path, file: str, more: dict[str, str], is_local: bool
) -> None:
    """Only a local Spark can start Python workers with Sluice's daemon, because the executors of a cluster do not have Sluice."""
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text(f"spark.ui.enabled false\n{file}\n")
    server = SparkConnectServer(None, tmp_path / "spark", settings=ServerSettings(settings, more))
    assert (f"spark.python.daemon.module={PYTHON_DAEMON}" in server._command()) is is_local


def test_killed_and_stopped_servers_leave_no_process(tmp_path: Path) -> None:
    server = SparkConnectServer(None, tmp_path / "spark", memory="1g")
    killed = server.start().pid
    server.kill()
    assert wait_until_gone(killed, 1)
    stopped = server.start().pid
    server.stop()
    assert wait_until_gone(stopped, 1)
    assert not (tmp_path / "spark" / "scratch").exists()


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("", {"s3", "google"}),
        ("spark.delta.logStore.s3a.impl io.delta.storage.LocalLogStore\n", {"google"}),
        ("delta.logStore.gs.impl = io.delta.storage.GCSLogStore\n", {"s3"}),
        ("spark.delta.logStore.class=io.delta.storage.LocalLogStore\n", set()),
        ("spark.delta.logStore.file.impl io.delta.storage.LocalLogStore\n", {"s3", "google"}),
    ],
)
def test_a_lake_in_a_store_gets_the_log_store_unless_the_settings_name_another(
    tmp_path: Path, line: str, ours: set[str]
) -> None:
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text(f"spark.master local[2]\n{line}")
    server = SparkConnectServer(None, tmp_path / "spark", settings=ServerSettings(settings, {}), extras=EXTRAS)
    command = server._command()
    found = {store for store, pair in log_store.SETTINGS.items() if "=".join(pair) in command}
    assert found == ours
    assert any(str(log_store.JAR) in part for part in command)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("", True),
        ("# spark.hadoop.fs.gs.auth.type X\n", True),
        ("spark.hadoop.fs.gs.auth.type COMPUTE_ENGINE\n", False),
    ],
)
def test_google_the_account_of_the_settings_file_replaces_that_of_conf(tmp_path: Path, line: str, ours: bool) -> None:
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text(f"spark.master local[2]\n{line}")
    server = SparkConnectServer(None, tmp_path / "spark", settings=ServerSettings(settings, {}), extras=("google",))
    server.add_settings(spark_settings("google", {"google_service_account": "/etc/account.json"}), {})
    command = server._command()
    assert any("/etc/account.json" in part for part in command) is ours
    assert any("fs.gs.auth.type=" in part for part in command) is ours
    assert any("fs.gs.impl=" in part for part in command)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("spark.hadoop.fs.azure.account.hns.enabled false\n", True),
        ("spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net X\n", False),
        ("spark.hadoop.fs.azure.account.auth.type.shop.dfs.core.windows.net=OAuth\n", False),
        ("spark.hadoop.fs.azure.sas.fixed.token X\n", False),
    ],
)
def test_azure_the_account_of_the_settings_file_replaces_that_of_conf(tmp_path: Path, line: str, ours: bool) -> None:
    settings = tmp_path / "spark-defaults.conf"
    settings.write_text(f"spark.master local[2]\n{line}")
    server = SparkConnectServer(None, tmp_path / "spark", settings=ServerSettings(settings, {}), extras=("azure",))
    options = {"azure_storage_account_key": "K", "azure_storage_endpoint": "http://127.0.0.1:10000/shop"}
    server.add_settings(spark_settings("azure", options), {})
    command = server._command()
    assert any(".account.auth.type=" in part for part in command) is ours
    assert any(".account.key=" in part for part in command) is ours
    assert any("abfs.endpoint=127.0.0.1:10000" in part for part in command)


def test_a_lake_in_a_folder_gets_no_jars_of_stores(tmp_path: Path) -> None:
    command = " ".join(SparkConnectServer(None, tmp_path / "spark")._command())
    assert not [each for each in (str(log_store.JAR), "hadoop-aws", "gcs-connector", ".gs.impl") if each in command]
