"""Tests that a table's own log shows which batches made it and what happened to a row: `sluice history` and `sluice why`, on merges by
Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.batch_manifest.table_report import TableReport
from sluice.console.lake import history, life
from sluice.console.lake.history import HistoryTable
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.tables.commit_record import CommittedInterval
from tests.spark.conftest import Lake
from tests.spark.staged import (
    DELETE,
    INSERT,
    LEDGER_ID,
    TIME_US,
    UPDATE_AFTER,
    Changes,
    Image,
    Schema,
    SchemaChange,
    Segment,
    Truncate,
)

pytestmark = pytest.mark.spark

SCHEMA = Schema({"id": "bigint", "name": "string"}, key=("id",))
NAME = "shop.lives"


def image(operation: int, order_key: int, key: int, name: str) -> Image:
    return Image(operation, order_key, {"id": key, "name": name})


BATCHES: list[Sequence[Segment]] = [
    [Changes(SCHEMA, [image(INSERT, 10, 1, "a"), image(INSERT, 11, 2, "b")])],
    [Changes(SCHEMA, [image(UPDATE_AFTER, 20, 1, "A")])],
    [Changes(SCHEMA, [image(DELETE, 30, 1, "A")])],
    [Changes(SCHEMA, [image(INSERT, 40, 1, "again")])],
    [Truncate(50), Changes(SCHEMA, [image(INSERT, 60, 3, "c")])],
]


@dataclasses.dataclass
class History:
    table: HistoryTable
    reports: list[TableReport]
    history: list[CommittedInterval]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, spark_server: SparkConnectServer) -> History:
    """Merges five batches of one table, each with a run of its own name."""
    folder: Path = tmp_path_factory.mktemp("history")
    lake = Lake(folder, SparkSettings(remote=spark_server.url, sessions_file=folder / "lanes.json"))
    reports = []
    for number, segments in enumerate(BATCHES):
        staged = lake.stage({NAME: segments})
        reports += merge_batch(
            read_staged_batch(staged), {NAME: lake.target(NAME)}, lake.spark, BatchContext(run=f"run-{number}")
        )
    table = HistoryTable("shop", NAME, lake.target(NAME).path, ("id",), {})
    return History(table, reports, history.history_of(table))


def test_history_each_batch_is_an_interval_with_its_changes_and_versions(shown: History) -> None:
    ours = [each for each in shown.history if each.ours]
    assert [(each.delivery, each.run, each.inserts, each.updates, each.deletes) for each in ours] == [
        (5, "run-4", 1, 0, 0),
        (4, "run-3", 1, 0, 0),
        (3, "run-2", 0, 0, 1),
        (2, "run-1", 0, 1, 0),
        (1, "run-0", 2, 0, 0),
    ]
    newest, oldest = ours[0], ours[-1]
    assert (newest.kind, newest.rows_deleted, newest.rows_inserted) == ("truncate, changes", 1 + 1, 1)
    assert (newest.first_order_key, newest.last_order_key) == (50, 60)
    assert (oldest.ledger, oldest.epoch, oldest.table, oldest.destination) == (LEDGER_ID, 1, NAME, "shop")
    assert oldest.first_commit_time_us == TIME_US
    assert oldest.last_commit_time_us == TIME_US + 11
    for report, interval in zip(shown.reports, ours[::-1], strict=True):
        assert report.delta_version == interval.version
        assert report.delta_version_before <= interval.version_before
        assert (report.source_inserts, report.source_updates, report.source_deletes) == (
            interval.inserts, interval.updates, interval.deletes,
        )  # fmt: skip
        assert history.at(shown.history, str(interval.version)) == [interval]


def test_history_of_a_row_goes_back_over_updates_deletes_and_returns(shown: History) -> None:
    steps, gone = life.known_life(shown.table, "1")
    assert not gone
    assert [(step.happened, step.values["name"]) for step in steps] == [
        ("delete", "again"),
        ("insert", "again"),
        ("delete", "A"),
        ("update", "A"),
        ("insert", "a"),
    ]
    runs = [step.commit.run for step in steps if step.commit]
    assert runs == ["run-4", "run-3", "run-2", "run-1", "run-0"]
    assert [step.values["name"] for step in life.known_life(shown.table, "id=3")[0]] == ["c"]
    assert life.known_life(shown.table, "77") == ([], "")


@pytest.mark.found
def test_history_counts_the_changes_before_a_schema_change_once(
    tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 1053: commits that create or alter a table had the metadata of the session's previous commit. So `sluice history` counted the
    changes of this commit again, or showed those of another table.
    """
    settings = SparkSettings(remote=spark_server.url, sessions_file=tmp_path / "lanes.json", sessions=1)
    lake, wider = Lake(tmp_path, settings), Schema({**SCHEMA.columns, "more": "string"}, key=("id",))
    before, after = Changes(SCHEMA, [image(INSERT, 10, 1, "a")]), Changes(wider, [image(INSERT, 30, 2, "b")])
    altered = SchemaChange(20, wider, alterations=({"kind": "add", "column": "more", "plan": "apply"},))
    names = ("shop.altered", "shop.created")
    staged = lake.stage({names[0]: [before, altered, after], names[1]: [before]})
    merge_batch(read_staged_batch(staged), {name: lake.target(name) for name in names}, lake.spark, BatchContext())
    for name, inserts in zip(names, (2, 1), strict=True):
        found = history.history_of(HistoryTable("shop", name, lake.target(name).path, ("id",), {}))
        assert [(each.table, each.inserts) for each in found if each.ours] == [(name, inserts)]
