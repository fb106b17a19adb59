"""SIGKILL to each process at each place that must survive it; afterwards the lake equals MySQL and no change was applied twice."""

from __future__ import annotations

import pytest

from orchestration.failpoints import AFTER_ACK, AFTER_MERGE, BEFORE_ACK, BEFORE_CLAIM, BEFORE_MERGE, BETWEEN_TABLES
from tests.acceptance.fix_kills import KillBench

# Each victim at each place, and each way that runs go at each of both sides of every durable write.
BATCH = [
    ("run", BEFORE_MERGE),
    ("mysql", BETWEEN_TABLES),
    *(("spark", point) for point in (BEFORE_MERGE, AFTER_ACK)),
    *(("engine host", point) for point in (BEFORE_MERGE, AFTER_MERGE, AFTER_ACK)),
]
DRAIN = [
    *(("run", point) for point in (BETWEEN_TABLES, BEFORE_CLAIM, AFTER_MERGE)),
    *(("mysql", point) for point in (BEFORE_MERGE, AFTER_MERGE, AFTER_ACK)),
    *(("spark", point) for point in (BETWEEN_TABLES, AFTER_MERGE)),
    *(("engine host", point) for point in (BETWEEN_TABLES, BEFORE_CLAIM, BEFORE_ACK)),
]
CASES = [*(("batch", *case) for case in BATCH), *(("drain", *case) for case in DRAIN)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("runs", "victim", "point"), CASES)
def test_nothing_is_lost_or_doubled_when_killed(kill_bench: KillBench, runs: str, victim: str, point: str) -> None:
    kill_bench.use(runs)
    if point == BEFORE_CLAIM:
        kill_bench.attach()
    kill_bench.shut(point)
    try:
        kill_bench.workload.run()
        kill_bench.kill(victim, kill_bench.reached(point))
    finally:
        kill_bench.open()
        kill_bench.revive()
    kill_bench.workload.run(1)
    kill_bench.settle()
    kill_bench.require_equal()


@pytest.mark.timeout(600)
def test_versions_of_a_key_never_went_back(kill_bench: KillBench) -> None:
    kill_bench.require_versions_never_went_back()
