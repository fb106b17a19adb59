"""Tests settings of shards that become one table: its path, the names of the shards, and settings that are refused because they would
affect other shards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, TableConfig, path_clashes
from sluice.cdc_engine.config.shards import ShardsConfig
from sluice.cdc_engine.instance.tables.value_policies import keys_of, policies_of
from sluice.cdc_engine.source.settings import SourceConfig

RULE: dict[str, Any] = {"tables": r"shop_(\d+)\.(orders|items)", "into": "shop/{2}", "column": "shop", "name": "{1}"}


def destination(name: str = "east", **words: Any) -> DestinationConfig:
    return DestinationConfig(name=name, source=SourceConfig(user="root"), **{"shards": (RULE,), **words})


def config(*destinations: DestinationConfig) -> SluiceConfig:
    return SluiceConfig(data_dir=Path("/data"), lake="/lake", destinations={each.name: each for each in destinations})


def test_a_pattern_gives_its_tables_one_path_and_a_name_each() -> None:
    given = config(destination(shards=({**RULE, "options": {"key": ["id"], "charsets": {"a": "latin1"}}},)))
    east = given.destinations["east"]
    assert (
        given.table_path("east", "shop_7", "orders")
        == given.table_path("east", "SHOP_8", "orders")
        == "/lake/shop/orders"
    )
    assert given.table_path("east", "shop_7", "orders_old") == "/lake/shop_7/orders_old"
    shard = east.shard("shop_7", "orders")
    assert shard is not None
    assert (shard.column, shard.name) == ("shop", "7")
    assert east.shard("shop_x", "orders") is None
    assert keys_of(east).get("shop_7.orders") == ("id",)
    assert keys_of(east).get("shop_x.orders") is None
    policy = policies_of(east)["shop_7.items"]
    assert policy.shard is not None
    assert (policy.shard.column, policy.shard.name, policy.charsets) == ("shop", "7", {"a": "latin1"})
    assert "shop_x.items" not in policies_of(east)
    # Staging uses `policies or {}`, so policies must be truthy even if they name no table.
    assert bool(policies_of(east))


def test_keys_that_conf_does_not_name_stay_those_of_the_source_in_a_group() -> None:
    assert keys_of(destination()).get("shop_7.orders", ("own",)) == ("own",)


def test_plans_for_other_columns_become_stops_in_a_group() -> None:
    east = destination(schema_changes={"rename": "apply", "add": "hold"})
    assert east.schema_policy("shop_1", "orders") == {
        "add": "hold",
        "drop": "keep",
        "rename": "stop",
        "widen": "stop",
        "convert": "stop",
        "key": "stop",
        "truncate": "apply",
        "drop_table": "ignore",
        "drop_partition": "hold",
    }
    assert east.schema_policy("shop_1", "others")["rename"] == "apply"
    assert east.cascade_policy("shop_1", "orders") == "stop"
    assert east.cascade_policy("shop_1", "others") == "apply"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"tables": "shop_("}, "is not a regular expression"),
        (
            {"into": "shop/{3}"},
            r"may have only these placeholders: \{destination\}, \{database\}, \{table\}, and \{1\} to \{2\}",
        ),
        ({"into": "../elsewhere"}, "must be a path below the lake"),
        ({"into": "shop/"}, "must be a path below the lake"),
        ({"into": "shop//orders"}, "must be a path below the lake"),
        ({"into": "shop/./orders"}, "must be a path below the lake"),
        ({"name": "all"}, "gives every shard the same name"),
        ({"options": TableConfig(change_log=True)}, "change_log is not supported for a table of several shards"),
        ({"options": TableConfig(rows="a = 1")}, "rows is not supported for a table of several shards"),
        (
            {"options": {"schema_changes": {"rename": "apply"}}},
            "one shard cannot change the columns of all shards; use stop",
        ),
        ({"options": {"schema_changes": {"widen": "rewrite"}}}, "use apply or stop"),
    ],
)
def test_what_would_reach_other_shards_is_refused_in_a_group(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        ShardsConfig.model_validate({**RULE, **words})


def test_settings_for_one_shard_alone_are_refused_in_a_group() -> None:
    with pytest.raises(
        ValidationError,
        match=r"tables\.shop_1\.orders: the table matches `shards`, and all shards have the same settings:",
    ):
        destination(tables={"shop_1.orders": {"deletes": "soft"}})


def test_two_shards_of_one_name_clash_in_a_group() -> None:
    tables = {"east": ["shop_1.orders", "shop_2.orders"], "west": ["shop_1.orders"]}
    assert not path_clashes(config(destination()), tables)
    same = {**RULE, "name": "{table}"}
    (clash,) = path_clashes(config(destination(shards=(same,))), tables)
    assert "shop_1.orders of east and shop_2.orders of east" in clash
    assert "are not distinguished as shards" in clash
    other = {**RULE, "tables": r"shop_(2)\.(orders)", "column": "place"}
    assert path_clashes(config(destination(shards=(other, RULE))), tables)
    (clash,) = path_clashes(config(destination()), {"east": ["shop_1.orders", "shop.orders"]})
    assert "set another `path` for one of these tables" in clash


def test_shards_of_two_destinations_clash_in_a_group() -> None:
    apart = {**RULE, "name": "{destination} {1}"}
    tables = {"east": ["shop_1.orders"], "west": ["shop_1.orders"]}
    both = config(destination(shards=(apart,)), destination("west", shards=(apart,)))
    assert not path_clashes(both, tables)
    (clash,) = path_clashes(config(destination(), destination("west")), tables)
    assert "shop_1.orders of east and shop_1.orders of west" in clash
    assert "all of them have the name '1'" in clash
    soft = {**apart, "options": {"deletes": "soft"}}
    (clash,) = path_clashes(config(destination(shards=(apart,)), destination("west", shards=(soft,))), tables)
    assert "not all of their `shards` entries have deletes: soft" in clash
    renamed = {**apart, "column": "place"}
    (clash,) = path_clashes(config(destination(shards=(apart,)), destination("west", shards=(renamed,))), tables)
    assert "set the same `column` in all `shards` entries of this path" in clash
    (clash,) = path_clashes(
        config(destination(shards=(apart,)), destination("west", shards=(), table_path="shop/{table}")), tables
    )
    assert "set another `path` for one of these tables" in clash


@pytest.mark.found
@pytest.mark.parametrize("names", [["shop.orders"], ["shop.orders", "shop_2.orders"]])
def test_a_shard_without_a_name_is_refused_in_a_group(names: list[str]) -> None:
    """Defect 1198: an optional group gave a shard an empty name. Delta reads an empty partition as NULL, so its rows belonged to no shard.
    With a second shard, the message advised another `path`, which shards refuse.
    """
    given = config(destination(shards=({**RULE, "tables": r"shop(?:_(\d+))?\.(orders|items)"},)))
    (clash,) = path_clashes(given, {"east": names})
    assert "shop.orders of east has an empty name as a shard of /lake/shop/orders: set `name` in `shards`" in clash
    assert not path_clashes(given, {"east": ["shop_2.orders"]})
