"""What reads a table of the lake: each reader on each feature of Delta, held against Spark; docs/readers.md shows the same table."""

from __future__ import annotations

import dataclasses
import re
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

from sluice.console.toolchain.spark.server import SparkConnectServer

PAGE = Path(__file__).parents[3] / "docs" / "readers.md"
READS, REFUSES, MISREADS = "reads", "refuses", "**misreads**"
Rows = list[tuple[Any, ...]]
WIDEN = "ALTER TABLE {} ALTER COLUMN amount TYPE BIGINT"
RENAME = "ALTER TABLE {} RENAME COLUMN note TO remark"
DELETE = "DELETE FROM {} WHERE id % 4 = 0"


@dataclasses.dataclass(frozen=True)
class Feature:
    """A kind of table: how it is made, and what becomes of it afterwards."""

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


READERS: dict[str, Callable[[str], Rows]] = {
    "DuckDB": by_duckdb,
    "deltalake QueryBuilder": by_query_builder,
    "deltalake pyarrow": by_dataset,
    "Polars": lambda path: pl.scan_delta(path).collect().rows(),
}


def matrix() -> dict[tuple[str, str], str]:
    """(feature, reader) → word, as the page has it; Spark's column, which is the measure, is left out."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {(row[0], reader): row[head.index(reader)] for row in rows for reader in READERS if row[0] in FEATURES}


@pytest.fixture(scope="module")
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark_server.url).create()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def tables(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Rows]]:
    """Feature → (path, the rows that Spark reads)."""
    made: dict[str, tuple[str, Rows]] = {}
    for name, feature in FEATURES.items():
        path = str(tmp_path_factory.mktemp("readers") / re.sub(r"\W+", "-", name))
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
    assert set(matrix()) == {(feature, reader) for feature in FEATURES for reader in READERS}


@pytest.mark.spark
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_reader_does_what_the_page_says(tables: dict[str, tuple[str, Rows]], feature: str, reader: str) -> None:
    path, wanted = tables[feature]
    assert wanted
    try:
        rows = READERS[reader](path)
    except Exception:  # each reader has errors of its own
        found = REFUSES
    else:
        found = READS if sorted(rows, key=repr) == sorted(wanted, key=repr) else MISREADS
    assert found == matrix()[feature, reader]


def test_no_default_makes_a_table_that_a_reader_of_ours_cannot_read() -> None:
    """Defaults use deletion vectors and, once a column is rewritten, column mapping; Sluice itself reads by these two and Spark."""
    ours = {matrix()["deletion vectors, column mapping", reader] for reader in ("DuckDB", "deltalake QueryBuilder")}
    assert ours == {READS}
