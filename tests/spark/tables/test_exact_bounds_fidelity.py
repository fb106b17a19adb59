"""Tests that no row is skipped because of wrong bounds in the log, for numbers with more digits than a float has,
such as BIGINT UNSIGNED.
"""

from __future__ import annotations

import decimal
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.backfill.into import PastState, build
from sluice.spark_jobs.backfill.swap import read_rebuilt, swap
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.rule import MaintenanceAct
from sluice.spark_jobs.maintain.tables import MaintainedTable, looked_at, optimize
from sluice.spark_jobs.session import LakeSession, SparkSettings
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables import exact_bounds
from sluice.spark_jobs.tables.delta_table import DeltaTable
from sluice.spark_jobs.tables.exact_bounds import writer_properties
from tests.spark.conftest import Lake
from tests.spark.side_tables.fix_side_tables import LoggedTable
from tests.spark.staged import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Changes,
    Image,
    Records,
    Schema,
    SchemaChange,
)

KEYS = (2**53 + 1, 2**62 + 1, 2**64 - 1)
PRICE = decimal.Decimal("123456789012345.67")
SCHEMA = Schema({"id": "decimal(20,0)", "price": "decimal(17,2)", "n": "int"}, key=("id",))


@pytest.fixture(scope="module")
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark_server.url).create()
    yield made
    made.stop()


def image(operation: int, index: int, key: int, n: int) -> Image:
    return Image(operation, index, {"id": decimal.Decimal(key), "price": PRICE, "n": n})


def found(path: str, condition: str) -> int:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    rows: Any = pa.table(query.execute(f"SELECT count(*) AS n FROM t WHERE {condition}").read_all())
    return int(rows["n"][0].as_py())


def test_rows_of_large_numbers_are_found_wherever_deltalake_wrote_them(tmp_path: Path) -> None:
    shop = LoggedTable(tmp_path)
    first = [image(INSERT, 16 * index, key, 0) for index, key in enumerate(KEYS, start=1)]
    then = [image(UPDATE_BEFORE, 160, KEYS[0], 0), image(UPDATE_AFTER, 160, KEYS[0], 1), image(DELETE, 176, KEYS[1], 0)]
    for images in (first, then):
        staged = shop.stage(Changes(SCHEMA, images, log=images))
        shop.merge(staged)
        shop.write(staged)
    current_state, log, history = shop.target.path, shop.target.change_log, shop.target.history
    exact = f"arrow_cast('{PRICE}', 'Decimal128(17, 2)')"
    for key, there in zip(KEYS, (1, 0, 1), strict=True):
        same = f"id = arrow_cast('{key}', 'Decimal128(20, 0)')"
        assert found(current_state, same) == there, key
        assert found(history, f"{same} AND is_current") == there
        assert found(log, f"after['id'] = arrow_cast('{key}', 'Decimal128(20, 0)')") >= 1
    assert (found(current_state, f"price = {exact}"), found(history, f"price = {exact}")) == (2, 4)
    for path, columns in (
        (current_state, ("id", "price")),
        (history, ("id", "price")),
        (log, ("after.id", "before.id")),
    ):
        bounds = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))
        reported = [
            bounds[f"min.{name}"].null_count == bounds.num_rows
            for name in columns
            if f"min.{name}" in bounds.column_names
        ]
        assert all(reported), path
    assert pa.table(deltalake.DeltaTable(current_state).get_add_actions(flatten=True))["min.n"].to_pylist() == [0]


def test_fidelity_columns_that_a_float_holds_keep_their_bounds() -> None:
    fields: list[Any] = [("id", pa.int64()), ("price", pa.decimal128(15, 2)), ("at", pa.timestamp("us", "UTC"))]
    plain = pa.schema(fields)
    assert writer_properties(plain) is None
    assert writer_properties(pa.schema([*plain, pa.field("big", pa.decimal128(16, 0))])) is not None


def test_fidelity_files_are_found_by_bounds_above_all_signed_numbers(tmp_path: Path) -> None:
    """Tests keys above 2^63 - 1. Arrow cannot compare a decimal with an integer of 64 bits or more, so merges of tables with such keys once
    failed permanently.
    """
    rows = pa.table({"id": pa.array([decimal.Decimal(2**64 - 9), decimal.Decimal(2**64 - 5)], pa.decimal128(20, 0))})
    deltalake.write_deltalake(tmp_path / "t", rows)
    commit = next((tmp_path / "t" / "_delta_log").glob("*.json"))
    wrong, right = f"{2**63 - 1}", (f"{2**64 - 9}", f"{2**64 - 5}")
    reported = commit.read_text()
    assert reported.count(wrong) == 2
    first, then = reported.index(wrong) < reported.index("maxValues"), reported
    for bound in right if first else reversed(right):
        then = then.replace(wrong, bound, 1)
    commit.write_text(then)
    table = DeltaTable("shop.orders", str(tmp_path / "t"), "app", {})
    table.refresh()
    met = [table.reach("id", first, last).files for first, last in ((2**64 - 6, 2**64 - 1), (2**64 - 4, 2**64 - 1))]
    assert met == [1, 0]
    assert table.reach("id", "no number", "none").files == 1


BIG = 7210123456789012345
SWAPPED = Schema({"id": "decimal(20,0)", "price": "decimal(17,2)", "n": "int"}, key=("id",))
BEFORE = Schema({"old": "decimal(20,0)", "price": "decimal(17,2)", "n": "int"}, key=("old",))
NARROW = Schema({"id": "bigint", "price": "decimal(17,2)", "n": "int", "gone": "int"}, key=("id",))
ALTERED = {
    "shop.renamed": (
        BEFORE,
        SchemaChange(50, SWAPPED, ({"kind": "rename", "column": "old", "plan": "apply", "new_name": "id"},)),
    ),
    "shop.rewritten": (
        NARROW,
        SchemaChange(
            50,
            SWAPPED,
            (
                {"kind": "drop", "column": "gone", "plan": "apply", "new_name": ""},  # Without it there is no mapping.
                {"kind": "widen", "column": "id", "plan": "rewrite", "new_name": ""},
            ),
        ),
    ),
}


def rows_of(schema: Schema, operation: int, index: int, *keys: int, n: int = 0) -> Changes:
    key = schema.key[0]
    typed = decimal.Decimal if schema.columns[key].startswith("decimal") else int
    values = [{**dict.fromkeys(schema.columns), key: typed(each), "price": PRICE, "n": n} for each in keys]
    return Changes(schema, [Image(operation, index + at, each) for at, each in enumerate(values)])


@pytest.fixture(scope="module")
def originals(spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Returns a lake with tables that Spark made and altered, so that their key has another name in their files than in the table."""
    lake = Lake(tmp_path_factory.mktemp("mapped"), SparkSettings(remote=spark_server.url), "spark")
    lake.merge({name: [rows_of(before, INSERT, 1, 1, 2), altered] for name, (before, altered) in ALTERED.items()})
    return lake


def mapped(lake: Lake, originals: Lake, how: str) -> str:
    """Copies a table of `originals` into a lake, and returns its path. Spark would take ten seconds to make the table again."""
    lake.way = "small"
    shutil.copytree(originals.path(how), lake.path(how))
    return lake.target(how).path


def by_every_reader(session: SparkSession, path: str, key: int) -> list[int]:
    """Returns how many rows of a key Spark, DuckDB and deltalake find."""
    connection = duckdb.connect()
    connection.execute(f"LOAD '{next(Path(duckdb_extension_delta.__file__).parent.rglob('delta.duckdb_extension'))}'")
    duck = connection.sql(f"SELECT count(*) FROM delta_scan('{path}') WHERE id = {key}::DECIMAL(20,0)").fetchall()
    spark = session.sql(f"SELECT count(*) FROM delta.`{path}` WHERE id = CAST('{key}' AS DECIMAL(20,0))").collect()
    return [int(spark[0][0]), int(duck[0][0]), found(path, f"id = arrow_cast('{key}', 'Decimal128(20, 0)')")]


@pytest.mark.spark
@pytest.mark.found
@pytest.mark.parametrize("how", ALTERED)
def test_small_merges_of_mapped_tables_leave_no_rounded_bounds(
    lake: Lake, originals: Lake, session: SparkSession, how: str
) -> None:
    """Defect 1: a small merge of a table with column mapping wrote rounded bounds, and the next merge doubled the key."""
    path = mapped(lake, originals, how)
    ways = [lake.merge({how: [rows_of(SWAPPED, INSERT, 100, 3)]})[how].way]
    ways += [lake.merge({how: [rows_of(SWAPPED, INSERT, 200, BIG, BIG + 1, BIG + 2)]})[how].way]
    assert ways == ["spark", "small"], "Spark checks the table once"
    assert by_every_reader(session, path, BIG) == [1, 1, 1]
    for way in ("spark", "small"):
        lake.way = way
        index = 300 if way == "spark" else 400
        lake.merge({how: [rows_of(SWAPPED, UPDATE_AFTER, index, BIG, n=index)]})
        lake.merge({how: [rows_of(SWAPPED, DELETE, index + 50, BIG + 1 + (way == "small"))]})
        assert by_every_reader(session, path, BIG) == [1, 1, 1]
    assert lake.rows(how, "id", "n") == [(1, 0), (2, 0), (3, 0), (BIG, 400)]


@pytest.mark.spark
@pytest.mark.found
def test_files_with_rounded_bounds_are_rewritten_before_the_next_merge(
    lake: Lake, originals: Lake, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test for defect 1: a table that an earlier version left with rounded bounds is repaired once, also after a
    crash during the repair.
    """
    path = rounded_by_an_earlier_version(lake, originals, monkeypatch)
    assert by_every_reader(session, path, BIG) != [1, 1, 1], "the fault that is repaired"
    reading = deltalake.DeltaTable(path)
    whole = LakeSession.commit

    def die(merging: LakeSession, name: str, statement: str) -> None:
        if exact_bounds.EXACT_PROPERTY in statement:
            raise ConnectionError("cut off")
        whole(merging, name, statement)

    monkeypatch.setattr(LakeSession, "commit", die)
    changed = {"shop.renamed": [rows_of(SWAPPED, UPDATE_AFTER, 300, BIG, n=1), rows_of(SWAPPED, DELETE, 310, BIG + 1)]}
    with pytest.raises(MergeError):
        lake.merge(changed)
    assert by_every_reader(session, path, BIG) == [1, 1, 1]
    monkeypatch.setattr(LakeSession, "commit", whole)
    assert lake.merge(changed)["shop.renamed"].way == "spark"
    assert lake.rows("shop.renamed", "id", "n") == [(1, 0), (2, 0), (BIG, 1)]
    assert {by_every_reader(session, path, key)[0] for key in (1, 2, BIG)} == {1}
    old: Any = pa.table(deltalake.QueryBuilder().register("t", reading).execute("SELECT id FROM t").read_all())
    assert old.num_rows == 4, "who reads the version of before still can"
    optimizes = [each["operation"] for each in lake.log("shop.renamed").history()].count("OPTIMIZE")
    assert lake.merge({"shop.renamed": [rows_of(SWAPPED, INSERT, 400, BIG + 5)]})["shop.renamed"].way == "small"
    assert [each["operation"] for each in lake.log("shop.renamed").history()].count("OPTIMIZE") == optimizes == 1


@pytest.mark.spark
@pytest.mark.found
def test_maintenance_rewrites_files_with_rounded_bounds(
    lake: Lake, originals: Lake, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test for defect 1: maintenance repairs a table with rounded bounds even if no change arrives for it."""
    path = rounded_by_an_earlier_version(lake, originals, monkeypatch)
    owner = Owner(ledger_id="0123456789ab", destination="shop", table="shop.renamed")
    table = MaintainedTable(owner=owner, path=path, key="id", fence=BY_HAND)
    done = optimize(lake.spark, table)
    assert done is not None
    assert (done.before.rounded_files, done.after.rounded_files) == (1, 0)
    assert "are rounded" in done.reason
    assert by_every_reader(session, path, BIG) == [1, 1, 1]
    later = looked_at(table)
    assert later is not None
    assert later.act == MaintenanceAct.NOTHING


def rounded_by_an_earlier_version(lake: Lake, originals: Lake, monkeypatch: pytest.MonkeyPatch) -> str:
    """Creates a mapped table with a file whose bounds deltalake rounded, as it does without `writer_properties`."""
    path = mapped(lake, originals, "shop.renamed")
    with monkeypatch.context() as earlier:
        earlier.setattr(exact_bounds, "may_be_rounded", lambda _table: False)
        log = deltalake.DeltaTable(path)
        rows = pa.table(
            {
                "id": pa.array([decimal.Decimal(BIG), decimal.Decimal(BIG + 1)], pa.decimal128(20, 0)),
                "price": pa.array([PRICE, PRICE], pa.decimal128(17, 2)),
                "n": pa.array([0, 0], pa.int32()),
                "_sluice_order_key": pa.array([200, 201]),
                "_sluice_commit_time": pa.array([0, 0], pa.timestamp("us", "UTC")),
                "_sluice_operation": pa.array(["insert", "insert"]),
            }
        )
        deltalake.write_deltalake(log, rows, mode="append")
    return path


@pytest.mark.spark
@pytest.mark.found
def test_columns_that_swapped_their_names_are_judged_by_their_own_bounds(lake: Lake, session: SparkSession) -> None:
    """Defect 1: statistics contain physical names. If a key column took the name of another column, it was compared with that column's
    bounds.
    """
    ab = Schema({"id": "bigint", "other": "bigint"}, key=("id",))
    swap = tuple(
        {"kind": "rename", "column": old, "plan": "apply", "new_name": new}
        for old, new in (("id", "other"), ("other", "id"))
    )
    first = Changes(ab, [Image(INSERT, key, {"id": key, "other": key + 1000}) for key in range(1, 4)])
    lake.way = "spark"
    lake.merge({"shop.swapped": [first, SchemaChange(50, ab, swap)]})
    table = DeltaTable("shop.swapped", lake.target("shop.swapped").path, "app", {})
    table.refresh()
    assert [table.reach("id", low, low).files for low in (1001, 1)] == [1, 0]
    lake.merge({"shop.swapped": [Changes(ab, [Image(UPDATE_AFTER, 100, {"id": 1001, "other": 7})])]})
    assert lake.rows("shop.swapped", "id", "other") == [(1001, 7), (1002, 2), (1003, 3)]


def test_fidelity_nested_columns_of_mapped_tables_have_no_bounds() -> None:
    """deltalake accepts no properties for nested columns, and for others only by their names in the files. So if a nested column has
    inexact bounds, bounds are switched on only for each exact column.
    """
    mapped_as = {b"delta.columnMapping.physicalName": b"col-1"}
    long: Any = pa.field("id", pa.decimal128(20, 0), metadata=mapped_as)
    plain: Any = pa.field("n", pa.int32(), metadata={b"delta.columnMapping.physicalName": b"n0"})
    nested: Any = pa.field(
        "s", pa.struct([pa.field("x", pa.decimal128(20, 0))]), metadata={b"delta.columnMapping.physicalName": b"s0"}
    )
    assert set(writer_properties(pa.schema([long, plain])).column_properties) == {"col-1"}
    assert set(writer_properties(pa.schema([nested, plain])).column_properties) == {"n0"}


@pytest.mark.spark
@pytest.mark.found
def test_a_past_state_of_a_mapped_table_is_built_and_swapped_in(
    lake: Lake, originals: Lake, session: SparkSession, tmp_path: Path
) -> None:
    """Defect 1: `backfill --into` failed for a table with column mapping, and the swap wrote rounded bounds into it."""
    path = mapped(lake, originals, "shop.renamed")
    lake.merge({"shop.renamed": [rows_of(SWAPPED, INSERT, 100, BIG, BIG + 1)]})
    rebuilt_path, name = str(tmp_path / "past"), "shop.renamed"
    reported = {"past_of": name, "ledger": "0123456789ab", "version": 0, "up_to": {"epoch": 1}}
    past = PastState(
        name=name,
        base=deltalake.DeltaTable(path),
        images=None,
        key=("id",),
        path=rebuilt_path,
        description="as it was",
        folder=tmp_path,
        record=reported,
        storage_options={},
    )
    assert build(past, BY_HAND) == 4
    owner = Owner(ledger_id="0123456789ab", destination="shop", table=name)
    lake.merge({name: [rows_of(SWAPPED, DELETE, 200, BIG)]})
    live = DeltaTable(name, path, app_id_of(owner), {})
    live.refresh()
    swap(live, owner, read_rebuilt(rebuilt_path, {}), Records(), BY_HAND, run="r")
    assert by_every_reader(session, path, BIG) == by_every_reader(session, rebuilt_path, BIG) == [1, 1, 1]
    lake.merge({name: [rows_of(SWAPPED, UPDATE_AFTER, 300, BIG, n=5)]})
    assert lake.rows(name, "id", "n") == [(1, 0), (2, 0), (BIG, 5), (BIG + 1, 0)]
