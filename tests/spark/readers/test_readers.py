"""Tests each reader on each feature of Delta, compared with Spark. docs/readers.md shows the same table."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.connect.session import SparkSession

from benchmarks.servers.s3 import S3Server
from sluice.console.lake.sql_store import load_extension, open_stores
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.old_spark import fill_old_field

PAGE = Path(__file__).parents[3] / "docs" / "readers.md"
READS, REFUSES, MISREADS = "reads", "refuses", "**misreads**"
Rows = list[tuple[Any, ...]]
Tables = dict[str, tuple[str, Rows]]  # Feature → (path, the rows that Spark reads).
WIDEN = "ALTER TABLE {} ALTER COLUMN amount TYPE BIGINT"
RENAME = "ALTER TABLE {} RENAME COLUMN note TO remark"
DELETE = "DELETE FROM {} WHERE id % 4 = 0"


@dataclasses.dataclass(frozen=True)
class Feature:
    """A kind of table: how it is created, and what is done with it afterwards."""

    properties: str = "'delta.enableDeletionVectors' = 'false'"
    partitions: str = ""
    statements: tuple[str, ...] = ()


VECTORS = "'delta.enableDeletionVectors' = 'true'"
MAPPING = "'delta.columnMapping.mode' = 'name'"
FEATURES = {
    "no feature": Feature(),
    "deletion vectors": Feature(VECTORS, statements=(DELETE,)),
    "column mapping": Feature(f"{MAPPING}, {Feature.properties}", statements=(RENAME,)),
    "type widening": Feature(f"'delta.enableTypeWidening' = 'true', {Feature.properties}", statements=(WIDEN,)),
    "partitions": Feature(partitions="PARTITIONED BY (day)"),
    "deletion vectors, column mapping": Feature(f"{MAPPING}, {VECTORS}", statements=(RENAME, DELETE)),
    "deletion vectors, column mapping, partitions": Feature(
        f"{MAPPING}, {VECTORS}", "PARTITIONED BY (day)", (RENAME, DELETE)
    ),
}


def by_duckdb(path: str) -> Rows:
    connection = duckdb.connect()
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    connection.execute(f"LOAD '{extension}'")
    return connection.sql(f"SELECT * FROM delta_scan('{path}')").fetchall()


def by_query_builder(path: str) -> Rows:
    builder = deltalake.QueryBuilder().register("asked", deltalake.DeltaTable(path))
    table: Any = pa.table(builder.execute("SELECT * FROM asked").read_all())
    return [tuple(row.values()) for row in table.to_pylist()]


def by_dataset(path: str) -> Rows:
    return [tuple(row.values()) for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()]


def by_duckdb_in_s3(path: str, request: pytest.FixtureRequest) -> Rows:
    store: S3Server = request.getfixturevalue("s3_store")
    connection = duckdb.connect()
    load_extension(connection, "delta")
    open_stores(connection, [path], store.options)
    return connection.sql(f"SELECT * FROM delta_scan('{path.replace('s3a://', 's3://')}')").fetchall()


def by_spark35_in_s3(path: str, request: pytest.FixtureRequest) -> Rows:
    """Reads with a server without Sluice, by the URL in the store."""
    session: SparkSession = request.getfixturevalue("old_session")
    return [tuple(row) for row in session.sql(f"SELECT * FROM delta.`{path}`").collect()]


READERS_IN_S3: dict[str, Callable[[str, pytest.FixtureRequest], Rows]] = {
    "DuckDB in S3": by_duckdb_in_s3,
    "Spark 3.5 in S3": by_spark35_in_s3,
}
READERS: dict[str, Callable[[str], Rows]] = {
    "DuckDB": by_duckdb,
    "deltalake QueryBuilder": by_query_builder,
    "deltalake pyarrow": by_dataset,
    "Polars": lambda path: pl.scan_delta(path).collect().rows(),
}


def matrix() -> dict[tuple[str, str], str]:
    """Returns (feature, reader) → result, as the page has it. Spark's column is left out, because Spark is the reference."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    readers = (*READERS, *READERS_IN_S3)
    return {(row[0], reader): row[head.index(reader)] for row in rows for reader in readers if row[0] in FEATURES}


@pytest.fixture(scope="module")
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark_server.url).create()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def tables(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return make_tables(session, str(tmp_path_factory.mktemp("readers")))


@pytest.fixture(scope="module")
def tables_in_s3(session: SparkSession, s3_store: S3Server) -> Tables:
    return make_tables(session, f"s3a://{s3_store.bucket}/{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="module")
def old_session(spark35_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark35_server.url).create()
    fill_old_field(made.client)
    yield made
    made.stop()


def make_tables(session: SparkSession, root: str) -> Tables:
    made: Tables = {}
    for name, feature in FEATURES.items():
        path = "/".join((root, re.sub(r"\W+", "-", name)))
        table = f"delta.`{path}`"
        session.sql(
            f"CREATE TABLE {table} (id BIGINT, day DATE, amount INT, note STRING) USING delta"
            f" {feature.partitions} TBLPROPERTIES ({feature.properties})"
        )
        session.sql(
            f"INSERT INTO {table} SELECT id, date_add(date'2026-01-01', CAST(id % 3 AS INT)), CAST(id AS INT), 'n' || id"
            " FROM range(0, 20, 1, 1)"
        ).collect()
        for statement in feature.statements:
            session.sql(statement.format(table)).collect()
        made[name] = path, sorted(tuple(row) for row in session.sql(f"SELECT * FROM {table}").collect())
    return made


def test_the_page_has_every_reader_and_feature() -> None:
    assert set(matrix()) == {(feature, reader) for feature in FEATURES for reader in (*READERS, *READERS_IN_S3)}


@pytest.mark.spark
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_reader_does_what_the_page_says(tables: Tables, feature: str, reader: str) -> None:
    path, wanted = tables[feature]
    assert judged(lambda: READERS[reader](path), wanted) == matrix()[feature, reader]


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.store
@pytest.mark.spark_version
@pytest.mark.parametrize("reader", READERS_IN_S3)
@pytest.mark.parametrize("feature", FEATURES)
def test_store_a_reader_of_a_lake_in_s3_does_what_the_page_says(
    tables_in_s3: Tables, feature: str, reader: str, request: pytest.FixtureRequest
) -> None:
    path, wanted = tables_in_s3[feature]
    assert judged(lambda: READERS_IN_S3[reader](path, request), wanted) == matrix()[feature, reader]


def judged(read: Callable[[], Rows], wanted: Rows) -> str:
    """Returns the page's word for what a reader does."""
    assert wanted
    try:
        rows = read()
    except Exception:  # Each reader has its own errors.
        return REFUSES
    return READS if sorted(rows, key=repr) == sorted(wanted, key=repr) else MISREADS


def test_no_default_makes_a_table_that_a_reader_of_ours_cannot_read() -> None:
    """Defaults use deletion vectors and, once a column is rewritten, column mapping; Sluice itself reads by these two and Spark."""
    ours = {matrix()["deletion vectors, column mapping", reader] for reader in ("DuckDB", "deltalake QueryBuilder")}
    assert ours == {READS}
