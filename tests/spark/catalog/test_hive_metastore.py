"""Tests a real Hive metastore: a Spark without Sluice finds the tables by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from benchmarks.servers.hive_metastore import HiveMetastore
from benchmarks.servers.other_spark import SPARK35
from benchmarks.servers.s3 import S3Server
from sluice.cdc_engine.config.sluice import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake.register import register as lake_register
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.orchestration.run.catalog.registration import register_after_run, register_tables
from sluice.spark_jobs.catalog import COMMENT_MAX
from sluice.spark_jobs.object_store import spark_environment, spark_settings
from sluice.spark_jobs.session import SparkSettings, open_sessions
from tests.spark.catalog.test_catalog_changes import config_of
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, Changes, Image, Schema

pytestmark = [pytest.mark.catalog, pytest.mark.spark, pytest.mark.servers]
KEYED = Schema({"id": "bigint", "name": "string"}, key=("id",))


@dataclasses.dataclass(frozen=True)
class Sparks:
    """The Spark of the runs, and a Spark of somebody else. Both use the same metastore."""

    ours: SparkConnectServer
    others: SparkConnectServer
    metastore: HiveMetastore

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Returns the rows that the other Spark reads."""
        return rows_of(self.others, statement)

    def act(self, *statements: str) -> None:
        with open_sessions(SparkSettings(remote=self.others.url), 1) as (session,):
            for statement in statements:
                session.spark.sql(statement)


def rows_of(server: SparkConnectServer, statement: str) -> list[tuple[Any, ...]]:
    with open_sessions(SparkSettings(remote=server.url), 1) as (session,):
        return sorted(tuple(row) for row in session.spark.sql(statement).collect())


@pytest.fixture(scope="module")
def sparks(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Sparks]:
    folder = tmp_path_factory.mktemp("catalog")
    metastore = HiveMetastore(folder / "metastore").start()
    settings = ServerSettings(more=metastore.spark_settings)
    ours = SparkConnectServer(None, folder / "ours", memory="1g", settings=settings, extras=("s3",))
    ours.add_settings(spark_settings("s3", s3_server.options), spark_environment("s3", s3_server.options))
    others = SparkConnectServer(None, folder / "others", memory="1g", settings=settings)
    servers = [ours, others]
    try:
        for server in servers:
            server.start()
        yield Sparks(ours, others, metastore)
    finally:
        for server in servers:
            server.stop()
        metastore.kill()


@pytest.fixture(scope="module")
def spark35(
    sparks: Sparks, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server
) -> Iterator[SparkConnectServer]:
    """Starts a Spark 3.5 of somebody else with the same metastore."""
    server = SPARK35.server(tmp_path_factory.mktemp("spark35"), more=sparks.metastore.spark_settings)
    server.add_settings(spark_settings("s3", s3_server.options), spark_environment("s3", s3_server.options))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.mark.store
@pytest.mark.spark_version
def test_a_foreign_spark_35_reads_tables_and_views_of_a_lake_in_s3_by_name(
    tmp_path: Path, sparks: Sparks, spark35: SparkConnectServer, s3_store: S3Server
) -> None:
    lake = Lake(tmp_path, SparkSettings(remote=sparks.ours.url), way="spark", storage_options=s3_store.options)
    config = with_views(lake_of(tmp_path, sparks)).model_copy(
        update={"lake": f"s3://{s3_store.bucket}/{tmp_path.name}", "storage_options": s3_store.options}
    )
    names = {"shop.orders": "hard", "shop.items": "soft"}
    for name, deletes in names.items():
        given = {"path": config.table_path("east", *name.split(".")), "deletes": deletes}
        lake.merge(
            {name: [Changes(KEYED, [Image(INSERT, 10 + key, {"id": key, "name": "x"}) for key in range(3)])]}, **given
        )
        lake.merge({name: [Changes(KEYED, [Image(DELETE, 21, {"id": 1, "name": "x"})])]}, **given)
    LakeTables(config.destination_dir("east")).keep(dict.fromkeys(names, ("id", 1)))
    schema = f"{tmp_path.name}_shop".lower()
    assert register_tables(config, "east").failed == {}
    assert rows_of(spark35, f"SELECT id, name FROM {schema}.orders") == [(0, "x"), (2, "x")]
    assert rows_of(spark35, f"SELECT id, _sluice_deleted FROM {schema}.items") == [(0, False), (1, True), (2, False)]
    for name in ("orders_v", "items_v"):
        assert rows_of(spark35, f"SELECT * FROM {schema}.{name}") == [(0, "x"), (2, "x")], name


def lake_of(root: Path, sparks: Sparks, *names: str) -> SluiceConfig:
    """Writes Delta tables with one row each, as a run would leave them, and returns the configuration of their lake."""
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
    assert sparks.query(f"SELECT id FROM {schema}.orders") == [(1,)]
    assert sparks.query(f"SELECT id FROM {schema}.items") == [(1,)]
    path = config.table_path("east", "shop", "orders")
    assert deltalake.DeltaTable(path).version() == 0
    added = pa.table({"id": [2], "note": ["new column"]})
    deltalake.write_deltalake(path, added, mode="append", schema_mode="merge")
    assert sparks.query(f"SELECT id, coalesce(note, '') FROM {schema}.orders") == [(1, ""), (2, "new column")]


def test_a_table_that_is_gone_from_the_lake_is_gone_from_the_catalog_and_its_files_stay(
    tmp_path: Path, sparks: Sparks
) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders", "shop.items"), f"{tmp_path.name}_shop".lower()
    register_tables(config, "east")
    LakeTables(config.destination_dir("east")).forget("shop.items")
    register_tables(config, "east")
    assert [row[1] for row in sparks.query(f"SHOW TABLES IN {schema}")] == ["orders"]
    assert deltalake.DeltaTable(config.table_path("east", "shop", "items")).version() == 0


def test_a_table_of_another_owner_keeps_its_name_and_the_advice_ends_in_a_registered_table(
    tmp_path: Path, sparks: Sparks
) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders", "shop.no name"), f"{tmp_path.name}_shop".lower()
    sparks.act(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.orders USING DELTA AS SELECT 7 AS theirs")
    record = register_tables(config, "east")
    assert sparks.query(f"SELECT * FROM {schema}.orders") == [(7,)]
    assert "remove that table from the catalog" in record.failed["spark_catalog", schema, "orders"]
    assert "valid name" in record.failed["spark_catalog", schema, "no name"]
    sparks.act(f"DROP TABLE {schema}.orders")
    again = lake_register(config, "east")
    assert sparks.query(f"SELECT * FROM {schema}.orders") == [(1,)]
    assert [name[2] for name in again.failed] == ["no name"]


def test_register_repairs_what_others_removed_and_makes_no_table_where_none_is(tmp_path: Path, sparks: Sparks) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders"), f"{tmp_path.name}_shop".lower()
    LakeTables(config.destination_dir("east")).keep({"shop.lost": ("id", 0)})
    record = register_tables(config, "east")
    assert "no Delta table exists" in record.failed["spark_catalog", schema, "lost"]
    assert not Path(config.table_path("east", "shop", "lost")).exists()
    sparks.act(f"DROP TABLE {schema}.orders")
    register_tables(config, "east")
    assert sparks.query(f"SHOW TABLES IN {schema}") == [], "a run looks at its own record"
    lake_register(config, "east")
    assert sparks.query(f"SELECT id FROM {schema}.orders") == [(1,)]


def with_views(config: SluiceConfig, views: str | None = "{table}_v") -> SluiceConfig:
    return config.model_copy(update={"catalog": config.catalog and config.catalog.model_copy(update={"views": views})})


def test_views_have_the_columns_of_the_source_and_rows_that_exist_now(tmp_path: Path, sparks: Sparks) -> None:
    config, schema = with_views(lake_of(tmp_path, sparks, "shop.orders")), f"{tmp_path.name}_shop".lower()
    path = config.table_path("east", "shop", "orders")
    rows = pa.table({"id": [1, 2, 3], "_sluice_order_key": [5, 6, 7], "_sluice_deleted": [None, False, True]})
    deltalake.write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    versions = pa.table(
        {"id": [1, 1], "valid_from": [5, 6], "is_current": [False, True], "_sluice_to_order_key": [6, 0]}
    )
    config = config.model_copy(
        update={"destinations": config_of(tmp_path, tables={"shop.orders": {"history": True}}).destinations}
    )
    deltalake.write_deltalake(f"{path}__history", versions)
    LakeTables(config.destination_dir("east")).keep_side_table("shop.orders", "history", ("h", 0))
    comments = {"shop.orders": {"": "what was sold", "id": "it's the key", "note": "long " * 200}}
    write_tables(config.destination_dir("east"), (), comments=comments)
    columns = (("id", "bigint"), ("_sluice_order_key", "bigint"), ("_sluice_deleted", "boolean"))
    assert register_tables(config, "east", written={path: columns}).failed == {}
    assert sparks.query(f"SELECT * FROM {schema}.orders_v") == [(1,), (2,)]
    assert sparks.query(f"SELECT * FROM {schema}.orders__history_v") == [(1, 6, True)]

    away = config.model_copy(update={"spark": config.spark.model_copy(update={"remote": "sc://127.0.0.1:1"})})
    register_tables(away, "east", written={path: columns})  # This would raise if it called Spark.

    deltalake.write_deltalake(path, pa.table({"id": [4], "note": ["new"]}), mode="append", schema_mode="merge")
    with_note = (*columns, ("note", "string"))
    assert register_tables(config, "east", written={path: with_note}).failed == {}
    assert (4, "new") in sparks.query(f"SELECT * FROM {schema}.orders_v")
    described = {row[0]: row for row in sparks.query(f"DESCRIBE TABLE EXTENDED {schema}.orders_v")}
    assert described["id"][2] == "it's the key"
    assert described["Comment"][1] == "what was sold"
    assert described["note"][2] == ("long " * 200)[:COMMENT_MAX]
    register_tables(away, "east", written={path: with_note})

    assert register_tables(with_views(config, None), "east").failed == {}
    assert [row[1] for row in sparks.query(f"SHOW TABLES IN {schema}")] == ["orders", "orders__history"]
    assert deltalake.DeltaTable(path).version() == 2, "views commit nothing"


def test_a_view_of_another_owner_keeps_its_name_and_a_view_follows_its_table(tmp_path: Path, sparks: Sparks) -> None:
    config, schema = (
        with_views(lake_of(tmp_path, sparks, "shop.orders", "shop.tokens")),
        f"{tmp_path.name}_shop".lower(),
    )
    sparks.act(f"CREATE SCHEMA {schema}", f"CREATE VIEW {schema}.orders_v AS SELECT 7 AS theirs")
    sparks.act(f"CREATE TABLE {schema}.tokens USING DELTA AS SELECT 7 AS theirs")
    record = register_tables(config, "east")
    assert "another table or view" in record.failed["spark_catalog", schema, "orders_v"]
    why = record.failed["spark_catalog", schema, "tokens_v"]
    assert "the view cannot be created, because the catalog has" in why, "it would show rows of others"
    assert sparks.query(f"SELECT * FROM {schema}.orders_v") == [(7,)]
    sparks.act(f"DROP VIEW {schema}.orders_v", f"DROP TABLE {schema}.tokens")
    assert lake_register(config, "east").failed == {}
    assert sparks.query(f"SELECT id FROM {schema}.orders_v") == [(1,)]
    sparks.act(f"CREATE OR REPLACE VIEW {schema}.orders_v AS SELECT 8 AS theirs")
    LakeTables(config.destination_dir("east")).forget("shop.orders")
    LakeTables(config.destination_dir("east")).forget("shop.tokens")
    register_tables(config, "east")
    left = [row[1] for row in sparks.query(f"SHOW TABLES IN {schema}")]
    assert left == ["orders_v"], "it is theirs now; Spark shows no property with the name of the other one"


def test_a_table_at_another_path_takes_its_name_along(tmp_path: Path, sparks: Sparks) -> None:
    config, schema = lake_of(tmp_path, sparks, "shop.orders"), f"{tmp_path.name}_shop".lower()
    register_tables(config, "east")
    moved = config.model_copy(update={"lake": f"{tmp_path}/second"})
    deltalake.write_deltalake(moved.table_path("east", "shop", "orders"), pa.table({"id": [2]}))
    register_tables(moved, "east")
    assert sparks.query(f"SELECT id FROM {schema}.orders") == [(2,)]
