"""The words of conf/ for where tables are and how they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_engine.config import load_config
from cdc_engine.errors import ConfigurationError
from orchestration.run.lake_settings import target


def conf(folder: Path, text: str) -> Path:
    (folder / "conf" / "destinations").mkdir(parents=True)
    (folder / "conf" / "destinations" / "shop.yaml").write_text(f"source: {{user: u}}\n{text}")
    return folder / "conf"


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("{database}/{table}", "sales/orders"),
        ("bronze/{destination}/{database}__{table}", "bronze/shop/sales__orders"),
        ("raw_{table}", "raw_orders"),
    ],
)
def test_a_template_says_where_tables_are(tmp_path: Path, template: str, place: str) -> None:
    config = load_config(conf(tmp_path, f'table_path: "{template}"\ntables: {{sales.views: {{path: /srv/views}}}}'))
    assert config.table_path("shop", "sales", "orders") == f"{config.lake}/{place}"
    assert config.table_path("shop", "sales", "views") == "/srv/views"


ELSEWHERE = ["/srv/{table}", "../{table}", "_sluice_{table}", "{table}/"]
UNREADABLE = ["{database}", "{schema}/{table}", "{table", "{}/{table}", "{table!r}", "{table:>9}", "{table.x}"]


@pytest.mark.parametrize("template", [*UNREADABLE, *ELSEWHERE])
def test_a_template_that_names_no_place_of_its_own_is_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.yaml: table_path"):
        load_config(conf(tmp_path, f'table_path: "{template}"'))


def test_a_layout_is_told_to_the_run(tmp_path: Path) -> None:
    words = "tables:\n  a.x: {partition_by: [day], change_feed: true}\n  a.y: {cluster_by: [id, day]}\n"
    config = load_config(conf(tmp_path, words))
    found = target(config, "shop", "a.x").layout
    assert (found.partition_by, found.cluster_by, found.change_feed) == (("day",), (), True)
    assert target(config, "shop", "a.y").layout.cluster_by == ("id", "day")
    assert not target(config, "shop", "a.z").layout


def test_a_table_is_partitioned_or_clustered(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="leave partition_by or cluster_by out"):
        load_config(conf(tmp_path, "tables: {a.x: {partition_by: [day], cluster_by: [id]}}"))
