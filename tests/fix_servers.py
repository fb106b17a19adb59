"""pytest plugin that provides real database servers and a Spark server. Each starts when a test first uses it.

Every server has its own folder (`memory_folder`) and a free port. It is stopped at the end of the tests. If pytest is killed, the server
ends too.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.postgres import PostgresServer
from benchmarks.servers.s3 import S3Server
from benchmarks.servers.zookeeper import ZooKeeperServer
from sluice.console.toolchain.artifacts import DATABASE_VERSIONS, MYSQL_9, delta_version
from sluice.console.toolchain.database.options import Options
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.session import SMALL_SETTINGS
from tests.memory_folder import servers_folder

__all__ = ["servers_folder"]

# The settings of Sluice's own statements for few rows, without the one about deletion vectors. A server with FEW_ROWS applies them to all
# statements.
WITH_VECTORS = {name: value for name, value in SMALL_SETTINGS.items() if "deletionVectors" not in name}
FEW_ROWS = {**WITH_VECTORS, "spark.databricks.delta.snapshotPartitions": "1"}
# A Spark that at least this many tests share optimizes its code. After some 300 statements, the optimization has saved the processor time
# that it took. Each further statement takes a quarter less.
OPTIMIZED_TESTS_MIN = 100
ServerFactory = Callable[..., DatabaseServer]
Store = TypeVar("Store", AzuriteServer, FakeGcsServer)


def pytest_report_header() -> str:
    """Lists the servers that tests may start."""
    return (
        f"servers: {', '.join((*DATABASE_VERSIONS, MYSQL_9))}; Spark {version('pyspark')} with Delta {delta_version()}"
    )


def _running(version: str, folder: Path) -> Iterator[DatabaseServer]:
    server = DatabaseServer(version, folder / version)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def mysql80(servers_folder: Path) -> Iterator[DatabaseServer]:
    """Starts MySQL 8.0.31 for the whole run. A test creates its own database in it and leaves the server running."""
    yield from _running("mysql-8.0.31", servers_folder)


@pytest.fixture(scope="session")
def mysql9(servers_folder: Path) -> Iterator[DatabaseServer]:
    """Starts MySQL 9 for the whole run, like mysql80. If Debian's packages are not available, skips the tests and gives the reason."""
    server = DatabaseServer(MYSQL_9, servers_folder / MYSQL_9)
    _skip_without_packages(server)
    try:
        yield server.start()
    finally:
        server.stop()


def _skip_without_packages(server: DatabaseServer) -> None:
    try:
        server.home  # noqa: B018 - unpacks it
    except SetupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def mysql57(servers_folder: Path) -> Iterator[DatabaseServer]:
    """Starts MySQL 5.7.22 for the whole run."""
    yield from _running("mysql-5.7.22", servers_folder)


@pytest.fixture(scope="session")
def mariadb114(servers_folder: Path) -> Iterator[DatabaseServer]:
    """Starts MariaDB 11.4.5 for the whole run."""
    yield from _running("mariadb-11.4.5", servers_folder)


@pytest.fixture(scope="session")
def mariadb1011(servers_folder: Path) -> Iterator[DatabaseServer]:
    """Starts MariaDB 10.11.5 for the whole run."""
    yield from _running("mariadb-10.11.5", servers_folder)


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[ServerFactory]:
    """Creates servers of any version for one test, which may kill, restart and reconfigure them. They are removed when the test ends."""
    made: list[DatabaseServer] = []

    def make(version: str, options: Options | None = None) -> DatabaseServer:
        server = DatabaseServer(version, tmp_path / f"server-{len(made)}", options=options)
        if version == MYSQL_9:
            _skip_without_packages(server)
        made.append(server)
        return server.start()

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def fresh_mysql80(fresh_server: ServerFactory) -> ServerFactory:
    """Creates MySQL 8.0.31 servers for one test: `fresh_mysql80()` or `fresh_mysql80({"binlog_row_metadata": "FULL"})`."""

    def make(options: Options | None = None) -> DatabaseServer:
        return fresh_server("mysql-8.0.31", options)

    return make


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """Returns an S3 server that is not started. Spark gets its address when Spark starts. The server starts when a test uses it."""
    return S3Server(tmp_path_factory.mktemp("s3"), free_port())


@pytest.fixture(scope="session")
def s3_store(s3_server: S3Server) -> Iterator[S3Server]:
    """Starts an S3 server for the whole run. A test uses its own prefix in it."""
    try:
        yield s3_server.start()
    finally:
        s3_server.kill()


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> AzuriteServer:
    """Returns an Azure Blob Storage that is not started. Spark gets its address when Spark starts."""
    return AzuriteServer(tmp_path_factory.mktemp("azurite"))


@pytest.fixture(scope="session")
def azurite(azure_server: AzuriteServer) -> Iterator[AzuriteServer]:
    """Starts an Azure Blob Storage for the whole run. A test uses its own prefix in it. If npm cannot install it, skips the test."""
    yield from _started(azure_server)


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> FakeGcsServer:
    """Returns a Google Cloud Storage that is not started. Spark gets its address when Spark starts."""
    return FakeGcsServer(tmp_path_factory.mktemp("gcs"))


@pytest.fixture(scope="session")
def fake_gcs(gcs_server: FakeGcsServer) -> Iterator[FakeGcsServer]:
    """Starts a Google Cloud Storage for the whole run. A test uses its own prefix in it. If Go cannot install it, skips the test."""
    yield from _started(gcs_server)


def _started(server: Store) -> Iterator[Store]:
    """Yields the started server, and kills it at the end. Skips the test if the server cannot be installed."""
    try:
        try:
            server.start()
        except SetupError as error:
            pytest.skip(str(error))
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def stores_of_spark(
    s3_server: S3Server, azure_server: AzuriteServer, gcs_server: FakeGcsServer
) -> Mapping[str, Mapping[str, str]]:
    """Returns the options of the object stores that the Spark servers of the tests can use, by kind of store."""
    return {"s3": s3_server.options, "azure": azure_server.options, "google": gcs_server.options}


@pytest.fixture(scope="session")
def product_spark_server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    stores_of_spark: Mapping[str, Mapping[str, str]],
) -> Iterator[SparkConnectServer]:
    """Starts a Spark Connect server with Delta and the product's settings, for all tests of the worker. It is not warmed up, so the first
    MERGE takes longer.
    """
    settings = ServerSettings()
    yield from _running_spark(tmp_path_factory.mktemp("spark"), settings, stores_of_spark, _environment(request))


@pytest.fixture(scope="session")
def few_rows_spark_server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    stores_of_spark: Mapping[str, Mapping[str, str]],
) -> Iterator[SparkConnectServer]:
    """Starts a Spark server like `product_spark_server`, but with the settings FEW_ROWS. With these, statements over a few rows take half
    of the processor time.
    """
    settings = ServerSettings(more=FEW_ROWS)
    yield from _running_spark(tmp_path_factory.mktemp("spark"), settings, stores_of_spark, _environment(request))


def _environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Returns the environment variables of a shared Spark. If many tests use it, it optimizes its code (tests/conftest.py switches that off
    for all other Javas).
    """
    count = sum("spark_server" in getattr(item, "fixturenames", ()) for item in request.session.items)
    return {"JAVA_TOOL_OPTIONS": ""} if count >= OPTIMIZED_TESTS_MIN else {}


def _running_spark(
    folder: Path, settings: ServerSettings, stores: Mapping[str, Mapping[str, str]], environment: Mapping[str, str]
) -> Iterator[SparkConnectServer]:
    server = SparkConnectServer(None, folder, memory="2g", settings=settings, extras=tuple(stores))
    server.add_settings({}, environment)
    for store, options in stores.items():
        server.add_settings(spark_settings(store, options), spark_environment(store, options))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def spark_server(product_spark_server: SparkConnectServer) -> SparkConnectServer:
    """Returns the Spark of most tests. Those in tests/spark have another one."""
    return product_spark_server


@pytest.fixture(scope="session")
def postgres16(servers_folder: Path) -> Iterator[PostgresServer]:
    """Starts Postgres 16 for the whole run. A test uses its own names in it, and leaves the server running."""
    server = PostgresServer(servers_folder / "postgres")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def zookeeper39(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Starts ZooKeeper 3.9 with one node for the whole run, like Postgres."""
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield server.start()
    finally:
        server.kill()
