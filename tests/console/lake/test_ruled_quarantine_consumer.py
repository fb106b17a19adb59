"""Tests that a replay does not put back a quarantined value if conf/ now masks the table or makes it a shard."""

from __future__ import annotations

from typing import Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.console.lake.quarantine import RULED, SHARED, _replay_column


def test_a_quarantined_value_is_not_put_back_past_a_mask() -> None:
    config = SluiceConfig.model_validate(
        {
            "data_dir": "/nowhere/data",
            "lake": "/nowhere/lake",
            "destinations": {
                "shop": {
                    "name": "shop",
                    "source": {"user": "u"},
                    "tables": {"shop.orders": {"masks": {"note": "null"}}},
                }
            },
        }
    )
    record: dict[str, Any] = {"database": "shop", "table": "orders", "column": "note"}
    found = _replay_column(config, "shop", None, [record, record])
    assert (found.put_back, found.refused, found.reason) == (0, 2, RULED)


def test_a_quarantined_value_is_not_put_back_into_rows_of_shards() -> None:
    """A row of another shard, also of another destination, may have the same key and the same order key, so the right row is unknown."""
    shards = [{"tables": r"shop_(\d)\.orders", "into": "shop/orders", "name": "{1}"}]
    destination = {"name": "shop", "source": {"user": "u"}, "shards": shards}
    config = SluiceConfig.model_validate(
        {"data_dir": "/nowhere/data", "lake": "/nowhere/lake", "destinations": {"shop": destination}}
    )
    record: dict[str, Any] = {"database": "shop_1", "table": "orders", "column": "note"}
    found = _replay_column(config, "shop", None, [record, record])
    assert (found.put_back, found.refused, found.reason) == (0, 2, SHARED)
