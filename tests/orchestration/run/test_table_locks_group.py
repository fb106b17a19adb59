"""Tests which source tables are written to one Delta table: the shards of one destination and those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.orchestration.run.table_locks import writers_of

SHARDS = {"tables": r"shop_(\d+)\.(orders|items)", "into": "shop/{2}", "column": "shop", "name": "{1}"}


def made(root: Path, **tables: tuple[str, ...]) -> SluiceConfig:
    """Returns the settings of one destination for each argument. An argument contains the tables that the destination's runs have written.
    All destinations have the same shards.
    """
    destinations = {
        name: DestinationConfig(name=name, source=SourceConfig(user="root"), shards=(SHARDS,)) for name in tables
    }
    config = SluiceConfig(data_dir=root, lake=str(root / "lake"), destinations=destinations)
    for name, written in tables.items():
        config.destination_dir(name).mkdir(parents=True)
        LakeTables(config.destination_dir(name)).keep({each: (f"id of {each}", 1) for each in written})
    return config


@pytest.mark.found
def test_a_vacuum_keeps_what_each_shard_needs_in_a_group(tmp_path: Path) -> None:
    """Defect 75: VACUUM of a shard did not consider the other shards of its destination. For a stopped shard, the consistent snapshot
    names an older version of the Delta table, whose files VACUUM could delete.
    """
    config = made(
        tmp_path,
        east=("shop_1.orders", "shop_2.orders", "shop_1.items", "crm.orders"),
        west=("shop_7.orders",),
        north=("shop_8.items",),
    )
    assert writers_of(config, "east", "shop_1.orders") == {
        "east": ("shop_1.orders", "shop_2.orders"),
        "west": ("shop_7.orders",),
    }


def test_a_table_that_is_no_shard_has_one_writer(tmp_path: Path) -> None:
    config = made(tmp_path, east=("shop_1.orders", "crm.orders"), west=("crm.orders",))
    assert writers_of(config, "east", "crm.orders") == {"east": ("crm.orders",)}


def test_a_shard_whose_record_is_missing_counts_in_a_group(tmp_path: Path) -> None:
    config = made(tmp_path, east=("shop_1.orders",))
    assert writers_of(config, "east", "shop_9.orders") == {"east": ("shop_1.orders", "shop_9.orders")}
