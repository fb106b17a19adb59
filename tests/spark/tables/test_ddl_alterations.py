"""Tests Delta tables that follow alterations of their source: columns are added, widened, renamed, dropped, converted.

All stories are merged in one batch, with data of the tables before and after their alterations. Each test looks at one table.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.merging.merge import merge_table
from sluice.spark_jobs.session import LakeSession, SparkSettings, open_sessions
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange, Segment

pytestmark = pytest.mark.spark

KEY = ("id",)


def schema(**columns: str) -> Schema:
    return Schema({"id": "bigint", **columns}, key=KEY)


def alteration(kind: str, column: str, plan: str = "apply", new_name: str = "") -> dict[str, str]:
    return {"kind": kind, "column": column, "plan": plan, "new_name": new_name}


def rows(of: Schema, start: int, operation: int, *values: tuple[Any, ...]) -> Changes:
    names = tuple(of.columns)
    return Changes(
        of, [Image(operation, start + index, dict(zip(names, row, strict=True))) for index, row in enumerate(values)]
    )


def story(before: Schema, after: Schema, altered: SchemaChange, *values: tuple[Any, ...]) -> list[Segment]:
    """Returns the segments of one table: inserts of rows 1 and 2, the alteration at order key 10, an update of row 2, and an insert of row
    3. `values` has one tuple for each of these four images.
    """
    old, new = values[:2], values[2:]
    return [
        rows(before, 1, INSERT, *old),
        altered,
        rows(after, 11, UPDATE_AFTER, new[0]),
        rows(after, 12, INSERT, new[1]),
    ]


AB, B = schema(a="int", b="string"), schema(b="int")
MANY = schema(x="int", y="int", kept="string", gone="string", wide="int", text="string", texts="string")
MANY_AFTER = schema(y="int", x="int", wide="bigint", text="int", texts="int", new="string")
WIDE = schema(a="int", d="decimal(10,2)", f="float", t="date", u="bigint")
WIDE_AFTER = Schema(
    {"id": "bigint", "a": "bigint", "d": "decimal(12,2)", "f": "double", "t": "timestamp_ntz", "u": "decimal(20,0)"},
    KEY,
)
RETYPED = schema(kept="string", wide="int", text="string", same="string")
RETYPED_AFTER = schema(wide="bigint", text="int", same="string", new="string", empty="string")
AGAIN = schema(a="int", b="int")
ROWS = ((1, 10, "x"), (2, 20, "y"), (2, 21), (3, 30))
STORIES: dict[str, list[Segment]] = {
    "ddl.many": story(
        MANY,
        MANY_AFTER,
        SchemaChange(
            10,
            MANY_AFTER,
            (
                *(alteration("drop", "kept", "keep"), alteration("drop", "gone")),
                *(alteration("rename", "x", new_name="y"), alteration("rename", "y", new_name="x")),
                *(alteration("widen", "wide", "rewrite"), alteration("convert", "text")),
                *(alteration("convert", "texts", "new_column"), alteration("add", "new")),
            ),
            (("new", "it's"),),
        ),
        *((1, 10, 11, "k", "g", 5, "15", "16"), (2, 20, 21, "l", "h", 6, "z", "26")),
        *((2, 22, 23, 2**40, 7, 8, None), (3, 30, 31, 32, 33, 34, "n")),
    ),
    "ddl.beside": [
        *story(
            schema(a="int"),
            B,
            SchemaChange(10, B, (alteration("rename", "a", "new_column", "b"),)),
            *((1, 10), (2, 20), (2, 21), (3, 30)),
        ),
        SchemaChange(20, Schema(B.columns, ("b",)), (alteration("key", ""),)),
        rows(Schema(B.columns, ("b",)), 21, UPDATE_AFTER, (9, 30)),
    ],
    "ddl.again": [
        *story(AB, schema(a="int"), SchemaChange(10, schema(a="int"), (alteration("drop", "b", "keep"),)), *ROWS),
        SchemaChange(20, AGAIN, (alteration("add", "b"),), (("b", "7"),)),
        rows(AGAIN, 21, INSERT, (4, 40, 44)),
        rows(AGAIN, 22, DELETE, (3, 30, 7)),
    ],
    "ddl.retyped": story(
        RETYPED,
        RETYPED_AFTER,
        SchemaChange(
            10,
            RETYPED_AFTER,
            (
                *(alteration("drop", "kept", "keep"), alteration("widen", "wide", "rewrite")),
                *(alteration("convert", "text"), alteration("add", "new"), alteration("add", "empty")),
            ),
            (("new", "it's"),),
        ),
        *((1, "k", 5, "15", "s"), (2, "l", 6, "z", "t")),
        *((2, 2**40, 8, "u", None, None), (3, 32, 33, "v", "n", "e")),
    ),
    "ddl.widened": story(
        WIDE,
        WIDE_AFTER,
        SchemaChange(10, WIDE_AFTER, tuple(alteration("widen", name) for name in "adftu")),
        *((1, 10, Decimal(1), 1.5, None, 7), (2, 20, None, None, None, None)),
        *((2, 2**40, Decimal(10**9), 1e300, None, 2**64 - 1), (3, 30, None, None, None, None)),
    ),
}


class Followed:
    """Merges STORIES into a lake as one batch. `first` has the report of each table. `merge` merges a staged batch into the same tables."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.directory = lake.stage(STORIES)
        self.first = self.merge(self.directory)

    def merge(self, directory: Any) -> dict[str, TableReport]:
        targets = {name: self.lake.target(name) for name in STORIES}
        return {report.name: report for report in merge_batch(read_staged_batch(directory), targets, self.lake.spark)}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkConnectServer) -> Followed:
    return Followed(Lake(tmp_path_factory.mktemp("ddl"), SparkSettings(remote=spark_server.url)))


EXPECTED: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "ddl.many": (
        "id, y, x, kept, wide, text, texts, texts_until_10, new",
        [
            (1, 10, 11, "k", 5, 15, None, "16", "it's"),
            (2, 22, 23, None, 2**40, 7, 8, None, None),
            (3, 30, 31, None, 32, 33, 34, None, "n"),
        ],
    ),
    "ddl.retyped": (
        "id, kept, wide, text, same, new, empty",
        [
            (1, "k", 5, 15, "s", "it's", None),
            (2, None, 2**40, 8, "u", None, None),
            (3, None, 32, 33, "v", "n", "e"),
        ],
    ),
    "ddl.beside": ("id, b, a", [(1, 10, 10), (2, 21, None), (9, 30, None)]),
    "ddl.again": ("id, a, b, b_until_20", [(1, 10, 7, "x"), (2, 21, 7, None), (4, 40, 44, None)]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_ddl_a_table_follows_its_source(followed: Followed, name: str) -> None:
    columns, expected = EXPECTED[name]
    assert followed.lake.rows(name, columns) == expected
    ours = {"_sluice_order_key", "_sluice_commit_time", "_sluice_operation"}
    assert {field.name for field in followed.lake.log(name).schema().fields} == {*columns.split(", "), *ours}


def test_ddl_a_type_is_widened_in_place(followed: Followed) -> None:
    """The table is read by Spark, because deltalake refuses tables with widened types. But deltalake can read their log."""
    types = {
        column: type_name for column, type_name in followed.first["ddl.widened"].columns if column in WIDE_AFTER.columns
    }
    assert types == WIDE_AFTER.columns
    with open_sessions(followed.lake.spark, 1) as sessions:
        path = followed.lake.target("ddl.widened").path
        found = sessions[0].spark.sql(f"SELECT id, a, d, f, t, u FROM delta.`{path}` ORDER BY id").collect()
    assert [tuple(row) for row in found] == [
        (1, 10, Decimal(1), 1.5, None, Decimal(7)),
        (2, 2**40, Decimal(10**9), 1e300, None, Decimal(2**64 - 1)),
        (3, 30, None, None, None, None),
    ]


def test_ddl_a_statement_that_only_converts_columns_is_one_commit_without_column_mapping(followed: Followed) -> None:
    """Every reader can read a table without column mapping, also Polars, which refuses column mapping."""
    table = followed.lake.log("ddl.retyped")
    operations = [commit["operation"] for commit in reversed(table.history())]
    assert [each for each in operations if each not in {"MERGE", "WRITE"}] == [
        "CREATE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
    ]
    assert "delta.columnMapping.mode" not in table.metadata().configuration
    assert "columnMapping" not in (table.protocol().reader_features or [])
    wide = pl.read_delta(table.table_uri).sort("id").select("id", "wide", "text")
    assert wide.rows() == [(1, 5, 15), (2, 2**40, 8), (3, 32, 33)]


def test_ddl_a_batch_that_comes_again_changes_nothing(followed: Followed) -> None:
    versions = {name: followed.lake.log(name).version() for name in STORIES}
    repeated = followed.merge(followed.directory)
    for begin in (0, 1, 2):  # Each segment is a batch of its own, as if the batches were divided differently.
        followed.merge(followed.lake.stage({name: segments[begin : begin + 1] for name, segments in STORIES.items()}))
    assert {name: followed.lake.log(name).version() for name in STORIES} == versions
    assert all(report.skipped for report in repeated.values())


class SessionThatBreaks(LakeSession):
    """A Spark session that is interrupted before its nth statement of a kind that changes a table."""

    def __init__(self, session: LakeSession, statements: int) -> None:
        super().__init__(session.spark)
        self.fence = session.fence
        self.left = statements

    def commit(self, name: str, statement: str) -> None:
        if statement.startswith(("ALTER", "UPDATE", "INSERT", "CREATE OR REPLACE")):
            if not self.left:
                raise ConnectionError("cut off")
            self.left -= 1
        super().commit(name, statement)


def test_ddl_a_merge_that_broke_anywhere_is_taken_up_again(followed: Followed) -> None:
    """The merge of a schema change that swaps, drops and copies columns is interrupted after each one or two of its statements, until a try
    succeeds.
    """
    name, lake = "ddl.many", followed.lake
    target = TableTarget(path=str(lake.folder / "lake" / "ddl.cut"))
    batch = read_staged_batch(lake.stage({name: STORIES[name]}))
    tries = 0
    with open_sessions(lake.spark, 1, BY_HAND) as sessions:
        while tries < 40:
            # A copy is made again if a later statement fails. With only one statement per try, the merge would never end.
            allowed = 1 + tries % 2 if tries else 0
            try:
                merge_table(SessionThatBreaks(sessions[0], allowed), batch, batch.tables[0], target)
                break
            except ConnectionError:
                tries += 1
    assert 8 < tries < 40
    columns, expected = EXPECTED[name]
    assert lake.rows("ddl.cut", columns) == expected
