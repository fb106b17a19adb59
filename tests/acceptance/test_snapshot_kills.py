"""SIGKILL to each process at each place that a snapshot must survive, beside a stream that goes on; afterwards the lake equals MySQL."""

from __future__ import annotations

import pytest

from cdc_engine.acts import snapshot
from orchestration.failpoints import AFTER_CHUNK, AFTER_PUBLISH, BEFORE_PUBLISH
from tests.acceptance.fix_kills import DATABASE, KillBench

CASES = [
    *(("run", point) for point in (AFTER_CHUNK, BEFORE_PUBLISH, AFTER_PUBLISH)),
    *(("mysql", point) for point in (AFTER_CHUNK, BEFORE_PUBLISH)),
    *(("engine host", point) for point in (AFTER_CHUNK, BEFORE_PUBLISH)),
    ("mysql and engine host", AFTER_PUBLISH),
    ("spark", BEFORE_PUBLISH),
]


@pytest.mark.timeout(600)
def test_the_rows_of_a_snapshot_are_there_before_any_change_of_them(kill_bench: KillBench) -> None:
    kill_bench.settle()
    kill_bench.require_equal()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("victim", "point"), CASES)
def test_a_snapshot_goes_on_when_killed(kill_bench: KillBench, victim: str, point: str) -> None:
    kill_bench.shut(point)
    try:
        snapshot.start(kill_bench.pipeline.directory, [f"{DATABASE}.early"])
        kill_bench.workload.run(1)
        at_gate = kill_bench.reached(point)
        for each in victim.split(" and "):
            kill_bench.kill(each, at_gate)
        kill_bench.workload.run(1) if kill_bench.pipeline.server.running else None
    finally:
        kill_bench.open()
        kill_bench.revive()
    kill_bench.workload.run(1)
    kill_bench.wait_until_published()
    kill_bench.settle()
    kill_bench.require_equal()
