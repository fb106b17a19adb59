"""Kills the job of small tables: its run before, during and after a commit, with a task that continues, and the Spark server.

The run is a separate process, which the test kills. A task of its job waits immediately before or after its commit until the test lets it
continue.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.session import SparkSettings
from sluice.spark_jobs.small import merge as small_merge
from sluice.spark_jobs.small import shipped
from sluice.spark_jobs.targets.ways import SmallSetting
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange, Segment
from tests.waiting import wait_for

pytestmark = pytest.mark.spark

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
LOG = Schema(ORDERS.columns)
FIRST = [Image(INSERT, 1 + key, {"id": key, "name": "x"}) for key in range(5)]
SECOND = [Image(UPDATE_AFTER, 11, {"id": 1, "name": "y"}), Image(DELETE, 12, {"id": 2, "name": "x"})]
THIRD = [Image(INSERT, 21, {"id": 2, "name": "back"}), Image(UPDATE_AFTER, 22, {"id": 1, "name": "z"})]
BOTH: dict[str, list[Segment]] = {
    "shop.keyed": [Changes(ORDERS, SECOND), SchemaChange(13, ORDERS), Changes(ORDERS, THIRD)],
    "shop.log": [Changes(LOG, SECOND), Changes(LOG, THIRD)],
}
KEYED = [(0, "x"), (1, "z"), (2, "back"), (3, "x"), (4, "x")]
KEYS_OF_LOG = [1, 2, 3, 4, 5, 11, 12, 21, 22]
BEFORE, AFTER = "before", "after"
SECONDS_MAX = 120.0


class Gate:
    """The point at which a task of the killed run waits."""

    def __init__(self, folder: Path, location: str) -> None:
        self.location, self.stands, self.is_open = location, folder / "stands", folder / "open"

    def stop_here(self, location: str) -> None:
        import time  # noqa: PLC0415  of the executor

        if location == self.location and not self.stands.exists():
            self.stands.touch()
            while not self.is_open.exists():
                time.sleep(0.02)
            self.is_open.with_name("passed").touch()

    @property
    def passed(self) -> bool:
        return self.is_open.with_name("passed").exists()


def run_with_gate(lake: Lake, directory: Path, gate: Gate) -> None:
    """Starts a run whose tasks stop at the gate."""
    commit = small_merge._SmallMerge._committed

    def gated(merge: Any, write: Any) -> Any:
        gate.stop_here(BEFORE)
        counts = commit(merge, write)
        gate.stop_here(AFTER)
        return counts

    register: Any = cloudpickle.register_pickle_by_value
    register(sys.modules[__name__])  # The executor cannot import tests.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_merge._SmallMerge, "_committed", gated)
        shipped.forget()  # An earlier merge of this process has written the code without the gate.
        try:
            lake.merge_staged(directory, BOTH)
        finally:
            shipped.forget()


@pytest.fixture
def filled(lake: Lake) -> Lake:
    lake.way = "small"
    lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(LOG, FIRST)]})
    return lake


@pytest.fixture
def runs() -> Iterator[list[BaseProcess]]:
    begun: list[BaseProcess] = []
    yield begun
    for process in begun:
        process.kill()
        process.join()


def run_killed_at(
    gate: Gate,
    lake: Lake,
    directory: Path,
    runs: list[BaseProcess],
    run: Callable[[Lake, Path, Gate], None] = run_with_gate,
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run, args=(lake, directory, gate))
    runs.append(process)
    process.start()
    wait_for("a task stands at the gate", gate.stands.exists, SECONDS_MAX)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def kill_when_it_stands(gate: Gate, server: SparkConnectServer) -> None:
    wait_for("a task stands at the gate", gate.stands.exists, SECONDS_MAX)
    server.kill()


def require_all_once(lake: Lake) -> None:
    assert lake.rows("shop.keyed", "id", "name") == KEYED
    assert [row[0] for row in lake.rows("shop.log", "_sluice_order_key")] == KEYS_OF_LOG


@pytest.mark.parametrize("location", [BEFORE, AFTER])
def test_fault_a_run_killed_in_the_job_is_finished_by_the_next(
    filled: Lake, tmp_path: Path, runs: list[BaseProcess], location: str
) -> None:
    gate, directory = Gate(tmp_path, location), filled.stage(BOTH)
    run_killed_at(gate, filled, directory, runs)
    filled.merge_staged(directory, BOTH)
    require_all_once(filled)
    gate.is_open.touch()
    assert all(report.skipped for report in filled.merge_staged(directory, BOTH).values())
    require_all_once(filled)


@pytest.mark.parametrize("way", ["small", "spark"])
@pytest.mark.parametrize("location", [BEFORE, AFTER])
def test_fault_a_task_that_outlives_its_run_and_the_next_changes_nothing_twice(
    filled: Lake, tmp_path: Path, runs: list[BaseProcess], location: str, way: SmallSetting
) -> None:
    """Nothing ends the task here, because the next run does not know the killed run's session."""
    assert filled.spark.sessions_file is not None
    gate, directory = Gate(tmp_path, location), filled.stage(BOTH)
    run_killed_at(gate, filled, directory, runs)
    filled.spark.sessions_file.unlink()
    filled.way = way
    filled.merge_staged(directory, BOTH)
    versions = [filled.log(name).version() for name in BOTH]
    gate.is_open.touch()
    wait_for("the task goes on", lambda: gate.passed, SECONDS_MAX)
    after = Changes(ORDERS, [Image(INSERT, 31, {"id": 7, "name": "later"})])
    filled.merge({"shop.keyed": [after]})
    assert filled.rows("shop.keyed", "id", "name") == [*KEYED, (7, "later")]
    assert [row[0] for row in filled.rows("shop.log", "_sluice_order_key")] == KEYS_OF_LOG
    assert [filled.log(name).version() for name in BOTH] == [versions[0] + 1, versions[1]]


@pytest.mark.timeout(300)
def test_fault_spark_killed_in_the_job_is_one_sentence_and_the_batch_is_finished_afterwards(tmp_path: Path) -> None:
    server = SparkConnectServer(None, tmp_path / "spark", memory="1g").start()
    lake = Lake(tmp_path, SparkSettings(remote=server.url, sessions_file=tmp_path / "lanes.json"), way="small")
    try:
        lake.merge({"shop.keyed": [Changes(ORDERS, FIRST)], "shop.log": [Changes(LOG, FIRST)]})
        gate, directory = Gate(tmp_path, AFTER), lake.stage(BOTH)
        killer = threading.Thread(target=kill_when_it_stands, args=(gate, server))
        killer.start()
        with pytest.raises(SparkUnavailableError, match="the connection to Spark was lost"):
            run_with_gate(lake, directory, gate)
        killer.join()
        gate.is_open.touch()
        server.start()
        lake.merge_staged(directory, BOTH)
        require_all_once(lake)
    finally:
        server.stop()
