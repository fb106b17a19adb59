"""Tests that two source tables never write one Delta table. A conf/ that would allow it is refused, and `check` and `up` look at the
existing tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config, path_clashes
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.check import run_checks

SOURCE = "source: {user: root}\n"


def conf(root: Path, **destinations: str) -> Path:
    folder = root / "conf"
    (folder / "destinations").mkdir(parents=True)
    (folder / "sluice.yaml").write_text("data_dir: data\nlake: lake\n")
    for name, text in destinations.items():
        (folder / "destinations" / f"{name}.yaml").write_text(SOURCE + text)
    return folder


def test_identity_equal_paths_in_conf_are_refused_with_both_names(tmp_path: Path) -> None:
    same = "tables: {shop.orders: {path: lake/orders}}"
    with pytest.raises(ConfigurationError, match=r"shop\.orders of a and shop\.orders of b have the same Delta path"):
        load_config(conf(tmp_path, a=same, b=same))


def test_identity_a_path_that_is_the_default_of_another_destination_s_table_is_refused(tmp_path: Path) -> None:
    moved = "tables: {crm.people: {path: lake/shop/orders}}"
    with pytest.raises(ConfigurationError, match=r"crm\.people of a and shop\.orders of b"):
        load_config(conf(tmp_path, a=moved, b="tables: {shop.orders: {deletes: soft}}"))


def test_identity_shards_that_capture_one_name_are_found_by_their_tables(tmp_path: Path) -> None:
    folder = conf(tmp_path, a="", b="", c="tables: {shop.orders: {path: lake/c/orders}}")
    config = load_config(folder)
    assert path_clashes(config, {"a": ["shop.orders"], "b": ["shop.items"], "c": ["shop.orders"]}) == []
    for name in ("a", "b", "c"):
        table = TableVersion(database="shop", table="orders", columns=())
        write_tables(config.destination_dir(name), [table])
    (finding,) = [finding for finding in run_checks(folder) if finding.what == "Delta paths of all tables"]
    (sentence,) = finding.problems
    assert sentence.startswith("shop.orders of a and shop.orders of b have the same Delta path")
