"""SIGKILL to each process at each place that must survive it; afterwards the lake equals MySQL and no change was applied twice."""

from __future__ import annotations

import pytest

from orchestration.failpoints import AFTER_ACK, AFTER_MERGE, BEFORE_ACK, BEFORE_CLAIM, BEFORE_MERGE, BETWEEN_TABLES
from tests.acceptance.fix_kills import DATABASE, KillBench
from tests.waiting import wait_for

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
@pytest.mark.parametrize("runs", ["batch", "drain"])
def test_a_batch_is_one_trace_of_the_engine_and_its_run(kill_bench: KillBench, runs: str) -> None:
    """Each merge is in the trace of its batch, and a batch that was settled by its own engine's process has all its spans."""
    kill_bench.use(runs)
    kill_bench.workload.run(1)
    kill_bench.settle()

    def whole() -> bool:
        traces = kill_bench.collector.traces()
        names = [{span.name for span in spans} for spans in traces.values()]
        return any({"batch", "stage", "run", f"merge {DATABASE}.counters", "ack"} <= each for each in names)

    kill_bench.collector.spans.clear()
    kill_bench.workload.run(1)
    kill_bench.settle()
    wait_for("the trace of a batch is whole", whole)
    for spans in kill_bench.collector.traces().values():
        ids = {span.span_id for span in spans}
        assert len(ids) == len(spans), "no span comes twice"
        if any(span.name == "batch" for span in spans):
            assert all(span.parent_span_id in ids for span in spans if span.name != "batch")


@pytest.mark.timeout(600)
def test_versions_of_a_key_never_went_back(kill_bench: KillBench) -> None:
    kill_bench.require_versions_never_went_back()
