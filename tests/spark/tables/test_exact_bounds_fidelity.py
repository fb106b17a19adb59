"""No row is passed over because the log says a bound that is none: numbers of more digits than a float has, as BIGINT UNSIGNED."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from spark_jobs.tables.delta_table import DeltaTable
from spark_jobs.tables.exact_bounds import writer_properties
from tests.spark.beside.fix_beside import Beside
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, Image, Schema

KEYS = (2**53 + 1, 2**62 + 1, 2**64 - 1)
PRICE = decimal.Decimal("123456789012345.67")
SCHEMA = Schema({"id": "decimal(20,0)", "price": "decimal(17,2)", "n": "int"}, key=("id",))


def image(operation: int, place: int, key: int, n: int) -> Image:
    return Image(operation, place, {"id": decimal.Decimal(key), "price": PRICE, "n": n})


def found(path: str, condition: str) -> int:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    rows: Any = pa.table(query.execute(f"SELECT count(*) AS n FROM t WHERE {condition}").read_all())
    return int(rows["n"][0].as_py())


def test_rows_of_large_numbers_are_found_wherever_deltalake_wrote_them(tmp_path: Path) -> None:
    shop = Beside(tmp_path)
    first = [image(INSERT, 16 * place, key, 0) for place, key in enumerate(KEYS, start=1)]
    then = [image(UPDATE_BEFORE, 160, KEYS[0], 0), image(UPDATE_AFTER, 160, KEYS[0], 1), image(DELETE, 176, KEYS[1], 0)]
    for images in (first, then):
        staged = shop.stage(Changes(SCHEMA, images, log=images))
        shop.merge(staged)
        shop.write(staged)
    mirror, log, history = shop.target.path, shop.target.change_log, shop.target.history
    exact = f"arrow_cast('{PRICE}', 'Decimal128(17, 2)')"
    for key, there in zip(KEYS, (1, 0, 1), strict=True):
        same = f"id = arrow_cast('{key}', 'Decimal128(20, 0)')"
        assert found(mirror, same) == there, key
        assert found(history, f"{same} AND is_current") == there
        assert found(log, f"after['id'] = arrow_cast('{key}', 'Decimal128(20, 0)')") >= 1
    assert (found(mirror, f"price = {exact}"), found(history, f"price = {exact}")) == (2, 4)
    for path, columns in ((mirror, ("id", "price")), (history, ("id", "price")), (log, ("after.id", "before.id"))):
        bounds = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))
        told = [
            bounds[f"min.{name}"].null_count == bounds.num_rows
            for name in columns
            if f"min.{name}" in bounds.column_names
        ]
        assert all(told), path
    assert pa.table(deltalake.DeltaTable(mirror).get_add_actions(flatten=True))["min.n"].to_pylist() == [0]


def test_fidelity_columns_that_a_float_holds_keep_their_bounds() -> None:
    fields: list[Any] = [("id", pa.int64()), ("price", pa.decimal128(15, 2)), ("at", pa.timestamp("us", "UTC"))]
    plain = pa.schema(fields)
    assert writer_properties(plain) is None
    assert writer_properties(pa.schema([*plain, pa.field("big", pa.decimal128(16, 0))])) is not None


def test_fidelity_files_are_found_by_bounds_above_all_signed_numbers(tmp_path: Path) -> None:
    """A merge of a table with such keys failed for good: Arrow compares no decimal with an int of 64 bits and more."""
    rows = pa.table({"id": pa.array([decimal.Decimal(2**64 - 9), decimal.Decimal(2**64 - 5)], pa.decimal128(20, 0))})
    deltalake.write_deltalake(tmp_path / "t", rows)
    commit = next((tmp_path / "t" / "_delta_log").glob("*.json"))
    wrong, right = f"{2**63 - 1}", (f"{2**64 - 9}", f"{2**64 - 5}")
    told = commit.read_text()
    assert told.count(wrong) == 2
    first, then = told.index(wrong) < told.index("maxValues"), told
    for bound in right if first else reversed(right):
        then = then.replace(wrong, bound, 1)
    commit.write_text(then)
    table = DeltaTable("shop.orders", str(tmp_path / "t"), "app", {})
    table.refresh()
    met = [table.reach("id", first, last).files for first, last in ((2**64 - 6, 2**64 - 1), (2**64 - 4, 2**64 - 1))]
    assert met == [1, 0]
    assert table.reach("id", "no number", "none").files == 1
