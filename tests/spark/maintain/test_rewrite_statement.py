"""Tests the statement that rewrites all files of a table with long decimals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.spark_jobs.tables.exact_bounds import CLUSTERING, rewrite_statement


def statement(key: str, *, partitions: tuple[str, ...] = (), features: tuple[str, ...] = ()) -> str:
    columns = {"id": ("id", "bigint"), "day": ("day", "date")}
    table: Any = SimpleNamespace(
        path="/lake/t", snapshot=SimpleNamespace(columns=columns, partitions=partitions, features=features)
    )
    return rewrite_statement(table, key).partition(" ZORDER BY ")[2]


@pytest.mark.found
@pytest.mark.parametrize("key", ["id", "ID"])
def test_rows_are_ordered_by_a_key_that_is_no_partition_column(key: str) -> None:
    """Defect 85: a key whose letter case differs from the partition column's was in ZORDER BY, which Delta refuses."""
    assert statement(key, partitions=("day",)) == "(`id`)"
    assert statement(key, partitions=("id",)) == "(`_sluice_order_key`)"


def test_a_clustered_table_keeps_its_order() -> None:
    assert not statement("id", features=(CLUSTERING,))
