"""Tests that readers who skip files by the bounds in a footer miss no row: any values of any type, in files like the
chunks of a snapshot.
"""

from __future__ import annotations

import datetime as dt
import decimal
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.batch_manifest.values import LakeColumn
from sluice.cdc_engine.parquet_files import lake_writer
from sluice.spark_jobs.tables.file_statistics import statistics
from sluice.spark_jobs.tables.new_table import Contents, make_table

# Texts with characters that are special in JSON, in UTF-16, for readers of lines, or at the length at which statistics shorten texts.
AWKWARD = st.text(st.sampled_from('aß\U0001f600\U0010ffff\uffff\x00\x1f"\\\u2028\x85 '), min_size=28, max_size=40)
TEXTS = st.one_of(st.text(max_size=6), AWKWARD, st.text(max_size=3).map(lambda text: text + "y" * 5000))
LAST, LAST_UTC = dt.datetime.max, dt.datetime.max.replace(tzinfo=dt.UTC)  # noqa: DTZ901  without a zone


def _whole(bits: int) -> st.SearchStrategy[Any]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(precision: int, scale: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    exact = decimal.Context(prec=precision + 1)
    unscaled = st.integers(1 - 10**precision, 10**precision - 1)
    return pa.decimal128(precision, scale), unscaled.map(lambda each: decimal.Decimal(each).scaleb(-scale, exact))


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tinyint": (pa.int8(), _whole(8)),
    "smallint": (pa.int16(), _whole(16)),
    "int": (pa.int32(), _whole(32)),
    "bigint": (pa.int64(), _whole(64)),
    "float": (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    "double": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), TEXTS),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC)) | st.just(LAST_UTC)),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes() | st.just(LAST)),
    "decimal(1,0)": _decimals(1, 0),
    "decimal(7,2)": _decimals(7, 2),
    "decimal(20,0)": _decimals(20, 0),
    "decimal(38,0)": _decimals(38, 0),
    "decimal(38,38)": _decimals(38, 38),
}


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    connection.execute(f"LOAD '{extension}'")
    return connection


@pytest.mark.found
@pytest.mark.parametrize(
    "text",
    ["a" * 32 + "\U0010ffff", "a" * 32 + "\U0010ffff" * 3 + "b", "\U0010ffff" * 40],
    ids=["once", "three times", "everywhere"],
)
def test_a_text_with_the_last_character_of_unicode_after_a_shortened_bound_is_found(tmp_path: Path, text: str) -> None:
    """Defect 1028: such a text got a minimum and no maximum, and deltalake's dataset skips a file with one bound."""
    _make(tmp_path / "table", "string", pa.string(), [[""], [text]])
    table = deltalake.DeltaTable(tmp_path / "table")
    highest = [each["max.value"] for each in pa.table(table.get_add_actions(flatten=True)).to_pylist()]
    assert max(highest) >= text
    assert table.to_pyarrow_dataset().count_rows(filter=ds.field("value") == pa.scalar(text)) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), type_name=st.sampled_from([*KINDS]))
def test_a_reader_that_skips_files_finds_each_value(
    tmp_path_factory: pytest.TempPathFactory, duck: duckdb.DuckDBPyConnection, data: Any, type_name: str
) -> None:
    kind, values = KINDS[type_name]
    files = data.draw(st.lists(st.lists(values | st.none(), min_size=1, max_size=6), min_size=2, max_size=3), "files")
    path = tmp_path_factory.mktemp("bounds") / "table"
    _make(path, type_name, kind, files)
    table = deltalake.DeltaTable(path)
    for reported in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        found = files[int(Path(reported["path"]).stem)]
        known = [value for value in found if value is not None]
        assert reported["null_count.value"] == len(found) - len(known)
        if (low := reported.get("min.value")) is not None:
            assert all(low <= value for value in known), reported
        if (high := reported.get("max.value")) is not None:
            assert all(value <= high for value in known), reported
    everything = [value for found in files for value in found if value is not None]
    dataset, lazy = table.to_pyarrow_dataset(), pl.scan_delta(str(path))
    # DuckDB would take a parameter with this many digits as a DOUBLE.
    requested = f"CAST(? AS {type_name})" if type_name.startswith("decimal") else "?"
    duck_sql = f"SELECT count(*) FROM delta_scan('{path}') WHERE value = {requested}"
    for value in set(everything):
        count = sum(each == value for each in everything)
        assert dataset.count_rows(filter=ds.field("value") == pa.scalar(value, kind)) == count
        assert duck.execute(duck_sql, [_for_duck(value)]).fetchone() == (count,)
        same = pl.col("value") == pl.lit(value, dtype=lazy.collect_schema()["value"])
        assert lazy.filter(same).select(pl.len()).collect().item() == count
    shutil.rmtree(path)


def _for_duck(value: Any) -> Any:
    return format(value, "f") if isinstance(value, decimal.Decimal) else value


def _make(path: Path, type_name: str, kind: pa.DataType, files: Sequence[Sequence[Any]]) -> None:
    """Writes one data file for each list, with row groups of two rows. The other column always has bounds."""
    columns = (LakeColumn(name="value", type=type_name), LakeColumn(name="other", type="int"))
    schema = pa.schema([("value", kind), ("other", pa.int32())])

    def fill(folder: Path) -> Contents:
        added = []
        for number, values in enumerate(files):
            file = folder / f"{number}.parquet"
            with lake_writer(file, schema) as writer:
                rows = pa.table([pa.array(values, kind), pa.array(range(len(values)), pa.int32())], schema=schema)
                writer.write_table(rows, row_group_size=2)
            add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1}
            added.append({"add": {**add, "dataChange": True, "stats": statistics(pq.read_metadata(file), columns, 32)}})
        return Contents(actions=tuple(added))

    assert make_table(str(path), columns, {}, fill, check=lambda: None)
