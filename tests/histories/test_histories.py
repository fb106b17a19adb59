"""Tests that some hundred random histories keep Sluice's guarantees. The simulator itself is deterministic, and finds a rule that is broken
on purpose.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from dagster import DagsterRunStatus

from benchmarks.histories.judging.bench import Stage
from benchmarks.histories.judging.shrink import shortest
from benchmarks.histories.steps import PIPELINE, History, Mix, Scenario, Step, generate
from sluice.orchestration.sensor import settle
from sluice.spark_jobs.staged_batch import StagedBatch

SEEDS = 300
CHUNKS = 6


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_histories_keep_the_promise(stage: Stage, chunk: int) -> None:
    """When everything has settled, the lake equals the source, or production reports that something is wrong."""
    for seed in range(chunk * SEEDS // CHUNKS, (chunk + 1) * SEEDS // CHUNKS):
        history = generate(seed)
        found = stage.play(history)
        assert found.kept, f"seed {seed}: {found.broken}\n{stage.shortest(history)}"


def test_histories_without_mistakes_end_well_by_themselves(stage: Stage) -> None:
    """Tests histories with crashes, errors, stalls, and lost connections and answers. At their end, no problem is left for an operator."""
    for seed in range(60):
        history = generate(seed, Mix(PIPELINE, faults=0.5))
        found = stage.play(history)
        assert (found.broken, found.named, found.equal) == ("", (), True), f"seed {seed}: {found}\n{history}"


def test_a_history_is_the_same_again_for_its_seed(stage: Stage) -> None:
    assert generate(7) == generate(7)
    assert [stage.play(generate(seed)) for seed in range(10)] == [stage.play(generate(seed)) for seed in range(10)]


def _failure_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settle.RULES, DagsterRunStatus.FAILURE, settle.RULES[DagsterRunStatus.SUCCESS])


def _each_run_has_its_own_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, runs = StagedBatch.app_id, itertools.count()
    monkeypatch.setattr(StagedBatch, "app_id", lambda batch, table: f"{whole(batch, table)}/{next(runs)}")


@pytest.mark.parametrize("breaks", [_failure_acks, _each_run_has_its_own_transactions])
def test_histories_find_a_rule_that_is_broken_on_purpose(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, breaks: object
) -> None:
    breaks(monkeypatch)  # type: ignore[operator]
    assert any(not stage.play(generate(seed, Mix(PIPELINE))).kept for seed in range(200))


def test_the_shortest_history_has_only_the_steps_that_it_needs() -> None:
    noise = tuple(generate(seed).steps for seed in range(3))
    needed = (Step("lose ledger"), Step("commit", deeds=(("put", 1),)))
    history = History(Scenario(second="copy"), (*noise[0], needed[0], *noise[1], needed[1], *noise[2]))

    def fails(candidate: History) -> bool:
        plain = [dataclasses.replace(step, line=0, faults=()) for step in candidate.steps]
        at = next((index for index, step in enumerate(plain) if step == needed[0]), None)
        return at is not None and any(step.verb == "commit" for step in plain[at:])

    assert shortest(history, fails) == History(Scenario(), needed)


def test_a_history_reads_as_numbered_sentences() -> None:
    assert str(History(Scenario(), (Step("lose ledger"), Step("fail over", number=1)))).splitlines()[1:] == [
        " 1 the engine host is stopped and meta.json is lost",
        " 2 the standby takes over",
    ]
