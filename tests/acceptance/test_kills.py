"""Tests that the lake equals MySQL, with no change applied twice, after each process was killed with SIGKILL at each failpoint."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.orchestration.base.failpoints import (
    AFTER_ACK,
    AFTER_MERGE,
    AFTER_TAKE,
    BEFORE_ACK,
    BEFORE_CLAIM,
    BEFORE_MERGE,
    BEFORE_TAKE,
    BETWEEN_TABLES,
)
from tests.acceptance.fix_kills import DATABASE, Death, KillBench, named
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

# Each victim is killed at each failpoint, before and after every durable write. Several kills hit the same batch.
BATCH: Sequence[Sequence[Death]] = [
    [("run", BEFORE_MERGE), ("engine host", AFTER_MERGE), ("spark", AFTER_ACK)],
    [("spark", BEFORE_MERGE), ("mysql", BETWEEN_TABLES), ("engine host", AFTER_ACK)],
    [("engine host", BEFORE_MERGE)],
    [("run", BEFORE_TAKE), ("engine host", AFTER_TAKE), ("run", AFTER_MERGE)],
    [("engine host", BEFORE_TAKE), ("mysql", AFTER_TAKE), ("spark", BETWEEN_TABLES)],
]
DRAIN: Sequence[Sequence[Death]] = [
    [("run", BEFORE_CLAIM), ("spark", BETWEEN_TABLES), ("mysql", AFTER_MERGE), ("engine host", BEFORE_ACK)],
    [("engine host", BEFORE_CLAIM), ("run", BETWEEN_TABLES), ("spark", AFTER_MERGE), ("mysql", AFTER_ACK)],
    [("mysql", BEFORE_MERGE), ("engine host", BETWEEN_TABLES), ("run", AFTER_MERGE)],
]
CASES = [*(("batch", deaths) for deaths in BATCH), *(("drain", deaths) for deaths in DRAIN)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("runs", "deaths"), CASES, ids=[f"{runs}-{named(deaths)}" for runs, deaths in CASES])
def test_nothing_is_lost_or_doubled_when_killed(kill_bench: KillBench, runs: str, deaths: Sequence[Death]) -> None:
    kill_bench.use(runs)
    if deaths[0][1] == BEFORE_CLAIM:
        kill_bench.attach()
    kill_bench.kill_along(deaths, kill_bench.workload.run)
    kill_bench.workload.run(1)
    kill_bench.settle()
    kill_bench.require_equal()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs", ["batch", "drain"])
def test_a_batch_is_one_trace_of_the_engine_and_its_run(kill_bench: KillBench, runs: str) -> None:
    """Each merge is in the trace of its batch. If the same engine process hands out and settles a batch, the trace of the batch has all
    spans.
    """
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
