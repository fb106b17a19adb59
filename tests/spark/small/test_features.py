"""Tests small merges into tables that use features of Delta, such as deletion vectors and column mapping. The rows that Spark reads back
are the expected result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.batch_manifest.table_report import TableReport
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.durable_lake import LAST_CHECKPOINT
from sluice.spark_jobs.tables.marked_rows import marked_rows
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema

pytestmark = pytest.mark.spark

TABLE = "shop.orders"
ORDERS = Schema({"id": "bigint", "name": "string", "paid": "decimal(10,2)", "at": "timestamp_ntz"}, key=("id",))
COUNT = 40
# The number of rows that deletion vectors mark at each version. A merge by Spark marks the deleted rows. The next small merge rewrites the
# file without the marked rows.
MARKS = [0, 0, 3, 0, 2, 0]


@pytest.fixture(scope="module")
def session(spark_server: SparkConnectServer) -> Iterator[SparkSession]:
    made = SparkSession.builder.remote(spark_server.url).create()
    yield made
    made.stop()


def image(operation: int, order_key: int, key: int, name: str) -> Image:
    return Image(operation, order_key, {"id": key, "name": name})


def by_spark(session: SparkSession, lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    rows = session.sql(f"SELECT {', '.join(columns)} FROM delta.`{lake.target(TABLE).path}`").collect()
    return sorted(tuple(row) for row in rows)


def filled(lake: Lake, **options: Any) -> dict[int, str]:
    """Creates a table with Spark and inserts COUNT rows. Returns the name of each row by its key."""
    lake.way = "spark"
    lake.merge({TABLE: [Changes(ORDERS, [image(INSERT, 1 + key, key, f"n{key}") for key in range(COUNT)])]}, **options)
    lake.way = "small"
    return {key: f"n{key}" for key in range(COUNT)}


def small(lake: Lake, images: list[Image], expected: dict[int, str], **options: Any) -> None:
    report = lake.merge({TABLE: [Changes(ORDERS, images)]}, **options)[TABLE]
    assert report.way == "small", report.reason
    for each in images:
        expected.pop(each.values["id"], None)
        if each.operation != DELETE:
            expected[each.values["id"]] = each.values["name"]
    reports_its_size(lake, report, expected)


def reports_its_size(lake: Lake, report: TableReport, expected: dict[int, str]) -> None:
    """Requires that the report has the number of rows without the marked ones, and the bytes of the files."""
    path, files = Path(lake.target(TABLE).path), [Path(each).name for each in lake.log(TABLE).file_uris()]
    assert report.table_rows == len(expected)
    assert report.table_bytes == sum((path / name).stat().st_size for name in files)


@pytest.mark.usefixtures("marks_rows")
def test_rows_that_deletion_vectors_mark_stay_deleted(lake: Lake, session: SparkSession) -> None:
    expected = filled(lake)
    for start, marked in ((100, range(3)), (200, range(10, 12))):
        lake.way = "spark"
        images = [image(DELETE, start + key, key, "") for key in marked]
        report = lake.merge({TABLE: [Changes(ORDERS, images)]})[TABLE]
        lake.way = "small"
        expected = {key: name for key, name in expected.items() if key not in marked}
        reports_its_size(lake, report, expected)
        assert list(Path(lake.target(TABLE).path).glob("deletion_vector*"))
        # One row that a deletion vector marks is inserted again, one row is updated, one is deleted, and one is new.
        changes = [
            image(INSERT, start + 51, marked[0], "again"),
            image(UPDATE_AFTER, start + 52, start // 100 + 20, "x"),
        ]
        changes += [image(DELETE, start + 53, start // 100 + 30, ""), image(INSERT, start + 54, start, "new")]
        small(lake, changes, expected)
        assert by_spark(session, lake, "id", "name") == sorted(expected.items())
        assert lake.rows(TABLE, "id", "name") == sorted(expected.items())
    version, path = lake.log(TABLE).version(), lake.target(TABLE).path
    marks = [marked_rows(path, each) for each in range(version + 1)]
    for summary in Path(path, "_delta_log").glob("*.crc"):
        summary.unlink()
    assert marks == [marked_rows(path, each) for each in range(version + 1)] == MARKS, "commits say what summaries say"


def test_columns_that_are_mapped_keep_their_values_and_their_statistics(lake: Lake, session: SparkSession) -> None:
    expected = filled(lake)
    table = f"delta.`{lake.target(TABLE).path}`"
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    # Two columns swap their names, but not their types.
    for statement in ("name TO other", "paid TO name", "other TO paid"):
        session.sql(f"ALTER TABLE {table} RENAME COLUMN {statement}")
    session.sql(f"ALTER TABLE {table} ADD COLUMNS (more STRING)")
    renamed = Schema(
        {"id": "bigint", "paid": "string", "name": "decimal(10,2)", "at": "timestamp_ntz", "more": "string"}, ("id",)
    )
    images = [
        Image(UPDATE_AFTER, 101, {"id": 1, "paid": "x", "name": 5, "more": "m"}),
        Image(DELETE, 102, {"id": 2}),
        Image(INSERT, 103, {"id": 900, "paid": "new", "name": 6, "more": "n"}),
    ]
    report = lake.merge({TABLE: [Changes(renamed, images)]})[TABLE]
    assert report.way == "small", report.reason
    wanted: dict[int, tuple[Any, ...]] = {key: (name, None, None) for key, name in expected.items() if key != 2}
    wanted |= {1: ("x", 5, "m"), 900: ("new", 6, "n")}
    assert by_spark(session, lake, "id", "paid", "name", "more") == sorted((key, *row) for key, row in wanted.items())
    for condition in ("id = 900", "more = 'n'", "paid = 'new'", "name = 6"):  # Files are skipped by the physical names.
        found = session.sql(f"SELECT id FROM {table} WHERE {condition}").collect()
        assert [row[0] for row in found] == [900]
    lake.way = "spark"
    lake.merge(
        {TABLE: [Changes(renamed, [Image(UPDATE_AFTER, 201, {"id": 900, "paid": "s"}), Image(DELETE, 202, {"id": 1})])]}
    )
    assert [row for row in by_spark(session, lake, "id", "paid") if row[0] in {1, 900}] == [(900, "s")]


@pytest.mark.usefixtures("marks_rows")
def test_a_checkpoint_by_either_is_read_by_both(lake: Lake, session: SparkSession) -> None:
    expected = filled(lake)
    table, log = f"delta.`{lake.target(TABLE).path}`", Path(lake.target(TABLE).path) / "_delta_log"
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for number in range(1, 9):
        lake.way = "spark" if number % 3 == 0 else "small"
        changes = [
            image(UPDATE_AFTER, 100 * number, number, f"at {number}"),
            image(DELETE, 100 * number + 1, 20 + number, ""),
        ]
        lake.merge({TABLE: [Changes(ORDERS, changes)]})
        expected[number] = f"at {number}"
        del expected[20 + number]
        assert by_spark(session, lake, "id", "name") == sorted(expected.items())
        assert lake.rows(TABLE, "id", "name") == sorted(expected.items())
    last = json.loads((log / LAST_CHECKPOINT).read_text())["version"]
    assert last >= lake.log(TABLE).version() - 2
    for commit in log.glob("*.json"):  # The table must be readable from the checkpoint alone.
        if int(commit.stem) < last:
            commit.unlink()
    fresh = SparkSession.builder.remote(lake.spark.remote).create()
    try:
        assert by_spark(fresh, lake, "id", "name") == sorted(expected.items())
        small(lake, [image(UPDATE_AFTER, 901, 1, "last")], expected)
        assert by_spark(fresh, lake, "id", "name") == sorted(expected.items())
    finally:
        fresh.stop()


def test_dates_before_the_gregorian_calendar_are_read_as_they_were(lake: Lake, session: SparkSession) -> None:
    days = Schema({"id": "bigint", "day": "date", "at": "timestamp_ntz"}, key=("id",))
    import datetime as dt  # noqa: PLC0415

    old, at = dt.date(1, 1, 1), dt.datetime(1500, 2, 3, 4, 5, 6)  # noqa: DTZ001  of no zone
    lake.way = "spark"
    lake.merge({TABLE: [Changes(days, [Image(INSERT, 1, {"id": 1, "day": old, "at": at})])]})
    lake.way = "small"
    assert (
        lake.merge({TABLE: [Changes(days, [Image(INSERT, 2, {"id": 2, "day": old, "at": at})])]})[TABLE].way == "small"
    )
    assert by_spark(session, lake, "id", "day", "at") == [(1, old, at), (2, old, at)]
