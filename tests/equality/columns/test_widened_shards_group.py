"""Tests that a shard is compared although another shard has widened a column of the common Delta table. Needs no server."""

from __future__ import annotations

import duckdb
import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.config.shards import ShardsConfig
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.equality.table_plan import RefusedError, plan

LONG, FLOAT, DATE, DECIMAL = 3, 4, 10, 246


def columns(**types: str) -> tuple[Column, ...]:
    codes = {"int": LONG, "float": FLOAT, "date": DATE, "decimal(10,2)": DECIMAL}
    return tuple(
        Column(
            name=name, type_code=codes[each], metadata=(10 << 8) + 2 if codes[each] == DECIMAL else 4, mysql_type=each
        )
        for name, each in types.items()
    )


@pytest.mark.found
def test_a_shard_is_compared_after_another_shard_has_widened_a_column_in_a_group() -> None:
    """Defect 1203: the comparison refused the other shards, and advised to wait for a schema change that is never merged."""
    rule = ShardsConfig(tables=r"shop_(\d)\.orders", into="shop/orders", options={"schema_changes": {"widen": "apply"}})
    shop = DestinationConfig(name="shop", source=SourceConfig(user="u"), shards=(rule,))
    alone = DestinationConfig(name="shop", source=SourceConfig(user="u"))
    there = columns(id="int", n="int", f="float", d="date", amount="decimal(10,2)")
    version = TableVersion(database="shop_2", table="orders", version="v", columns=there, key=("id",))
    lake = {"id": "int", "n": "bigint", "f": "double", "d": "timestamp_ntz", "amount": "decimal(14,4)"}
    found = plan(version, range(5), shop, lake)
    texts = {"id": "1", "n": "-7", "f": "0.10000000149011612", "d": "2026-11-30", "amount": "1.20"}
    values = {"id": "1", "n": "-7", "f": "CAST(0.1 AS FLOAT)", "d": "DATE '2026-11-30'", "amount": "1.20"}
    types = {"bigint": "BIGINT", "double": "DOUBLE", "timestamp_ntz": "TIMESTAMP", "decimal(14,4)": "DECIMAL(14,4)"}
    for column in found.columns:
        source = column.from_text.replace("{}", f"'{texts[column.name]}'")
        kept = f"CAST({values[column.name]} AS {types.get(lake[column.name], 'INTEGER')})"
        is_equal = duckdb.sql(f"SELECT {source} = {column.from_delta.replace('{}', kept)}").fetchone()
        assert is_equal == (True,), column
    with pytest.raises(RefusedError, match="column n is int in the source and bigint in the Delta table"):
        plan(version, range(5), alone, lake)
    with pytest.raises(RefusedError, match="column n is int in the source and smallint in the Delta table"):
        plan(version, range(5), shop, {**lake, "n": "smallint"})
