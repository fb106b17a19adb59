"""Provides programs that read a Delta table without Sluice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from tests.spark.readers.locations import Location

Rows = list[tuple[Any, ...]]
Reader = Callable[[Location, str], Rows]  # Reads the table at a path below the location's root.
SPARK35 = "Spark 3.5"


def by_duckdb(there: Location, path: str) -> Rows:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in there.environment.items():
            patch.setenv(name, value)
        return there.connect_duckdb().sql(f"SELECT * FROM delta_scan('{there.for_duckdb(path)}')").fetchall()


def by_query_builder(there: Location, path: str) -> Rows:
    builder = deltalake.QueryBuilder().register("asked", _opened(there, path))
    table: Any = pa.table(builder.execute("SELECT * FROM asked").read_all())
    return [tuple(row.values()) for row in table.to_pylist()]


def by_dataset(there: Location, path: str) -> Rows:
    return [tuple(row.values()) for row in _opened(there, path).to_pyarrow_table().to_pylist()]


def by_polars(there: Location, path: str) -> Rows:
    options = dict(there.options) or None
    return pl.scan_delta(f"{there.root}/{path}", storage_options=options).collect().rows()


def _opened(there: Location, path: str) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(f"{there.root}/{path}", storage_options=dict(there.options) or None)


# The fixture `readers` adds a Spark 3.5.
READERS: dict[str, Reader] = {
    "DuckDB": by_duckdb,
    "deltalake QueryBuilder": by_query_builder,
    "deltalake pyarrow": by_dataset,
    "Polars": by_polars,
}
