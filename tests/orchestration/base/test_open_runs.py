"""Tests that the open runs are not queried again while the storage of runs has not changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from sluice.cdc_engine import durable_files
from sluice.orchestration.sensor.runs import RunStore


@dg.job
def merge_job() -> None: ...


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    storage = {"module": "sluice.orchestration.storage", "class": "KeptSqlite", "config": {"base_dir": str(tmp_path)}}
    monkeypatch.setattr(durable_files, "RECENT_NS", 0)
    with dg.instance_for_test(overrides={"storage": {"custom": storage}}, temp_dir=str(tmp_path)) as made:
        yield made


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    get = DagsterInstance.get_run_records

    def counted(self: DagsterInstance, *given: Any, **named: Any) -> Any:
        made.append(given)
        return get(self, *given, **named)

    monkeypatch.setattr(DagsterInstance, "get_run_records", counted)
    return made


def test_open_runs_are_queried_again_after_a_run_has_changed(instance: DagsterInstance, queries: list[Any]) -> None:
    runs = RunStore(instance, "merge_job")
    assert [runs.open_runs() for _ in range(3)] == [[], [], []]
    assert len(queries) == 1
    run = instance.create_run_for_job(merge_job, status=DagsterRunStatus.STARTED)
    found = [runs.open_runs() for _ in range(2)]
    assert [[each.run_id for each in open_runs] for open_runs in found] == [[run.run_id]] * 2
    assert len(queries) == 3, "an open run is looked at each time, because the time matters too"
    instance.report_run_failed(run)
    assert [runs.open_runs() for _ in range(3)] == [[], [], []]
    assert len(queries) == 4


def test_a_storage_that_may_not_show_a_recent_change_is_queried_each_time(
    instance: DagsterInstance, queries: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "RECENT_NS", 10**18)
    runs = RunStore(instance, "merge_job")
    assert [runs.open_runs() for _ in range(2)] == [[], []]
    assert len(queries) == 2
