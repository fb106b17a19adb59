"""Tests when publications open a Spark session, without a Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.spark_jobs.errors import SparkUnavailableError, TableError
from sluice.spark_jobs.fence import BY_HAND, Fence
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.snapshot import spark_on_demand
from sluice.spark_jobs.snapshot.publish import publish_snapshot
from sluice.spark_jobs.snapshot.spark_on_demand import SparkOnDemand
from tests.spark.snapshot.test_whole_files_snapshot import SINCE, reading_in


class Session:
    """Replaces a Spark session. Every statement fails, like a statement that Spark refuses."""

    fence: Fence

    def defaults_of_tables(self) -> tuple[str, ...]:
        return ()

    def expect(self, _: int) -> None:
        raise ValueError("refused")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns what is opened and released."""
    reported = list[str]()

    @contextlib.contextmanager
    def open_sessions(_settings: SparkSettings, _count: int, _fence: Fence) -> Iterator[list[Any]]:
        reported.append("opened")
        yield [Session()]
        reported.append("released")

    monkeypatch.setattr(spark_on_demand, "open_sessions", open_sessions)
    return reported


def test_the_tables_of_a_group_use_one_session_and_one_that_needs_spark_does_not_fail_the_others_snapshot(
    tmp_path: Path, opened: list[str]
) -> None:
    spark = SparkOnDemand(SparkSettings())
    for number in range(3):
        reading = reading_in(tmp_path, name=f"shop.t{number}")
        reading.chunk(1, [{"id": 1, "value": "read"}])
        merge = "spark" if number == 1 else "auto"
        given = reading.publication(100, SINCE, merge=merge)
        if merge == "spark":
            with pytest.raises(TableError, match="refused"):
                publish_snapshot(given, spark, fence=BY_HAND, records=reading.records)
        else:
            assert publish_snapshot(given, spark, fence=BY_HAND, records=reading.records).way == "files"
    # The first publication opens a session to read the default properties. The second one fails, so it releases the session. The third one
    # needs no session.
    assert opened == ["opened", "released"]
    spark.release()
    assert opened == ["opened", "released"]


def test_default_properties_are_read_once_for_all_publications_of_a_snapshot_run(opened: list[str]) -> None:
    spark = SparkOnDemand(SparkSettings())
    for _ in range(3):
        spark.begin(BY_HAND)
        assert spark.defaults_of_tables() == ()
        spark.release()
    assert opened == ["opened", "released"]


def test_fault_sessions_of_a_killed_run_are_ended_before_a_table_of_a_snapshot_is_published_without_spark(
    tmp_path: Path, opened: list[str]
) -> None:
    """A statement that continues in Spark could replace the table that is published from files."""
    file = tmp_path / "sessions.json"
    settings = SparkSettings(sessions_file=file)
    spark = SparkOnDemand(settings)
    spark.begin(BY_HAND)
    assert opened == []
    file.write_text(json.dumps({"remote": settings.remote, "sessions": [str(uuid.uuid4())]}))
    spark.begin(BY_HAND)
    assert opened == ["opened"], "opening a session ends those in the file"
    spark.release()
    SparkOnDemand(dataclasses.replace(settings, master="local[1]")).begin(BY_HAND)
    assert opened == ["opened", "released"], "the Spark of a process ends with it"


def test_each_publication_of_a_snapshot_checks_its_own_fence(opened: list[str]) -> None:
    spark, late = SparkOnDemand(SparkSettings()), Fence(lambda: "the lock is lost")
    spark.begin(BY_HAND)
    session = spark.session
    assert opened == ["opened"]
    spark.begin(late)
    assert session.fence is late


def test_a_spark_that_does_not_answer_fails_no_table_of_a_snapshot_that_does_not_need_it(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = SparkOnDemand(SparkSettings())
    spark.defaults_of_tables()
    spark.release()
    assert opened == ["opened", "released"]

    def away(*_: Any) -> Any:
        raise SparkUnavailableError("no Spark Connect server answers")

    monkeypatch.setattr(spark_on_demand, "open_sessions", away)
    for merge in ("spark", "auto"):
        reading = reading_in(tmp_path, name=f"shop.{merge}")
        reading.chunk(1, [{"id": 1, "value": "read"}])
        given = reading.publication(100, SINCE, merge=merge)
        if merge == "spark":
            with pytest.raises(SparkUnavailableError):
                publish_snapshot(given, spark, fence=BY_HAND, records=reading.records)
        else:
            assert publish_snapshot(given, spark, fence=BY_HAND, records=reading.records).way == "files"
