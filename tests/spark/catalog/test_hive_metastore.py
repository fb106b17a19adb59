"""A real Hive metastore: a Spark that knows nothing of Sluice finds the tables by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from benchmarks.servers.hive_metastore import HiveMetastore
from sluice.cdc_engine.config.sluice import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.console.lake.register import register as lake_register
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.orchestration.run.catalog.registration import register_after_run, register_tables
from sluice.spark_jobs.session import SparkSettings, open_sessions
from tests.spark.catalog.test_catalog_changes import config_of

pytestmark = [pytest.mark.catalog, pytest.mark.spark, pytest.mark.servers]


@dataclasses.dataclass(frozen=True)
class Sparks:
    """The Spark of the runs, and one of somebody else; both use the same metastore."""

    ours: SparkConnectServer
    others: SparkConnectServer

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Returns the rows that the other Spark reads."""
        with open_sessions(SparkSettings(remote=self.others.url), 1) as (session,):
            return sorted(tuple(row) for row in session.spark.sql(statement).collect())

    def act(self, *statements: str) -> None:
        with open_sessions(SparkSettings(remote=self.others.url), 1) as (session,):
            for statement in statements:
                session.spark.sql(statement)


@pytest.fixture(scope="module")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparks]:
    folder = tmp_path_factory.mktemp("catalog")
    metastore = HiveMetastore(folder / "metastore").start()
    settings = ServerSettings(more=metastore.spark_settings)
    servers = [SparkConnectServer(None, folder / name, memory="1g", settings=settings) for name in ("ours", "others")]
    try:
        for server in servers:
            server.start()
        yield Sparks(*servers)
    finally:
        for server in servers:
            server.stop()
        metastore.kill()


def lake_of(root: Path, sparks: Sparks, *names: str) -> SluiceConfig:
    """Writes Delta tables with one row each, as a run would leave them."""
    config = config_of(root)
    spark = config.spark.model_copy(update={"remote": sparks.ours.url})
    catalog = config.catalog and config.catalog.model_copy(
        update={"name": "spark_catalog", "schema_": f"{root.name}_{{database}}"}
    )
    for name in names:
        deltalake.write_deltalake(config.table_path("east", *name.split(".")), pa.table({"id": [1]}))
    LakeTables(config.destination_dir("east")).keep(dict.fromkeys(names, ("id", 0)))
    return config.model_copy(update={"spark": spark, "catalog": catalog})


def test_tables_are_found_by_name_in_their_newest_version_and_nothing_is_written_to_them(
    tmp_path: Path, sparks: Sparks
) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders", "shop.Items"), f"{tmp_path.name}_shop".lower()
    register_after_run(config, "east")
    assert sparks.ask(f"SELECT id FROM {schema}.orders") == [(1,)]
    assert sparks.ask(f"SELECT id FROM {schema}.items") == [(1,)]
    path = config.table_path("east", "shop", "orders")
    assert deltalake.DeltaTable(path).version() == 0
    added = pa.table({"id": [2], "note": ["new column"]})
    deltalake.write_deltalake(path, added, mode="append", schema_mode="merge")
    assert sparks.ask(f"SELECT id, coalesce(note, '') FROM {schema}.orders") == [(1, ""), (2, "new column")]


def test_a_table_that_is_gone_from_the_lake_is_gone_from_the_catalog_and_its_files_stay(
    tmp_path: Path, sparks: Sparks
) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders", "shop.items"), f"{tmp_path.name}_shop".lower()
    register_tables(config, "east")
    LakeTables(config.destination_dir("east")).forget("shop.items")
    register_tables(config, "east")
    assert [row[1] for row in sparks.ask(f"SHOW TABLES IN {schema}")] == ["orders"]
    assert deltalake.DeltaTable(config.table_path("east", "shop", "items")).version() == 0


def test_a_table_of_another_owner_keeps_its_name_and_the_advice_ends_in_a_registered_table(
    tmp_path: Path, sparks: Sparks
) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders", "shop.no name"), f"{tmp_path.name}_shop".lower()
    sparks.act(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.orders USING DELTA AS SELECT 7 AS theirs")
    record = register_tables(config, "east")
    assert sparks.ask(f"SELECT * FROM {schema}.orders") == [(7,)]
    assert "remove it there" in record.failed["spark_catalog", schema, "orders"]
    assert "valid name" in record.failed["spark_catalog", schema, "no name"]
    sparks.act(f"DROP TABLE {schema}.orders")
    again = lake_register(config, "east")
    assert sparks.ask(f"SELECT * FROM {schema}.orders") == [(1,)]
    assert [name[2] for name in again.failed] == ["no name"]


def test_register_repairs_what_others_removed_and_makes_no_table_where_none_is(tmp_path: Path, sparks: Sparks) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders"), f"{tmp_path.name}_shop".lower()
    LakeTables(config.destination_dir("east")).keep({"shop.lost": ("id", 0)})
    record = register_tables(config, "east")
    assert "there is no Delta table" in record.failed["spark_catalog", schema, "lost"]
    assert not Path(config.table_path("east", "shop", "lost")).exists()
    sparks.act(f"DROP TABLE {schema}.orders")
    register_tables(config, "east")
    assert sparks.ask(f"SHOW TABLES IN {schema}") == [], "a run looks at its own record"
    lake_register(config, "east")
    assert sparks.ask(f"SELECT id FROM {schema}.orders") == [(1,)]


def test_a_table_at_another_path_takes_its_name_along(tmp_path: Path, sparks: Sparks) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders"), f"{tmp_path.name}_shop".lower()
    register_tables(config, "east")
    moved = config.model_copy(update={"lake": f"{tmp_path}/second"})
    deltalake.write_deltalake(moved.table_path("east", "shop", "orders"), pa.table({"id": [2]}))
    register_tables(moved, "east")
    assert sparks.ask(f"SELECT id FROM {schema}.orders") == [(2,)]
