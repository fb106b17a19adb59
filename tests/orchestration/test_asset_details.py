"""Tests what an asset shows in addition to its runs: owners, group, freshness, columns with their origin, and its quarantine."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest
from pydantic import ValidationError

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, TableConfig
from sluice.cdc_engine.config.rows import TransformConfig
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.table_meta.table_list import writing
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.orchestration.base import table_catalog
from sluice.orchestration.base.table_catalog import (
    DELETED_COLUMN,
    OWN_COLUMNS,
    DefinedColumns,
    SourceColumns,
    delta_key,
    engine_key,
    source_key,
)
from sluice.orchestration.checks.stopped import QUARANTINE_CHECK, quarantine_evaluation
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.merge_reports import MergeReports, reported_tables
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.tables.delta_table import wanted_columns
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

ORDERS, ITEMS = "shop.orders", "shop.items"


def described(root: Path, **given: Any) -> SluiceConfig:
    """Returns the usual conf/ with more settings of the destination."""
    config = make_config(root)
    shop = config.destinations["shop"].model_copy(update=given)
    write_tables(config.destination_dir("shop"))
    return config.model_copy(update={"destinations": {"shop": shop}})


def graph_of(config: SluiceConfig) -> Any:
    return build_definitions(config, make_fake_ports(config).ports()).resolve_asset_graph()


def test_assets_have_the_owners_the_group_and_the_freshness_that_conf_names(tmp_path: Path) -> None:
    own = TableConfig(owners=("ann@example.org",), group="sales", fresh_within_minutes=30)
    found = graph_of(described(tmp_path, owners=("team:data",), group="raw", tables={ORDERS: own}))
    orders, items = found.get(delta_key("shop", ORDERS)), found.get(delta_key("shop", ITEMS))
    assert (list(orders.owners), orders.group_name) == (["ann@example.org"], "sales")
    assert (list(items.owners), items.group_name) == (["team:data"], "raw")
    source, engine = found.get(source_key("shop", ORDERS)), found.get(engine_key("shop"))
    assert (list(source.owners), source.group_name) == (["ann@example.org"], "sales_source")
    assert (list(engine.owners), engine.group_name) == (["team:data"], "raw")
    assert orders.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(minutes=30))
    assert items.freshness_policy is None, "a table that rarely changes is fresh without a change"


def test_without_a_setting_the_group_is_the_destination_and_there_is_no_owner(tmp_path: Path) -> None:
    orders = graph_of(described(tmp_path)).get(delta_key("shop", ORDERS))
    assert (list(orders.owners), orders.group_name) == ([], "shop")


@pytest.mark.parametrize("words", [{"owners": ("ann",)}, {"owners": ("team:",)}, {"group": "a b"}, {"group": "a/b"}])
def test_what_dagster_would_refuse_is_refused_in_conf(words: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TableConfig(**words)
    with pytest.raises(ValidationError):
        DestinationConfig(name="shop", source=SourceConfig(user="sluice"), **words)


def test_columns_of_the_lake_say_which_of_the_source_they_are(tmp_path: Path) -> None:
    config = described(tmp_path)
    sources = SourceColumns(config, "shop")
    reported = sources.metadata(ORDERS, (("id", "bigint"), ("gone", "string"), ("_sluice_order_key", "bigint")))
    schema, lineage = reported["dagster/column_schema"].value, reported["dagster/column_lineage"].value
    assert [column.name for column in schema.columns] == ["id", "gone", "_sluice_order_key"]
    (origin,) = lineage.deps_by_column.pop("id")
    assert (origin.asset_key, origin.column_name) == (source_key("shop", ORDERS), "id")
    assert not lineage.deps_by_column, "the source has no more of them"
    assert set(sources.metadata("shop.new", (("id", "bigint"),))) == {"dagster/column_schema"}
    write_tables(config.destination_dir("shop"), ("shop.new",))
    assert "dagster/column_lineage" in sources.metadata("shop.new", (("id", "bigint"),)), "looked up anew"


@pytest.mark.seeds
def test_the_lineage_of_a_column_that_a_transform_writes_is_what_it_reads(tmp_path: Path) -> None:
    written = TransformConfig(function="rows:f", reads=("ID", "total"), writes=("Status", "size"))
    sources = SourceColumns(described(tmp_path, tables={ORDERS: TableConfig(transform=written)}), "shop")
    columns = (("id", "bigint"), ("status", "int"), ("size", "int"), ("_sluice_order_key", "bigint"))
    reported = sources.metadata(ORDERS, columns)
    lineage = reported["dagster/column_lineage"].value.deps_by_column
    assert {name: [each.column_name for each in deps] for name, deps in lineage.items()} == {
        "id": ["id"],
        "status": ["id"],
        "size": ["id"],
    }
    described_columns = {each.name: each.description for each in reported["dagster/column_schema"].value.columns}
    assert described_columns["size"] == described_columns["status"] == "written by rows:f from ID, total"
    assert described_columns["_sluice_order_key"] is None


@pytest.mark.found
def test_comments_of_the_source_describe_assets_and_columns(tmp_path: Path) -> None:
    """Defect 30: the assets and their columns had no comments of the source."""
    config = described(tmp_path)
    directory = config.destination_dir("shop")
    comments = {ORDERS: {"": "what was sold", "id": "the order's number"}}
    writing.write_tables(directory, read_tables(directory), comments=comments)
    graph = graph_of(config)
    lake, source = graph.get(delta_key("shop", ORDERS)), graph.get(source_key("shop", ORDERS))
    assert str(lake.description).startswith("what was sold\n\nThe rows of shop.orders")
    assert str(source.description).startswith("what was sold\n\nThe table shop.orders")
    assert source.metadata["dagster/column_schema"].columns[0].description == "the order's number"
    plain = graph.get(source_key("shop", ITEMS))
    assert str(plain.description).startswith("The table shop.items")
    assert plain.metadata["dagster/column_schema"].columns[0].description is None
    sources = SourceColumns(config, "shop")
    columns = sources.metadata(ORDERS, (("id", "bigint"), ("gone", "string")))["dagster/column_schema"].value.columns
    assert [column.description for column in columns] == ["the order's number (bigint unsigned)", None]
    (plain_column,) = sources.metadata(ITEMS, (("id", "bigint"),))["dagster/column_schema"].value.columns
    assert plain_column.description == "bigint unsigned"


def test_a_table_whose_values_go_to_quarantine_has_a_check_that_counts_them(tmp_path: Path) -> None:
    config = described(tmp_path, tables={ORDERS: TableConfig(undecodable="quarantine")})
    graph = graph_of(config)
    assert graph.get_check_spec(dg.AssetCheckKey(delta_key("shop", ORDERS), QUARANTINE_CHECK))
    assert dg.AssetCheckKey(delta_key("shop", ITEMS), QUARANTINE_CHECK) not in graph.asset_check_keys
    assert quarantine_evaluation(config, "shop", ORDERS).passed, "nothing was ever put there"
    rows = [("shop", "orders", "note"), ("shop", "orders", "note"), ("shop", "items", "x")]
    names = ("database", "table", "column")
    there = pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
    deltalake.write_deltalake(config.quarantine_path("shop"), there)
    found = quarantine_evaluation(config, "shop", ORDERS)
    assert not found.passed
    assert found.metadata["quarantined_values"].value == 2
    assert "note (2)" in str(found.description)
    assert "sluice quarantine replay shop" in str(found.description)


def test_a_quarantine_that_cannot_be_read_fails_its_check_and_no_run_that_has_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = described(tmp_path, tables={ORDERS: TableConfig(undecodable="quarantine")})
    config = config.model_copy(update={"storage_options": {"aws_secret_access_key": "$KEY_OF_THE_LAKE"}})
    monkeypatch.setenv("KEY_OF_THE_LAKE", "not to be shown")

    def unreadable(path: str, table: str, options: dict[str, str]) -> dict[str, int]:
        raise TableError(table, f"{path} cannot be read with {options}", own=False)

    monkeypatch.setattr("sluice.spark_jobs.quarantine.count.quarantined_by_column", unreadable)
    with pytest.raises(dg.Failure, match=r"cannot be read with \{'aws_secret_access_key': '\*\*\*'\}"):
        quarantine_evaluation(config, "shop", ORDERS)
    with dg.build_op_context() as context:
        MergeReports(context, reported_tables(config, "shop", ())).quarantine(ORDERS)


def test_the_lineage_of_a_materialization_has_a_limited_number_of_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = SourceColumns(described(tmp_path), "shop")
    columns = [("added", "int"), ("id", "bigint")]
    assert "dagster/column_lineage" in reported.metadata(ORDERS, columns)
    monkeypatch.setattr(table_catalog, "LINEAGE_COLUMNS_MAX", 1)
    assert "dagster/column_lineage" not in reported.metadata(ORDERS, columns)


TYPED = (("id", "bigint"), *OWN_COLUMNS)  # The columns of a Delta table that `write_tables` creates.


@pytest.mark.found
def test_a_definition_shows_the_columns_of_the_lake_and_a_batch_carries_them_only_if_they_differ(
    tmp_path: Path,
) -> None:
    """Defect 27: each batch stored the schema and the lineage of each table again."""
    config = described(tmp_path, tables={ITEMS: TableConfig(deletes="soft")})
    graph, defined = graph_of(config), DefinedColumns(config, "shop")
    shown: Any = graph.get(delta_key("shop", ORDERS)).metadata
    assert [(each.name, each.type) for each in shown["dagster/column_schema"].value.columns] == list(TYPED)
    assert shown["dagster/column_schema"].value.columns[0].description == "bigint unsigned"
    assert list(shown["dagster/column_lineage"].value.deps_by_column) == ["id"]
    assert defined.shows(ORDERS, TYPED[::-1]), "in any order: a column that was added later follows Sluice's own"
    assert not defined.shows(ORDERS, (*TYPED, ("note", "string")))
    assert not defined.shows(ORDERS, TYPED[1:])
    assert not defined.shows("shop.created_since", TYPED)
    assert defined.shows(ITEMS, (*TYPED, DELETED_COLUMN))
    write_tables(config.destination_dir("shop"), (ITEMS,))
    assert not defined.shows(ORDERS, TYPED), "the definitions of now"


def test_without_types_in_the_list_each_batch_carries_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lake has no type for a column of a table, the list of tables has no types of this table."""
    monkeypatch.setattr(writing, "types_of", lambda _: ())
    config = described(tmp_path)
    assert "dagster/column_schema" not in graph_of(config).get(delta_key("shop", ORDERS)).metadata
    assert not DefinedColumns(config, "shop").shows(ORDERS, TYPED)


def test_sluices_own_columns_are_those_that_merges_write() -> None:
    written = wanted_columns((), soft_deletes=True)
    assert tuple((each.name, each.type) for each in written) == (*OWN_COLUMNS, DELETED_COLUMN)
