"""Tests the folders of tables in the lake: whatever a name contains, its table is in a folder of its own below the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config, path_clashes
from sluice.cdc_engine.config_paths import SEGMENT_BYTES_MAX, path_segment
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.orchestration.run.table_locks import written_target
from tests.config.test_path_clashes_identity import conf

UNCHANGED = ["orders", "Orders_2024", "a-b", "$tmp", "order items", "v1.2", "größe", "订单", "me@home", "__x", "_sl"]
ENCODED = {
    "..": "@002e.",
    ".hidden": "@002ehidden",
    "orders/2024": "orders@002f2024",
    "../../../outside": "@002e.@002f..@002f..@002foutside",
    "a%2Fb": "a@00252Fb",
    "%s": "@0025s",
    "a\\b": "a@005cb",
    "tab\tline\n": "tab@0009line@000a",
    "a@002fb": "a@0040002fb",
    "a`b": "a@0060b",
    "a[b]*?": "a@005bb@005d@002a@003f",
    "_sluice_consistent_snapshots": "@005fsluice_consistent_snapshots",
    "_SLUICE_QUARANTINE": "@005fSLUICE_QUARANTINE",
    "_delta_log": "@005fdelta_log",
    " x": "@0020x",
    "x\u0085\u2028": "x@0085@2028",
}


@pytest.mark.found
def test_identity_a_name_is_one_folder_and_ordinary_names_stay_as_they_are() -> None:
    """Defect 6: table names were used as paths."""
    assert [path_segment(name) for name in UNCHANGED] == UNCHANGED
    assert {name: path_segment(name) for name in ENCODED} == ENCODED
    names = [*UNCHANGED, *ENCODED, *ENCODED.values()]
    assert len({path_segment(name) for name in names}) == len(names), "two names share no folder"


@pytest.mark.found
def test_identity_a_name_of_escaped_characters_alone_fits_a_file_system() -> None:
    """Defect 6: the folder name for a name of 64 slashes needed more bytes than a file system allows."""
    names = ["/" * 64, "/" * 63 + "\\", "漢" * 64]
    found = [path_segment(name) for name in names]
    assert max(len(each.encode()) for each in found) <= SEGMENT_BYTES_MAX
    assert len(set(found)) == 3
    assert found[2] == names[2]


def config_of(root: Path, **destinations: str) -> SluiceConfig:
    return load_config(conf(root, **destinations))


@pytest.mark.found
def test_identity_no_table_is_outside_the_lake_or_inside_another_one(tmp_path: Path) -> None:
    """Defect 6: a table name with `..` was outside the lake, at another table's path, or at one of Sluice's own paths."""
    config = config_of(tmp_path, shop="")
    lake = Path(config.lake)
    for name in (
        "../../../outside",
        "../billing/inv",
        "../_sluice_consistent_snapshots/shop",
        "orders/2024",
        "..",
        ".",
    ):
        path = Path(config.table_path("shop", "shop", name))
        assert path.resolve().parent == lake / "shop", name
    assert Path(config.table_path("shop", "..", "x")).resolve().parent.parent == lake
    ours = Path(config.table_path("shop", "_sluice_consistent_snapshots", "shop"))
    assert ours == lake / "@005fsluice_consistent_snapshots" / "shop"
    assert (
        path_clashes(config, {"shop": ["shop.orders", "shop.orders/2024", "billing.inv", "shop.../billing/inv"]}) == []
    )


@pytest.mark.found
def test_identity_a_shard_s_path_has_its_names_as_folders(tmp_path: Path) -> None:
    """Defect 6: text that a group of a shard's pattern matched was used as a path, so a table with `..` in its name left the lake."""
    rule = "shards: [{tables: 'shop_([0-9]+)\\.(.*)', into: 'shop/{2}'}]"
    config = config_of(tmp_path, shop=rule)
    assert config.table_path("shop", "shop_1", "../../x") == f"{config.lake}/shop/@002e.@002f..@002fx"
    assert config.destinations["shop"].table("shop_1", "../../x").path == ""


@pytest.mark.found
@pytest.mark.parametrize("path", ["lake/shop/orders/2024", "lake/shop/items/../orders/2024", "lake/shop/./orders/x/y"])
def test_identity_a_path_inside_another_table_s_is_a_clash(tmp_path: Path, path: str) -> None:
    """Defect 6: a table inside another table's folder lost its files to VACUUM."""
    config = config_of(tmp_path, shop=f"tables: {{crm.old: {{path: {path}}}}}")
    (clash,) = path_clashes(config, {"shop": ["shop.orders", "shop.others"]})
    assert "crm.old of shop" in clash
    assert "inside" in clash
    assert "shop.orders of shop" in clash
    with pytest.raises(ConfigurationError, match="inside"):
        config_of(tmp_path / "again", shop=f"tables: {{crm.old: {{path: {path}}}, shop.orders: {{deletes: soft}}}}")


@pytest.mark.found
def test_identity_paths_in_a_store_are_compared_as_the_store_reads_them(tmp_path: Path) -> None:
    """Test for defect 6: `s3a://` and a doubled slash mean the same location in a store."""
    other = "tables: {crm.old: {path: 's3a://bucket/lake//shop/orders'}}"
    folder = conf(tmp_path, shop=other)
    (folder / "sluice.yaml").write_text("data_dir: data\nlake: s3://bucket/lake\n")
    (clash,) = path_clashes(load_config(folder), {"shop": ["shop.orders"]})
    assert "crm.old of shop and shop.orders of shop have the same Delta path" in clash


@pytest.mark.found
@pytest.mark.parametrize("path", ["lake/_sluice_consistent_snapshots/shop", "lake/_sluice_quarantine", "lake"])
def test_identity_a_path_among_sluice_s_own_is_a_clash(tmp_path: Path, path: str) -> None:
    """Defect 6: `path` could name a folder that Sluice reserves for itself, or the lake as a whole."""
    with pytest.raises(ConfigurationError, match=r"crm\.old of shop"):
        config_of(tmp_path, shop=f"tables: {{crm.old: {{path: {path}}}}}")


@pytest.mark.found
def test_identity_names_that_differ_by_case_clash_if_the_store_ignores_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 6: `Shop` and `shop` were one folder on a file system that ignores case."""
    config = config_of(tmp_path, shop="")
    tables = {"shop": ["Shop.orders", "shop.orders", "shop.items"]}
    assert path_clashes(config, tables) == []
    monkeypatch.setattr("sluice.cdc_engine.config.sluice.folds_case", lambda _: True)
    (clash,) = path_clashes(config, tables)
    assert "Shop.orders of shop and shop.orders of shop have the same Delta path" in clash
    assert "ignores letter case" in clash


@pytest.mark.found
def test_identity_a_new_table_gets_the_reason_of_its_clash_and_an_existing_table_keeps_its_path(tmp_path: Path) -> None:
    """Test for defect 6: a run names the tables that may not be made, and merges the others."""
    config = config_of(tmp_path, shop="tables: {crm.old: {path: lake/shop/orders/x, history: true}}")
    directory = config.destination_dir("shop")
    names = [("shop", "orders"), ("shop", "items"), ("crm", "old")]
    write_tables(directory, [TableVersion(database=one, table=other, columns=()) for one, other in names])
    LakeTables(directory).keep({"shop.orders": ("an id", 7), "crm.old": ("another", 1)})
    find = written_target(config, "shop")
    assert "crm.old of shop has the Delta path" in find("crm.old").clash, "its history is not made yet"
    assert find("shop.items").clash == find("shop.orders").clash == ""
    LakeTables(directory).keep_side_table("crm.old", "history", ("third", 0))
    assert not written_target(config, "shop")("crm.old").clash
