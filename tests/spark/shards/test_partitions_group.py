"""Tests the advice for a shard if conf/ has other partitions than the common Delta table. No Spark is needed."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.tables.delta_table import DeltaTable, schema_statements
from sluice.spark_jobs.targets.layout import Layout
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.shards import Shard, undivided, way_to_one_type

SHARD = Shard(column="_sluice_shard", name="shop_1.orders")


@pytest.mark.found
@pytest.mark.parametrize(
    ("shard", "advice"),
    [
        (None, "create the table again with `sluice snapshot start`"),
        (SHARD, "move the table's folder away, and run `sluice lake accept` for each of its shards"),
    ],
    ids=["own table", "shard"],
)
def test_other_partitions_name_a_way_that_creates_the_table_again_group(
    tmp_path: Path, shard: Shard | None, advice: str
) -> None:
    """Defect 1035: if the table of a shard had other partitions than conf/, the advice was to re-snapshot the shard. But the snapshot of a
    shard does not create the table again, and failed with the same advice.
    """
    columns = tuple(LakeColumn(name=name, type="string") for name in ("id", SHARD.column))
    deltalake.DeltaTable.create(tmp_path / "orders", pa.schema([(each.name, pa.string()) for each in columns]))
    target = TableTarget(path=str(tmp_path / "orders"), layout=Layout(partition_by=(SHARD.column,)), shard=shard)
    table = DeltaTable("shop_1.orders", target.path, "app", {}, shard)
    table.refresh()
    with pytest.raises(TableError) as caught:
        schema_statements(table, target, columns, ("id",), "owner")
    assert f"remove the setting from conf/, or {advice}" in str(caught.value)


@pytest.mark.found
@pytest.mark.parametrize(
    ("shard", "there", "advice"),
    [
        (None, pa.string(), "move the Delta table away and re-snapshot it"),
        (SHARD, pa.string(), "Give the column one type in all shards of the source, then re-snapshot this shard"),
        (SHARD, pa.int32(), "Widen the column to bigint in the Delta table (type widening)"),
    ],
    ids=["own table", "shard", "wider shard"],
)
def test_another_type_names_a_way_that_keeps_the_rows_of_other_shards_group(
    tmp_path: Path, shard: Shard | None, there: pa.DataType, advice: str
) -> None:
    """Defect 1205: if a shard got a column that another shard has with another type, the advice was to move the common table away."""
    columns = (LakeColumn(name="id", type="bigint"), LakeColumn(name=SHARD.column, type="string"))
    deltalake.DeltaTable.create(tmp_path / "orders", pa.schema([("id", there), (SHARD.column, pa.string())]))
    target = TableTarget(path=str(tmp_path / "orders"), shard=shard)
    table = DeltaTable("shop_1.orders", target.path, "app", {}, shard)
    table.refresh()
    with pytest.raises(TableError) as caught:
        schema_statements(table, target, columns, ("id",), "owner")
    assert advice in str(caught.value)
    assert ("move the Delta table away" in str(caught.value)) == (shard is None)


@pytest.mark.found
def test_a_shard_whose_snapshot_waits_for_a_wider_column_is_not_sent_to_resume_it_group() -> None:
    """Defect 1242: a new shard with a wider column is refused when its snapshot is published. The advice was `sluice schema resume`, which
    refuses a table that has not stopped.
    """
    advice = way_to_one_type(SHARD, "int", "bigint")
    assert "Then a snapshot of this shard continues by itself; if the shard has stopped, resume it" in advice


@pytest.mark.found
def test_the_empty_name_of_a_shard_is_not_advised_again_group() -> None:
    """Defect 1243: after an empty name of a shard was replaced, as its refusal advised, the advice was to restore the empty name."""
    there = {"sluice.owner:": "ours", "sluice.shardColumn": SHARD.column}
    why = undivided(SHARD, there, "/lake/orders", "ours")
    assert "Restore" not in why
    assert why.endswith("Set another `into` in conf/, so that Sluice creates a new Delta table")
