"""Tests how a batch is settled: for every status of its run, with the run lock taken and free, after short and long times, and for
combinations of runs.
"""

from __future__ import annotations

from typing import Any

import pytest
from dagster import DagsterRunStatus as S
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.limits import RUN_SECONDS_MAX
from sluice.orchestration.base.open_runs import STARTING_SECONDS_MAX, SUBMIT_SECONDS_MAX
from sluice.orchestration.sensor.settle import (
    LOCK_FREE_SECONDS_MAX,
    RULES,
    Ack,
    EndRun,
    LockWatch,
    Reissue,
    Rollback,
    RunRecord,
    SettleWait,
    decide,
    overdue,
)

OLD, RECENT = RUN_SECONDS_MAX + 1.0, 1.0
LOCK_FREE = LOCK_FREE_SECONDS_MAX + 1.0
# status → what one run with it means: (young, too long in its status, too long without news, lock free for too long)
TABLE = {
    S.SUCCESS: (Ack, Ack, Ack, Ack),
    S.FAILURE: (Rollback, Rollback, Rollback, Rollback),
    S.CANCELED: (Rollback, Rollback, Rollback, Rollback),
    S.NOT_STARTED: (Reissue, EndRun, Reissue, Reissue),
    S.QUEUED: (SettleWait, EndRun, SettleWait, SettleWait),
    S.MANAGED: (SettleWait, EndRun, SettleWait, SettleWait),
    S.SUSPENDED: (SettleWait, EndRun, SettleWait, SettleWait),
    S.STARTING: (SettleWait, EndRun, SettleWait, SettleWait),
    S.STARTED: (SettleWait, SettleWait, EndRun, EndRun),
    S.CANCELING: (SettleWait, SettleWait, EndRun, EndRun),
}
runs = st.builds(
    RunRecord,
    run_id=st.uuids().map(str),
    status=st.sampled_from(list(S)),
    state_seconds=st.sampled_from([0.0, RECENT, SUBMIT_SECONDS_MAX + 1, STARTING_SECONDS_MAX + 1, OLD]),
    silent_seconds=st.sampled_from([0.0, OLD]),
    lock_free_seconds=st.sampled_from([0.0, RECENT, LOCK_FREE]),
)


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize(
    ("column", "record"),
    [
        (0, {"state_seconds": RECENT}),
        (1, {"state_seconds": OLD}),
        (2, {"silent_seconds": OLD}),
        (3, {"lock_free_seconds": LOCK_FREE}),
    ],
    ids=["young", "old", "silent", "lock free"],
)
def test_each_status_by_age_and_lock(status: S, column: int, record: dict[str, Any]) -> None:
    decision = decide([RunRecord(run_id="a", status=status, **record)])
    assert type(decision) is TABLE[status][column]


def test_every_status_that_dagster_knows_has_a_rule() -> None:
    assert set(RULES) == set(S)


def test_without_a_run_the_batch_is_requested_again() -> None:
    assert decide([]) == Reissue()


@given(st.lists(runs, min_size=1, max_size=5, unique_by=lambda run: run.run_id), st.randoms())
def test_any_mixture_of_runs(records: list[RunRecord], random: object) -> None:
    decision = decide(records)
    statuses = {run.status for run in records}
    if S.SUCCESS in statuses:
        assert isinstance(decision, Ack)
        assert decision.run_id in {run.run_id for run in records if run.status is S.SUCCESS}
        return
    assert not isinstance(decision, Ack), "only SUCCESS acks"
    if any(overdue(run) for run in records):
        assert isinstance(decision, EndRun)
        assert decision.reason
    elif statuses - {S.FAILURE, S.CANCELED, S.NOT_STARTED}:
        assert isinstance(decision, SettleWait), "a run at work is waited for"
    elif S.NOT_STARTED in statuses:
        assert decision == Reissue()
    else:
        assert isinstance(decision, Rollback)
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert type(decide(shuffled)) is type(decision), "the order of the records means nothing"


@given(st.lists(runs, max_size=5, unique_by=lambda run: run.run_id))
def test_ending_what_is_to_be_ended_leads_to_a_settled_batch(records: list[RunRecord]) -> None:
    for _ in range(len(records) + 1):
        decision = decide(records)
        if not isinstance(decision, EndRun):
            return
        ended = decision.run_id
        records = [RunRecord(run_id=ended, status=S.FAILURE) if run.run_id == ended else run for run in records]
    pytest.fail("a run that was ended is asked to be ended again")


def test_the_lock_must_be_seen_free_for_a_while_and_without_a_break() -> None:
    watch, run = LockWatch(), RunRecord(run_id="a", status=S.STARTED, state_seconds=900)

    def free_seconds(now: float, *, held: bool) -> float:
        return watch.observe([run], lock_held=held, now_seconds=now)[0].lock_free_seconds

    assert free_seconds(100, held=False) == 0, "one glance is not enough, however long the run has been at work"
    assert free_seconds(120, held=False) == 20
    assert free_seconds(125, held=True) == 0
    assert free_seconds(130, held=False) == 0
    assert free_seconds(161, held=False) == 31
    assert isinstance(decide(watch.observe([run], lock_held=False, now_seconds=161)), EndRun)


def test_the_lock_watch_forgets_runs_that_ended() -> None:
    watch = LockWatch()
    run = RunRecord(run_id="a", status=S.STARTED)
    watch.observe([run], lock_held=False, now_seconds=0)
    watch.observe([], lock_held=False, now_seconds=10)
    assert watch.observe([run], lock_held=False, now_seconds=20)[0].lock_free_seconds == 0
