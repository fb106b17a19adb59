"""Tests snapshots while each process is killed with SIGKILL at each point that a snapshot must survive, and the stream continues.
Afterwards the lake equals MySQL.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.cdc_engine.acts import snapshot
from sluice.orchestration.base.failpoints import AFTER_CHUNK, AFTER_PUBLISH, BEFORE_PUBLISH
from tests.acceptance.fix_kills import DATABASE, Death, KillBench, named

pytestmark = [pytest.mark.servers, pytest.mark.spark]

CASES: Sequence[Sequence[Death]] = [
    [("run", AFTER_CHUNK), ("mysql", BEFORE_PUBLISH), ("run", AFTER_PUBLISH)],
    [("mysql", AFTER_CHUNK), ("engine host", BEFORE_PUBLISH), ("mysql and engine host", AFTER_PUBLISH)],
    [("engine host", AFTER_CHUNK), ("run", BEFORE_PUBLISH)],
    [("spark", BEFORE_PUBLISH)],
]


@pytest.mark.timeout(600)
def test_the_rows_of_a_snapshot_are_there_before_any_change_of_them(kill_bench: KillBench) -> None:
    kill_bench.settle()
    kill_bench.require_equal()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("deaths", CASES, ids=map(named, CASES))
def test_a_snapshot_continues_when_killed(kill_bench: KillBench, deaths: Sequence[Death]) -> None:
    def begin() -> None:
        snapshot.start(kill_bench.pipeline.directory, [f"{DATABASE}.early"])
        kill_bench.workload.run(1)

    kill_bench.kill_along(deaths, begin)
    kill_bench.workload.run(1)
    kill_bench.wait_until_published()
    kill_bench.settle()
    kill_bench.require_equal()


@pytest.mark.timeout(600)
def test_a_group_of_snapshots_continues_when_its_run_is_killed(kill_bench: KillBench) -> None:
    """At the first kill, one table of the group has its commit, and no table its record. At the second kill, some tables are published."""
    tables = ("counters", "moving", "early")

    def begin() -> None:
        snapshot.start(kill_bench.pipeline.directory, [f"{DATABASE}.{table}" for table in tables])
        kill_bench.workload.run(1)

    kill_bench.kill_along([("run", AFTER_PUBLISH), ("run", BEFORE_PUBLISH)], begin)
    kill_bench.workload.run(1)
    kill_bench.wait_until_published(*tables)
    kill_bench.settle()
    kill_bench.require_equal()
