"""Tests Spark's commits to a Delta table in S3 while another writer commits the same version, or while the answer of the store is lost."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from benchmarks.servers.s3 import S3Server
from sluice.console.toolchain.ports import LOOPBACK
from sluice.console.toolchain.spark.build_log_store import checksum, recorded_checksum
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.session import SparkSettings, open_sessions
from tests.parser.proxy import Proxy


def test_the_jar_of_the_log_store_was_made_of_the_source_in_the_repository() -> None:
    assert recorded_checksum() == checksum(), f"run {sys.executable} -m sluice.console.toolchain.spark.build_log_store"


class Table:
    """A Delta table in its own bucket, which Spark reaches over a proxy."""

    def __init__(self, store: S3Server) -> None:
        self.bucket = f"commits-{uuid.uuid4().hex[:12]}"
        self.url, self.options = f"s3://{self.bucket}/t", store.options
        store.make_bucket(self.bucket)
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

    def append_by_spark(self, spark: SparkConnectServer, proxy: Proxy, number: int) -> None:
        with open_sessions(SparkSettings(remote=spark.url), 1) as (session,):
            session.spark.conf.set(f"fs.s3a.bucket.{self.bucket}.endpoint", f"http://{LOOPBACK}:{proxy.port}")
            session.spark.sql(f"INSERT INTO delta.`s3a://{self.bucket}/t` VALUES ({number})").collect()


@pytest.fixture
def table(s3_store: S3Server) -> Table:
    return Table(s3_store)


class FirstCommit:
    """Calls `before` when the first request arrives that writes a version of the table; `lost`: the client gets no answer to it."""

    def __init__(
        self, table: Table, version: int, *, before: Callable[[], None] = lambda: None, lost: bool = False
    ) -> None:
        self.seen = False
        self._request = f"PUT /{table.bucket}/t/_delta_log/{version:020}.json".encode()
        self._before, self._loses = before, lost

    def asked(self, sent: bytes) -> bytes:
        if sent.startswith(self._request) and not self.seen:
            self.seen = True
            self._before()
        return sent

    def tamper(self, answer: bytes) -> bytes:
        if self.seen and self._loses and answer.startswith(b"HTTP/1.1 200"):
            self._loses = False
            raise ConnectionResetError
        return answer


@pytest.fixture
def proxy(s3_store: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_store.port) as made:
        yield made


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_commit_by_spark_replaces_no_commit_that_arrives_immediately_before_it(
    table: Table, proxy: Proxy, spark_server: SparkConnectServer
) -> None:
    commit = FirstCommit(table, 1, before=lambda: table.append(2))
    proxy.asked = commit.asked
    table.append_by_spark(spark_server, proxy, 3)
    assert commit.seen
    assert (table.rows, table.commits) == ([1, 2, 3], 2)


@pytest.mark.servers
@pytest.mark.spark
@pytest.mark.store
def test_store_a_commit_by_spark_whose_answer_is_lost_is_not_repeated(
    table: Table, proxy: Proxy, spark_server: SparkConnectServer
) -> None:
    commit = FirstCommit(table, 1, lost=True)
    proxy.asked, proxy.tamper = commit.asked, commit.tamper
    table.append_by_spark(spark_server, proxy, 3)
    assert commit.seen
    assert (table.rows, table.commits) == ([1, 3], 1)
