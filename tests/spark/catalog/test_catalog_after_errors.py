"""Tests what a run leaves in the record of the catalog if Spark is away, the run fails, or nothing is left to do in Spark."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.config.destination import DestinationConfig
from sluice.cdc_engine.config.locations import CatalogConfig
from sluice.cdc_engine.config.sluice import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.catalog_record import (
    CatalogEntry,
    Registered,
    read_registered,
    write_registered,
)
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot import groups
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.work import SnapshotDependencies
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.catalog import registration
from sluice.orchestration.run.catalog.registration import changes_of, register_after_run, wanted_tables
from sluice.spark_jobs.catalog import shape_of
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

pytestmark = pytest.mark.catalog

BEFORE, AFTER = (("id", "int"),), (("id", "bigint"),)
ORDERS_V, ITEMS_V = ("main", "shop", "orders_v"), ("main", "shop", "items_v")
SHARED = ("main", "sales", "items")


def without_spark(config: SluiceConfig, views: str | None = "{table}_v") -> SluiceConfig:
    """Returns the configuration with a catalog and a Spark that does not answer."""
    spark = config.spark.model_copy(update={"remote": "sc://127.0.0.1:1"})
    catalog = CatalogConfig(name="main", schema="{database}", views=views)
    return config.model_copy(update={"spark": spark, "catalog": catalog})


def all_registered(config: SluiceConfig, destination: str, *names: str) -> Path:
    """Records tables in the lake and in the catalog, with views for the columns BEFORE. Returns the destination's folder."""
    directory = config.destination_dir(destination)
    directory.mkdir(parents=True, exist_ok=True)
    LakeTables(directory).keep(dict.fromkeys(names, ("id", 1)))
    tables = {
        each.identifier: CatalogEntry(each.of, each.path, each.over, shape_of(BEFORE) if each.over else "")
        for each in wanted_tables(config, destination, LakeTables(directory))
    }
    write_registered(directory, Registered(tables=tables))
    return directory


def due(config: SluiceConfig, destination: str) -> set[tuple[str, str, str]]:
    """Returns the names that the next run registers in the catalog, if the wait after a failed attempt is over."""
    directory = config.destination_dir(destination)
    tables = wanted_tables(config, destination, LakeTables(directory))
    return {each.identifier for each in changes_of(tables, read_registered(directory), again=True).register}


def test_a_change_of_columns_is_not_forgotten_while_spark_is_away(tmp_path: Path) -> None:
    config = without_spark(make_config(tmp_path))
    directory = all_registered(config, "shop", "shop.orders", "shop.items")
    register_after_run(config, "shop", {config.table_path("shop", "shop", "orders"): BEFORE})
    assert (due(config, "shop"), read_registered(directory).error) == (set(), "")

    register_after_run(config, "shop", {config.table_path("shop", "shop", "orders"): AFTER})
    assert "no Spark Connect server answers" in read_registered(directory).error
    assert due(config, "shop") == {ORDERS_V}, "of the run whose attempt failed"
    tried_at = read_registered(directory).tried_at
    register_after_run(config, "shop", {config.table_path("shop", "shop", "items"): AFTER})
    assert read_registered(directory).tried_at == tried_at, "it waits"
    assert due(config, "shop") == {ORDERS_V, ITEMS_V}, "of a run that did not try"
    register_after_run(config, "shop")
    assert due(config, "shop") == {ORDERS_V, ITEMS_V}


def test_a_change_of_columns_is_not_forgotten_if_another_table_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot run publishes one table with other columns, and then fails at the next table. The change must stay recorded, and the run
    must report the error of the failed table.
    """
    config = without_spark(make_config(tmp_path))
    directory = all_registered(config, "shop", "shop.orders")
    write_tables(directory)
    orders = next(each for each in read_tables(directory) if each.name == "shop.orders")

    def run_all(hands: SnapshotDependencies, _: float) -> None:
        hands.publish(wanted("shop.orders", None, time.time()), orders)
        raise SluiceError("shop.items cannot be read")

    def publish(*_: object, **__: object) -> Any:
        return SimpleNamespace(label=1, columns=AFTER)

    def refuse(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(groups, "run_all", run_all)
    ports = dataclasses.replace(make_fake_ports(config).ports(), publish=publish)
    job = build_definitions(config, ports).resolve_job_def("snapshot_shop_job")
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        with pytest.raises(dg.Failure, match=r"shop\.items cannot be read"):
            job.execute_in_process(instance=instance)
        assert due(config, "shop") == {ORDERS_V}
        monkeypatch.setattr(registration, "write_registered", refuse)
        write_registered(directory, Registered())
        with pytest.raises(dg.Failure, match=r"shop\.items cannot be read"):
            job.execute_in_process(instance=instance)


def test_a_reason_ends_with_its_table_and_a_clash_with_the_other_table(tmp_path: Path) -> None:
    config = without_spark(make_config(tmp_path), views=None)
    directory = all_registered(config, "shop", "shop.orders")
    orders, gone = ("main", "shop", "orders"), ("main", "shop", "no name")
    known = read_registered(directory)
    write_registered(directory, dataclasses.replace(known, failed={gone: "not valid", orders: "two had this name"}))
    register_after_run(config, "shop")
    assert read_registered(directory) == known, "Spark was not asked"
    LakeTables(directory).keep({"shop.no name": ("id", 1)})
    write_registered(directory, dataclasses.replace(known, failed={gone: "not valid"}, tried_at=time.time()))
    register_after_run(config, "shop")
    assert read_registered(directory).failed == {gone: "not valid"}, "it is still in the lake"


@pytest.mark.parametrize(("path", "requested"), [("lake/sales/items", False), ("elsewhere/items", True)])
def test_a_registration_that_another_destination_has_too_stays(tmp_path: Path, path: str, *, requested: bool) -> None:
    shards = [{"tables": r"s\d+\.items", "into": "sales/items", "column": "shard", "name": "{database}"}]
    given: Mapping[str, Any] = {"source": {"host": "db", "user": "u"}, "include": ".*", "shards": shards}
    both = {name: DestinationConfig.model_validate({"name": name, **given}) for name in ("east", "west")}
    config = without_spark(make_config(tmp_path).model_copy(update={"destinations": both}), views=None)
    east, west = (all_registered(config, name, "s1.items") for name in both)
    entry = read_registered(west).tables[SHARED]
    write_registered(west, Registered(tables={SHARED: entry._replace(path=f"{tmp_path}/{path}")}))
    LakeTables(east).forget("s1.items")
    register_after_run(config, "east")
    record = read_registered(east)
    assert (SHARED in record.tables, bool(record.error)) == (requested, requested), (
        "Spark, which is away, is asked only to drop it"
    )
