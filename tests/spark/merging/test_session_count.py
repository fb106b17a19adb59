"""Tests how many sessions a batch opens: the number in conf/, or the number for which Spark's task slots suffice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.run_batch import _sessions_wanted
from sluice.spark_jobs.session import SESSIONS_MAX, SparkSettings, _allowed, open_sessions, task_slots
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.spark.staged import INSERT, Changes, Image, Schema, stage

SIX: list[SmallSetting] = ["auto"] * 6


class PlanOfRange:
    """Imitates a Spark with `slots` task slots: returns the plan of a range that is split into `slots` parts. Counts the requests."""

    def __init__(self, slots: int) -> None:
        self.slots, self.requests = slots, 0

    def sql(self, _: str) -> PlanOfRange:
        self.requests += 1
        return self

    def collect(self) -> list[tuple[str]]:
        return [(f"== Physical Plan ==\n*(1) Range (0, 1000000, step=1, splits={self.slots})\n",)]


@pytest.mark.parametrize(
    ("setting", "slots", "wanted", "opened"),
    [
        (0, 2, 9, 2),
        (0, 4, 9, 2),
        (0, 12, 9, 6),
        (0, 12, 3, 3),
        (0, 512, 99, SESSIONS_MAX),
        (1, 12, 9, 1),
        (9, 2, 30, 9),
        (9, 2, 4, 4),
    ],
)
def test_as_many_sessions_are_opened_as_conf_or_the_task_slots_allow(
    setting: int, slots: int, wanted: int, opened: int
) -> None:
    assert _allowed(PlanOfRange(slots), wanted, SparkSettings(sessions=setting)) == opened


def test_the_slots_of_spark_are_queried_only_if_more_than_two_tables_need_it() -> None:
    spark = PlanOfRange(12)
    assert [_allowed(spark, wanted, SparkSettings()) for wanted in (1, 2)] == [1, 2]
    assert spark.requests == 0


def test_a_batch_wants_a_session_for_each_large_table_and_two_for_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema({"id": "bigint"}, key=("id",))
    tables = {f"shop.t{number}": [Changes(schema, [Image(INSERT, 1, {"id": 1})])] for number in range(6)}
    staged = read_staged_batch(stage(tmp_path, tables, delivery=1)).tables

    def wanted(*ways: SmallSetting) -> int:
        targets = {table.name: TableTarget(path="", merge=way) for table, way in zip(staged, ways, strict=False)}
        return _sessions_wanted(staged[: len(ways)], targets)

    assert wanted("auto") == 1
    assert wanted(*SIX) == 2
    assert wanted("spark", "spark", "spark", "spark", "auto", "small") == 4
    monkeypatch.setattr("sluice.spark_jobs.targets.ways.ROWS_MAX", 0)
    assert wanted(*SIX) == 6, "each is large now"


@pytest.mark.spark
def test_the_plan_of_a_range_shows_the_task_slots_of_a_real_spark(spark_server: SparkConnectServer) -> None:
    settings = SparkSettings(remote=spark_server.url)
    with open_sessions(settings, 1) as (session,):
        slots = task_slots(session.spark)
        parts = "SELECT count(*) AS parts FROM (SELECT DISTINCT spark_partition_id() FROM range(0, 1000000))"
        assert session.spark.sql(parts).collect()[0]["parts"] == slots
    with open_sessions(settings, 5) as sessions:
        assert len(sessions) == max(2, min(5, slots // 2))
    with open_sessions(dataclasses.replace(settings, sessions=3), 5) as sessions:
        assert len(sessions) == 3
