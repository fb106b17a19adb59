"""Tests Spark's commits to a Delta table in a store while another writer commits the same version, or the answer of the store is lost."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import S3Server
from sluice.console.toolchain.ports import LOOPBACK
from sluice.console.toolchain.spark.build_log_store import checksum, recorded_checksum
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.session import SparkSettings, open_sessions
from sluice.spark_jobs.sql_text import delta_path
from tests.parser.proxy import Proxy


def test_the_jar_of_the_log_stores_was_made_of_the_sources_in_the_repository() -> None:
    assert recorded_checksum() == checksum(), f"run {sys.executable} -m sluice.console.toolchain.spark.build_log_store"


class Table:
    """A Delta table that Spark reaches over a proxy."""

    scheme = "s3"
    # The number of versions that Spark has made if the answer to its first request is lost.
    versions_after_lost_answer = 1

    def __init__(self, bucket: str, folder: str, options: dict[str, str]) -> None:
        self.bucket, self.options = bucket, options
        self.url = f"{self.scheme}://{bucket}/{folder}"
        self.append(1)

    def append(self, number: int) -> None:
        deltalake.write_deltalake(self.url, pa.table({"n": [number]}), mode="append", storage_options=self.options)

    @property
    def rows(self) -> list[int]:
        table = deltalake.DeltaTable(self.url, storage_options=self.options)
        found: list[Any] = table.to_pyarrow_table()["n"].to_pylist()
        return sorted(found)

    @property
    def commits(self) -> int:
        return deltalake.DeltaTable(self.url, storage_options=self.options).version()

    def settings(self, port: int) -> dict[str, str]:
        """Returns the settings by which Spark reaches the table at this port."""
        return {f"fs.s3a.bucket.{self.bucket}.endpoint": f"http://{LOOPBACK}:{port}"}

    def begins(self, request: bytes, version: int) -> bool:
        """Returns whether the request begins to write a version of the table."""
        return request.startswith(f"PUT /{self.bucket}/t/_delta_log/{version:020}.json".encode())

    def writes(self, request: bytes) -> bool:
        """Returns whether the request, which comes after `begins`, writes the content."""
        return request.startswith(b"PUT ")

    def append_by_spark(self, spark: SparkConnectServer, proxy: Proxy, number: int) -> None:
        with open_sessions(SparkSettings(remote=spark.url), 1) as (session,):
            session.configure(self.settings(proxy.port))
            session.spark.sql(f"INSERT INTO {delta_path(self.url)} VALUES ({number})").collect()


class GoogleTable(Table):
    """Google's client uploads a file by a request that names it, and others that have its content."""

    scheme = "gs"

    def settings(self, port: int) -> dict[str, str]:
        # Otherwise Hadoop would use the cached client of an earlier statement, which does not use the proxy.
        return {"fs.gs.impl.disable.cache": "true", "fs.gs.storage.root.url": f"http://{LOOPBACK}:{port}/"}

    def begins(self, request: bytes, version: int) -> bool:
        line = request.partition(b"\r\n")[0]
        return line.startswith(b"POST ") and b"uploadType=resumable" in line and f"{version:020}.json".encode() in line


class AzureTable(Table):
    """Hadoop's client writes a file with another name, and then lets the store copy it to the name of the commit."""

    scheme = "abfs"
    # Delta takes its own commit for that of another writer, and commits the same file again. So no row is there twice.
    versions_after_lost_answer = 2

    def settings(self, port: int) -> dict[str, str]:
        # Otherwise Hadoop would use the cached client of an earlier statement, which does not use the proxy.
        return {"fs.abfs.impl.disable.cache": "true", "fs.azure.abfs.endpoint": f"{LOOPBACK}:{port}"}

    def begins(self, request: bytes, version: int) -> bool:
        line = request.partition(b"\r\n")[0]
        is_copy = b"\r\nx-ms-copy-source:" in request.lower()
        return line.startswith(b"PUT ") and f"/_delta_log/{version:020}.json".encode() in line and is_copy


@pytest.fixture
def s3_table(s3_store: S3Server) -> Table:
    bucket = f"commits-{uuid.uuid4().hex[:12]}"
    s3_store.make_bucket(bucket)
    return Table(bucket, "t", s3_store.options)


@pytest.fixture
def google_table(fake_gcs: FakeGcsServer) -> Table:
    return GoogleTable(fake_gcs.bucket, uuid.uuid4().hex[:12], fake_gcs.options)


@pytest.fixture
def azure_table(azurite: AzuriteServer) -> Table:
    return AzureTable(azurite.root.partition("://")[2], uuid.uuid4().hex[:12], azurite.options)


STORES = {"s3": "s3_store", "google": "fake_gcs", "azure": "azurite"}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def table(request: pytest.FixtureRequest, store: str) -> Table:
    found: Table = request.getfixturevalue(f"{store}_table")
    return found


class FirstCommit:
    """Calls `before` when the first request arrives that writes a version of the table. If `lost` is true, the client gets no answer to the
    request.
    """

    def __init__(
        self, table: Table, version: int, *, before: Callable[[], None] = lambda: None, lost: bool = False
    ) -> None:
        self.seen = False
        self._table, self._version = table, version
        self._before, self._loses, self._begun = before, lost, False

    def requested(self, sent: bytes) -> bytes:
        if not self._begun and self._table.begins(sent, self._version):
            self._begun = True
            self._before()
        self.seen = self.seen or (self._begun and self._table.writes(sent))
        return sent

    def tamper(self, answer: bytes) -> bytes:
        if self.seen and self._loses and answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
            self._loses = False
            raise ConnectionResetError
        return answer


@pytest.fixture
def proxy(request: pytest.FixtureRequest, store: str) -> Iterator[Proxy]:
    with Proxy(request.getfixturevalue(STORES[store]).port) as made:
        yield made


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_commit_by_spark_replaces_no_commit_that_arrives_immediately_before_it(
    table: Table, proxy: Proxy, spark_server: SparkConnectServer
) -> None:
    commit = FirstCommit(table, 1, before=lambda: table.append(2))
    proxy.requested = commit.requested
    table.append_by_spark(spark_server, proxy, 3)
    assert commit.seen
    assert (table.rows, table.commits) == ([1, 2, 3], 2)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_commit_by_spark_whose_answer_is_lost_adds_its_rows_once(
    table: Table, proxy: Proxy, spark_server: SparkConnectServer
) -> None:
    commit = FirstCommit(table, 1, lost=True)
    proxy.requested, proxy.tamper = commit.requested, commit.tamper
    table.append_by_spark(spark_server, proxy, 3)
    assert commit.seen
    assert (table.rows, table.commits) == ([1, 3], table.versions_after_lost_answer)
