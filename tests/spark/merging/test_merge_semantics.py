"""Tests how a merge applies every kind of change. The results are read without Spark.

All tables are merged in the same two batches (`Story`), because Spark's cost depends on the number of batches. Each test then checks one
table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, Owner
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.spark.conftest import Lake
from tests.spark.staged import (
    DELETE,
    INSERT,
    TIME_US,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Changes,
    Image,
    Schema,
    SchemaChange,
    Segment,
    Truncate,
)

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
# The column `name` was dropped. A column was added whose name Spark could take for a variable.
WIDER = Schema({"id": "bigint", "added ${no}": "int"}, key=("id",))
FILLED = Schema({**ORDERS.columns, "note": "string"}, key=("id",))
LOG = Schema(ORDERS.columns)
NULLABLE = Schema({"code": "string", "n": "decimal(20,0)"}, key=("code",))
VARIABLES = Schema({"code": "string", "n": "int"}, key=("code",))  # Spark could replace its keys in a statement.
NEW_LEDGER = "ba9876543210"
SOFT = {"shop.soft", "shop.soft_truncated", "shop.soft_without_rows", "shop.soft_missing_row"}


def image(operation: int, order_key: int, key: int, name: str) -> Image:
    return Image(operation, order_key, {"id": key, "name": name})


def inserted(*pairs: tuple[int, str], start: int = 1) -> Changes:
    return Changes(ORDERS, [image(INSERT, start + index, key, name) for index, (key, name) in enumerate(pairs)])


ABC = inserted((1, "a"), (2, "b"), (3, "c"))
FIRST: dict[str, Sequence[Segment]] = {
    "shop.orders": [ABC],
    "shop.swapped": [inserted((1, "a"), (2, "b"))],
    "shop.soft": [ABC],
    "shop.soft_truncated": [ABC],
    "shop.truncated": [ABC],
    "shop.without_rows": [SchemaChange(1, ORDERS)],
    "shop.soft_without_rows": [SchemaChange(1, ORDERS)],
    "shop.filled_without_rows": [SchemaChange(1, ORDERS)],
    "shop.missing_row": [SchemaChange(1, ORDERS)],
    "shop.soft_missing_row": [SchemaChange(1, ORDERS)],
    "shop.wider": [ABC],
    "shop.log": [Changes(LOG, [image(INSERT, 1, 1, "a"), image(INSERT, 2, 1, "a")])],
    "shop.codes": [
        Changes(
            NULLABLE, [Image(INSERT, 1, {"code": "it's", "n": 2**64 - 1}), Image(INSERT, 2, {"code": "\\", "n": None})]
        )
    ],
    "shop.variables": [
        Changes(
            VARIABLES,
            [
                Image(INSERT, 1, {"code": "a${env:HOME}", "n": 1}),
                Image(INSERT, 2, {"code": "z${no}", "n": 2}),
            ],
        )
    ],
}
SECOND: dict[str, Sequence[Segment]] = {
    "shop.orders": [
        Changes(
            ORDERS,
            [
                image(UPDATE_AFTER, 14, 1, "A"),
                image(DELETE, 15, 2, "b"),
                image(INSERT, 16, 4, "d"),
                image(DELETE, 17, 4, "d"),
            ],
        )
    ],
    "shop.swapped": [
        Changes(
            ORDERS,
            [
                *(image(UPDATE_BEFORE, 11, 1, "a"), image(UPDATE_AFTER, 12, 9, "a")),
                *(image(UPDATE_BEFORE, 13, 2, "b"), image(UPDATE_AFTER, 14, 1, "b")),
                *(image(UPDATE_BEFORE, 15, 9, "a"), image(UPDATE_AFTER, 16, 2, "a")),
            ],
        )
    ],
    "shop.soft": [
        Changes(
            ORDERS,
            [
                image(UPDATE_AFTER, 11, 1, "A"),
                image(DELETE, 12, 1, "A"),
                image(DELETE, 13, 2, "b"),
                image(INSERT, 14, 2, "B"),
            ],
        )
    ],
    "shop.soft_truncated": [Truncate(11), inserted((2, "again"), start=12)],
    "shop.truncated": [Changes(ORDERS, [image(DELETE, 10, 3, "c")]), Truncate(11), inserted((7, "new"), start=12)],
    "shop.without_rows": [Truncate(10), Truncate(11), inserted((7, "new"), start=12)],
    "shop.soft_without_rows": [Truncate(10), Truncate(11), inserted((7, "new"), start=12)],
    "shop.filled_without_rows": [
        SchemaChange(10, FILLED, fills=(("note", "'x'"),)),
        Changes(FILLED, [Image(INSERT, 11, {"id": 7, "name": "new", "note": "own"})]),
    ],
    "shop.missing_row": [Changes(ORDERS, [image(DELETE, 10, 3, "c")]), inserted((7, "new"), start=12)],
    "shop.soft_missing_row": [Changes(ORDERS, [image(DELETE, 10, 3, "c")]), inserted((7, "new"), start=12)],
    "shop.wider": [SchemaChange(10, WIDER), Changes(WIDER, [Image(UPDATE_AFTER, 11, {"id": 1, "added ${no}": 5})])],
    "shop.log": [
        Changes(LOG, [image(UPDATE_BEFORE, 11, 1, "a"), image(UPDATE_AFTER, 12, 1, "b"), image(DELETE, 13, 1, "a")]),
    ],
    "shop.codes": [
        Changes(
            NULLABLE, [Image(UPDATE_AFTER, 11, {"code": "it's", "n": 0}), Image(DELETE, 12, {"code": "\\", "n": None})]
        )
    ],
    "shop.variables": [
        Changes(
            VARIABLES,
            [
                Image(DELETE, 11, {"code": "a${env:HOME}", "n": 1}),
                Image(UPDATE_AFTER, 12, {"code": "z${no}", "n": 3}),
            ],
        )
    ],
}


class Story:
    """Merges both batches into a lake, and keeps the reports of each merge."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.first = self._merge(FIRST)
        self.second_batch = lake.stage(SECOND)
        self.second = self.repeat()

    def repeat(self) -> dict[str, TableReport]:
        targets = {name: self.lake.target(name, deletes="soft" if name in SOFT else "hard") for name in SECOND}
        return {
            report.name: report
            for report in merge_batch(read_staged_batch(self.second_batch), targets, self.lake.spark)
        }

    def _merge(self, tables: dict[str, Sequence[Segment]]) -> dict[str, TableReport]:
        targets = {name: self.lake.target(name, deletes="soft" if name in SOFT else "hard") for name in tables}
        return {
            report.name: report
            for report in merge_batch(read_staged_batch(self.lake.stage(tables)), targets, self.lake.spark)
        }

    def rows(self, name: str, *columns: str) -> list[tuple[object, ...]]:
        return self.lake.rows(name, *columns)


@pytest.fixture(scope="module")
def story(spark_server: SparkConnectServer, tmp_path_factory: pytest.TempPathFactory, way: SmallSetting) -> Story:
    return Story(Lake(tmp_path_factory.mktemp("story"), SparkSettings(remote=spark_server.url), way))


def test_each_table_is_merged_the_requested_way(story: Story) -> None:
    altered = {
        "shop.soft_truncated",
        "shop.truncated",
        "shop.without_rows",
        "shop.soft_without_rows",
        "shop.filled_without_rows",
        "shop.wider",
    }
    made, small = (
        {name for name, each in reports.items() if each.way == "small"} for reports in (story.first, story.second)
    )
    assert small == (set() if story.lake.way == "spark" else set(SECOND) - altered)
    assert made == (set() if story.lake.way == "spark" else set(FIRST))
    assert all(report.reason for report in story.second.values())


def test_inserts_updates_and_deletes(story: Story) -> None:
    assert story.rows("shop.orders", "id", "name", "_sluice_operation", "_sluice_order_key") == [
        (1, "A", "update", 14),
        (3, "c", "insert", 3),
    ]


def test_the_commit_time_is_that_of_the_last_change(story: Story) -> None:
    times = story.rows("shop.orders", "id", "CAST(_sluice_commit_time AS bigint)")
    assert times == [(1, TIME_US + 14), (3, TIME_US + 3)]


def test_two_keys_swapped_in_one_transaction(story: Story) -> None:
    assert story.rows("shop.swapped", "id", "name", "_sluice_operation") == [(1, "b", "update"), (2, "a", "update")]


def test_a_soft_delete_keeps_the_last_values_and_a_new_insert_clears_it(story: Story) -> None:
    rows = story.rows("shop.soft", "id", "name", "_sluice_deleted", "_sluice_operation")
    assert rows == [(1, "A", True, "delete"), (2, "B", False, "insert"), (3, "c", False, "insert")]


def test_a_truncate_ends_the_rows_before_it_and_not_those_after(story: Story) -> None:
    assert story.rows("shop.truncated", "id", "name") == [(7, "new")]


@pytest.mark.found
@pytest.mark.parametrize("name", ["shop.without_rows", "shop.soft_without_rows"])
def test_a_truncate_of_an_empty_table_changes_nothing(story: Story, name: str) -> None:
    """Defect 36: Spark commits nothing for a TRUNCATE of an empty table. The run reported a lost commit at each attempt, so the
    destination stood still.
    """
    assert story.rows(name, "id", "name") == [(7, "new")]


def test_a_column_with_a_value_is_added_to_an_empty_table(story: Story) -> None:
    assert story.rows("shop.filled_without_rows", "id", "name", "note") == [(7, "new", "own")]


def test_the_delete_of_a_missing_row_changes_nothing(story: Story) -> None:
    assert story.rows("shop.missing_row", "id", "name") == [(7, "new")]
    assert (7, "new") in story.rows("shop.soft_missing_row", "id", "name")


def test_a_truncate_marks_where_deletes_are_soft(story: Story) -> None:
    rows = story.rows("shop.soft_truncated", "id", "name", "_sluice_deleted", "_sluice_order_key")
    assert rows == [(1, "a", True, 11), (2, "again", False, 12), (3, "c", True, 11)]


def test_an_added_column_is_there_and_one_that_left_stays(story: Story) -> None:
    assert story.rows("shop.wider", "id", "name", '"added ${no}"') == [(1, "a", 5), (2, "b", None), (3, "c", None)]


def test_a_table_without_a_key_keeps_every_image(story: Story) -> None:
    assert story.rows("shop.log", "_sluice_order_key", "_sluice_operation", "name") == [
        (1, "insert", "a"),
        (2, "insert", "a"),
        (11, "update_preimage", "a"),
        (12, "update_postimage", "b"),
        (13, "delete", "a"),
    ]


def test_text_keys_with_quotes_are_met_by_their_bounds(story: Story) -> None:
    assert story.rows("shop.codes", "code", "CAST(n AS varchar)") == [("it's", "0")]


def test_keys_and_names_that_look_like_variables_of_spark_are_themselves(story: Story) -> None:
    """Spark silently replaced `${...}` in the bounds of a key, so an update became a second row and a delete had no effect."""
    assert story.rows("shop.variables", "code", "n") == [("z${no}", 3)]


def test_the_report_counts_what_delta_did(story: Story) -> None:
    first, second = story.first["shop.orders"], story.second["shop.orders"]
    assert (first.rows_inserted, first.rows_updated, first.rows_deleted) == (3, 0, 0)
    assert (second.rows_inserted, second.rows_updated, second.rows_deleted) == (0, 1, 1)
    assert (second.source_rows, second.start_order_key, second.end_order_key) == (4, 14, 17)
    assert (second.last_commit_time_us, second.skipped) == (TIME_US + 17, False)
    assert second.columns[:3] == (("id", "bigint"), ("name", "string"), ("_sluice_order_key", "bigint"))
    assert second.delta_version > first.delta_version
    assert story.second["shop.log"].rows_inserted == 3


def test_the_history_of_the_table_names_the_batch(story: Story) -> None:
    commit = story.lake.log("shop.orders").history(1)[0]
    assert json.loads(commit["userMetadata"])["destination"] == "shop"


def test_the_batch_again_after_a_kill_before_the_ack_changes_nothing(story: Story) -> None:
    before = {name: (story.lake.log(name).version(), story.rows(name, "*")) for name in SECOND}
    reports = story.repeat()
    assert all(report.skipped for report in reports.values())
    assert {name: (story.lake.log(name).version(), story.rows(name, "*")) for name in SECOND} == before


def test_identity_an_older_image_never_overwrites_a_newer_row(story: Story) -> None:
    """A ledger that took the table over has other transactions, so only the position guard protects the row."""
    older = [image(UPDATE_AFTER, 2, 3, "old"), image(DELETE, 3, 1, "old"), image(UPDATE_AFTER, 4, 3, "newer")]
    directory = story.lake.stage({"shop.orders": [Changes(ORDERS, older)]}, ledger_id=NEW_LEDGER)
    with pytest.raises(MergeError, match="belongs to the destination shop"):
        story.lake.merge_staged(directory, ["shop.orders"])
    owner = Owner(ledger_id=NEW_LEDGER, destination="shop", table="shop.orders")
    story.lake.log("shop.orders").alter.set_table_properties(
        {OWNER_PROPERTY: owner.to_text()}, raise_if_not_exists=False
    )
    story.lake.merge_staged(directory, ["shop.orders"])
    assert story.rows("shop.orders", "id", "name") == [(1, "A"), (3, "newer")]


def test_a_column_of_another_type_is_named_and_the_other_tables_are_merged(lake: Lake, way: SmallSetting) -> None:
    lake.way = way
    lake.merge({"shop.orders": [ABC]})
    other = Schema({"id": "bigint", "name": "int"}, key=("id",))
    tables = {"shop.orders": [Changes(other, [Image(INSERT, 11, {"id": 9, "name": 1})])], "shop.fine": [ABC]}
    with pytest.raises(Exception, match=r"column name is int in the source and string in the Delta table") as caught:
        lake.merge(tables)
    assert "(merged: shop.fine; not merged: shop.orders;" in str(caught.value)
    assert len(lake.rows("shop.fine", "id")) == 3
