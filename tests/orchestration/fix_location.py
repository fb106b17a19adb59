"""Provides a small conf/ and its definitions with fakes, for the tests of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.table_meta.table_list import writing
from sluice.orchestration.base.testing import FakePorts

TABLES = ("shop.orders", "shop.items", "shop.odd-näme$")


def make_config(root: Path, *, runs: Literal["batch", "drain"] = "batch") -> SluiceConfig:
    shop = DestinationConfig(name="shop", source=SourceConfig(user="sluice", port=3307), runs=runs)
    return SluiceConfig(data_dir=root / "data", lake=str(root / "lake"), destinations={"shop": shop})


def write_tables(directory: Path, names: tuple[str, ...] = TABLES, cascades: tuple[Cascade, ...] = ()) -> None:
    columns = (Column(name="id", type_code=8, nullable=False, mysql_type="bigint unsigned"),)
    writing.write_tables(
        directory,
        [
            TableVersion(database=name.split(".")[0], table=name.split(".")[1], key=("id",), columns=columns)
            for name in names
        ],
        cascades,
    )


def make_fake_ports(config: SluiceConfig, tables: tuple[str, ...] = ("shop.orders", "shop.items")) -> FakePorts:
    return FakePorts(config.destination_dir("shop"), tables)
