"""Tests the column with the name of a shard. It follows the table's own columns, also in batches whose rows lack columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.rows.partial import with_presence
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.rows.shard_column import ShardColumn
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Column, Operation, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState

SHARD = ShardColumn(column="shop", name="Köln's")
POLICY = ValuePolicy(shard=SHARD)
ORDERS = TableVersion(
    database="shop_1",
    table="orders",
    version="v",
    columns=tuple(Column(name=name, type_code=TypeCode.LONG, nullable=name != "id") for name in ("id", "n")),
    key=("id",),
)


def batch(columns: int) -> pa.RecordBatch:
    """Returns two rows with this many columns, after three columns of Sluice."""
    ours: dict[str, Any] = {"_sluice_operation": pa.array([Operation.UPDATE_AFTER] * 2, pa.int8())}
    ours |= {"_sluice_order_key": pa.array([1, 2]), "_sluice_commit_time": pa.array([0, 0], pa.timestamp("us", "UTC"))}
    return pa.RecordBatch.from_pydict({**ours, **{f"c{number}": pa.array([1, 2]) for number in range(columns)}})


@pytest.mark.parametrize("columns", [1, 62, 63, 64, 126])
def test_every_row_of_a_partial_batch_has_its_shard_in_a_group(columns: int) -> None:
    """The result is as if the table itself had the column. One number describes which of 63 columns a row has, so tables around 63 columns
    are tested.
    """
    absent = np.zeros((columns, 2), bool)
    absent[-1, 1] = True
    given = with_presence(batch(columns), absent)
    whole = batch(columns).append_column(pa.field("shop", pa.string()), SHARD.values(2))
    wanted = with_presence(whole, np.vstack([absent, np.zeros((1, 2), bool)]))
    assert SHARD.inserted_into(given, 3 + columns).to_pydict() == wanted.to_pydict()
    assert SHARD.inserted_into(given, 3 + columns).schema.names == wanted.schema.names
    assert SHARD.inserted_into(batch(columns), 3 + columns).to_pydict() == whole.to_pydict()


def test_both_decoders_give_the_column_in_a_group() -> None:
    stream, read = RowDecoder(ORDERS, policy=POLICY), ResultDecoder(ORDERS, policy=POLICY)
    assert stream.key == ("id", "shop")
    assert [column.name for column in stream.columns] == ["id", "n", "shop"]
    assert stream.schema.names[3:] == read.schema.names == ["id", "n", "shop"]
    assert [column.name for column in read.columns] == ["id", "n"]
    assert RowDecoder(dataclasses.replace(ORDERS, key=()), policy=POLICY).key == ()


def test_a_table_that_has_such_a_column_stops_in_a_group() -> None:
    taken = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column(name="SHOP", type_code=TypeCode.LONG)))
    for decoder in (RowDecoder, ResultDecoder):
        with pytest.raises(TableStoppedError, match="set another `column` under `shards`") as caught:
            decoder(taken, policy=POLICY)
        assert caught.value.state == TableState.SCHEMA_MISMATCH
