"""Kills MySQL and the engine's host (SIGKILL) before, during and after a backfill, a repair and a maintenance. After a second attempt, the
lake equals MySQL.

Tests in tests/spark break connections instead, also those of Spark. The tests of each package kill the runs themselves.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from deltalake import DeltaTable

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.failpoints import (
    AFTER_MAINTENANCE,
    AFTER_ROWS,
    BEFORE_MAINTENANCE,
    BEFORE_ROWS,
    BETWEEN_MAINTAINED,
    BETWEEN_ROWS,
)
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.maintain_run import MaintainRequest, run_maintenance
from sluice.orchestration.run.rows.backfill import run_backfill
from sluice.orchestration.run.rows.operation import RowsRun
from sluice.orchestration.run.rows.repair import plan_repair, run_repair
from sluice.orchestration.run.rows.request import BackfillRequest, RepairRequest, RowsListener
from sluice.orchestration.run.spark_merge import spark_merge
from tests.acceptance.fix_kills import DATABASE, KillBench

pytestmark = [pytest.mark.servers, pytest.mark.spark]

PORTS = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
LOST = {"counters": 5, "early": 100}  # table → a row that no round of the workload deletes
TABLES = tuple(f"{DATABASE}.{name}" for name in LOST)
SETTLE_SECONDS = 60.0
MYSQL, ENGINE = "mysql", "engine host"
# Each attempt repeats the attempt before it, and names who is killed at which point. If MySQL is killed before the attempt needs it for the
# last time, the attempt fails there. The engine's death ends no attempt, so the last attempt of each operation succeeds.
OPERATIONS = (
    ((MYSQL, BEFORE_ROWS),),
    ((ENGINE, BEFORE_ROWS), (MYSQL, BETWEEN_ROWS)),
    ((ENGINE, BETWEEN_ROWS), (MYSQL, AFTER_ROWS)),
    ((ENGINE, AFTER_ROWS),),
)
MAINTENANCES = (
    ((ENGINE, BEFORE_MAINTENANCE), (MYSQL, BETWEEN_MAINTAINED)),
    ((MYSQL, BEFORE_MAINTENANCE), (ENGINE, BETWEEN_MAINTAINED)),
    ((MYSQL, AFTER_MAINTENANCE), (ENGINE, AFTER_MAINTENANCE)),
)


def by_hand(config: SluiceConfig) -> RowsRun:
    """Returns an operation on rows that a person starts. It waits up to a minute for the end of a killed operation."""
    listener = RowsListener(say=lambda _: None)
    return RowsRun(ports=PORTS, config=config, destination=DATABASE, listener=listener, wait_seconds=60.0)


def repair(bench: KillBench) -> None:
    """Repairs TABLES. Raises if the source or the lake does not answer, or if they differ after the repair."""
    config, act = (
        bench.pipeline.config,
        RepairRequest(destination=DATABASE, tables=TABLES, settle_seconds=SETTLE_SECONDS),
    )
    done = run_repair(by_hand(config), act, plan_repair(config, act))
    if not done.all_right:
        raise MergeFailedError(str(done))


def backfill(bench: KillBench, since: float) -> None:
    """Applies all changes since then once more."""
    act = BackfillRequest(destination=DATABASE, from_us=round(since * 1e6), to_us=None, tables=TABLES)
    run_backfill(by_hand(bench.pipeline.config), act)


def break_lake(bench: KillBench, *names: str) -> int:
    """Deletes the row in LOST from each of these tables, as another program would. Returns how many of the tables still had their row."""
    tables = [(DeltaTable(bench.pipeline.table_path(name)), LOST[name]) for name in names]
    return sum(table.delete(f"id = {row}")["num_deleted_rows"] for table, row in tables)


def maintain(bench: KillBench) -> None:
    """Runs OPTIMIZE and VACUUM of TABLES. Raises if the maintenance of a table failed."""
    act = MaintainRequest(destination=DATABASE, tables=TABLES, force=True, vacuum=True)
    done = run_maintenance(PORTS, bench.pipeline.config, act, lambda _: None)
    if done.failed:
        raise MergeFailedError(str(done.failed))


def broken_off(bench: KillBench, act: Callable[[KillBench], None], *deaths: tuple[str, str]) -> None:
    """Runs an operation in this process, because it must survive the kills. Kills each victim when the operation reaches the victim's
    point. Returns after the operation has ended, with success or with an error, and after the victims run again.
    """
    points = [
        (point, [victim for victim, _ in those]) for point, those in itertools.groupby(deaths, lambda each: each[1])
    ]
    for point, _ in points:
        bench.shut(point)
    with ThreadPoolExecutor(1) as thread:
        try:
            going = thread.submit(act, bench)
            for point, victims in points:
                at_gate = bench.reached(point)
                for victim in victims:
                    bench.kill(victim, at_gate)
                (bench.gates / point).unlink()
            with contextlib.suppress(SluiceError, MergeFailedError):
                going.result()
        finally:
            bench.open()
            bench.revive()


@pytest.mark.timeout(900)
def test_backfill_repair_and_maintenance_are_right_when_source_and_engine_are_killed_equality(
    kill_bench: KillBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backfills must restore the row that is deleted before them. Then the test deletes rows again, so that the repairs find
    differences.
    """
    monkeypatch.setenv(failpoints.VARIABLE, str(kill_bench.gates))
    kill_bench.settle()
    since = time.time()
    kill_bench.workload.run(1)
    kill_bench.settle()
    assert break_lake(kill_bench, "counters") == 1
    for deaths in OPERATIONS:
        broken_off(kill_bench, lambda bench: backfill(bench, since), *deaths)
    assert break_lake(kill_bench, *LOST) == len(LOST)
    for deaths in OPERATIONS:
        break_lake(kill_bench, *LOST)
        broken_off(kill_bench, repair, *deaths)
    for deaths in MAINTENANCES:
        broken_off(kill_bench, maintain, *deaths)
    kill_bench.workload.run(1)
    kill_bench.settle()
    kill_bench.require_equal()
