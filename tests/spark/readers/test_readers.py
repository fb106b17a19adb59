"""Tests each reader on each feature of Delta, in a folder and in each kind of store, compared with Spark. docs/readers.md shows the same
table.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.object_stores.folder import StoreFolder
from tests.spark.readers.locations import STORES, Location, located
from tests.spark.readers.readers import READERS, SPARK35, Reader, Rows

PAGE = Path(__file__).parents[3] / "docs" / "readers.md"
READS, REFUSES, MISREADS = "reads", "refuses", "**misreads**"
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

# A reader's code for a feature does not depend on the store. So in stores, these tables are enough: they have each kind of file.
FEATURES_IN_STORES = ("no feature", "deletion vectors, column mapping", "deletion vectors, column mapping, partitions")


def matrix() -> dict[tuple[str, str], str]:
    """Returns (feature, reader) → result, as the page has it. Spark's column is left out, because Spark is the reference."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    readers = (*READERS, SPARK35)
    return {(row[0], reader): row[head.index(reader)] for row in rows for reader in readers if row[0] in FEATURES}


@pytest.fixture(scope="module")
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark_server.url).create()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


@pytest.fixture(scope="module")
def tables(session: SparkSession, folder: Path) -> Tables:
    """Returns a table for each feature. Their paths are below the folder."""
    made: Tables = {}
    for name, feature in FEATURES.items():
        path = re.sub(r"\W+", "-", name)
        table = f"delta.`{folder / path}`"
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


@pytest.fixture(scope="module")
def in_store(request: pytest.FixtureRequest, tables: Tables, folder: Path) -> Iterator[Callable[[str], Location]]:
    """Returns a function that returns the location of all tables in a kind of store. Their files are uploaded at its first call."""
    found: dict[str, Location] = {}

    def get(store: str) -> Location:
        if store not in found:
            found[store] = located(request, store)
            StoreFolder(found[store].root, found[store].options).put(folder)
        return found[store]

    assert tables
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # The S3 server refuses checksums of parts.
        yield get


def test_the_page_has_every_reader_and_feature() -> None:
    assert set(matrix()) == {(feature, reader) for feature in FEATURES for reader in (*READERS, SPARK35)}


@pytest.mark.spark
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_reader_does_what_the_page_says(tables: Tables, folder: Path, feature: str, reader: str) -> None:
    path, wanted = tables[feature]
    assert judged(lambda: READERS[reader](Location(str(folder)), path), wanted) == matrix()[feature, reader]


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.spark_version
@pytest.mark.parametrize("feature", FEATURES)
def test_spark_35_does_what_the_page_says(
    tables: Tables, folder: Path, readers: Mapping[str, Reader], feature: str
) -> None:
    path, wanted = tables[feature]
    assert judged(lambda: readers[SPARK35](Location(str(folder)), path), wanted) == matrix()[feature, SPARK35]


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.store
@pytest.mark.spark_version
@pytest.mark.parametrize("reader", [*READERS, SPARK35])
@pytest.mark.parametrize("store", STORES)
def test_store_a_reader_of_a_lake_in_a_store_does_what_the_page_says(
    tables: Tables, in_store: Callable[[str], Location], readers: Mapping[str, Reader], store: str, reader: str
) -> None:
    there = in_store(store)
    for feature in FEATURES_IN_STORES:
        path, wanted = tables[feature]
        found = judged(functools.partial(readers[reader], there, path), wanted)
        assert found == matrix()[feature, reader], feature


def judged(read: Callable[[], Rows], wanted: Rows) -> str:
    """Returns whether a reader reads, refuses or misreads a table, in the form that docs/readers.md uses."""
    assert wanted
    try:
        rows = read()
    except Exception:  # Each reader has its own errors.
        return REFUSES
    return READS if sorted(rows, key=repr) == sorted(wanted, key=repr) else MISREADS


def test_no_default_makes_a_table_that_a_reader_of_ours_cannot_read() -> None:
    """With default settings, a table has deletion vectors, and may get column mapping when a column is rewritten. Sluice itself reads
    tables with these two readers and with Spark.
    """
    ours = {matrix()["deletion vectors, column mapping", reader] for reader in ("DuckDB", "deltalake QueryBuilder")}
    assert ours == {READS}
