"""Tests settings in conf/ for the paths and the layout of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.side_tables_check import rules_problems, side_table_problems, side_tables_sentence
from sluice.orchestration.base.lake_settings import target


def conf(folder: Path, text: str) -> Path:
    (folder / "conf" / "destinations").mkdir(parents=True)
    (folder / "conf" / "destinations" / "shop.yaml").write_text(f"source: {{user: u}}\n{text}")
    return folder / "conf"


@pytest.mark.parametrize(
    ("template", "location"),
    [
        ("{database}/{table}", "sales/orders"),
        ("bronze/{destination}/{database}__{table}", "bronze/shop/sales__orders"),
        ("raw_{table}", "raw_orders"),
    ],
)
def test_a_template_says_where_tables_are(tmp_path: Path, template: str, location: str) -> None:
    config = load_config(conf(tmp_path, f'table_path: "{template}"\ntables: {{sales.views: {{path: /srv/views}}}}'))
    assert config.table_path("shop", "sales", "orders") == f"{config.lake}/{location}"
    assert config.table_path("shop", "sales", "views") == "/srv/views"


ELSEWHERE = ["/srv/{table}", "../{table}", "_sluice_{table}", "{table}/"]
UNREADABLE = ["{database}", "{schema}/{table}", "{table", "{}/{table}", "{table!r}", "{table:>9}", "{table.x}"]


@pytest.mark.parametrize("template", [*UNREADABLE, *ELSEWHERE])
def test_a_template_without_a_path_for_each_table_is_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.yaml: table_path"):
        load_config(conf(tmp_path, f'table_path: "{template}"'))


def test_a_layout_is_passed_to_the_run(tmp_path: Path) -> None:
    words = "tables:\n  a.x: {partition_by: [day], change_feed: true}\n  a.y: {cluster_by: [id, day]}\n"
    config = load_config(conf(tmp_path, words))
    found = target(config, "shop", "a.x").layout
    assert (found.partition_by, found.cluster_by, found.change_feed) == (("day",), (), True)
    assert target(config, "shop", "a.y").layout.cluster_by == ("id", "day")
    assert not target(config, "shop", "a.z").layout


def test_a_table_is_partitioned_or_clustered(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot have both partition_by and cluster_by: remove one of the two"):
        load_config(conf(tmp_path, "tables: {a.x: {partition_by: [day], cluster_by: [id]}}"))


def test_change_log_and_history_are_next_to_the_current_state_table_history(tmp_path: Path) -> None:
    config = load_config(conf(tmp_path, "tables:\n  a.x: {change_log: true, history: true}\n  a.y: {deletes: soft}\n"))
    found = target(config, "shop", "a.x")
    assert (found.change_log, found.history) == (f"{config.lake}/a/x__log", f"{config.lake}/a/x__history")
    assert not target(config, "shop", "a.y").has_side_tables


def test_a_table_at_the_path_of_another_tables_log_is_refused_history(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"a\.x of shop and a\.x__log of shop have the same Delta path"):
        load_config(conf(tmp_path, "tables:\n  a.x: {change_log: true}\n  a.x__log: {deletes: soft}\n"))


def test_check_names_rules_of_a_table_that_is_not_there_consumer(tmp_path: Path) -> None:
    rules = "{masks: {id: 'null'}}"
    tables = "".join(f"  {name}: {rules}\n" for name in ("a.x", "a.Y", "a.z"))
    config = load_config(conf(tmp_path, f"tables:\n{tables}  a.other: {{deletes: soft}}\n"))
    assert rules_problems(config) == [], "nobody knows any table yet"
    folder = config.destination_dir("shop")
    folder.mkdir(parents=True)
    write_tables(folder, [TableVersion(database="a", table=name, columns=()) for name in ("x", "y")])
    spelled, unknown = rules_problems(config)
    assert spelled.startswith("a.Y of shop")
    assert spelled.endswith("write it a.y")
    assert unknown.startswith("a.z of shop")


def test_check_names_what_can_have_no_history(tmp_path: Path) -> None:
    config = load_config(conf(tmp_path, "tables:\n  a.x: {history: true}\n  a.y: {history: true, change_log: true}\n"))
    folder = config.destination_dir("shop")
    folder.mkdir(parents=True)
    columns = (Column(name="id", type_code=3), Column(name="valid_to", type_code=3))
    tables = [
        TableVersion(database="a", table="x", columns=columns, key=("id",)),
        TableVersion(database="a", table="y", columns=columns[:1]),
    ]
    write_tables(folder, tables)
    clash, keyless = side_table_problems(config)
    assert "a.x of shop has a column valid_to" in clash
    assert "a.y of shop has no key" in keyless
    assert "change_log: a.y of shop; history: a.x of shop, a.y of shop" in side_tables_sentence(config)


def test_without_a_current_state_table_there_is_a_history_or_a_log_history(tmp_path: Path) -> None:
    words = "tables: {sales.a: {current_state: false, history: true, change_log: true}, sales.b: {current_state: false, change_log: true}}"
    config = load_config(conf(tmp_path, words))
    paths = [config.kept_path("shop", "sales", name) for name in ("a", "b", "c")]
    assert [path.removeprefix(f"{config.lake}/sales/") for path in paths] == ["a__history", "b__log", "c"]
    settings = config.destinations["shop"]
    assert [settings.table("sales", name).shows_rows for name in ("a", "b", "c")] == [True, False, True]
    assert [settings.cascade_policy("sales", name) for name in ("a", "c")] == ["stop", "apply"]
    assert "sales.b of shop (no current-state table)" in side_tables_sentence(config)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("current_state: false", "leaves no table in the lake"),
        ("current_state: false, history: true, cluster_by: [a]", "apply to the current-state table"),
        ("current_state: false, change_log: true, deletes: soft", "apply to the current-state table"),
    ],
)
def test_settings_that_need_a_current_state_table_are_refused_without_one_history(
    tmp_path: Path, words: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_config(conf(tmp_path, f"tables: {{sales.a: {{{words}}}}}"))
