"""What becomes of the outstanding batch, decided from the records of its runs. Pure; `tick` asks, and does what is answered.

Decided by level, not by edge: each tick looks at all runs with the batch's tags, so no event can be missed. Only SUCCESS acks. Several
runs may carry the same tags (a re-execution by hand copies them): one SUCCESS of this very delivery is enough, and a run that is still
at work is waited for before a failed one rolls the batch back.

A run that went away without a word is ended, so that nothing waits for it: its process is gone when the destination's run lock, which a
run holds for as long as it works, was free for a while although the run counts as started.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from dagster import DagsterRunStatus

from cdc_engine.limits import RUN_SECONDS_MAX

LOCK_FREE_SECONDS_MAX = 30.0  # a started run takes the lock within a second, and ends within one after giving it back
SUBMIT_SECONDS_MAX = 120.0  # a run that was made but never queued: its daemon died in between
STARTING_SECONDS_MAX = 180.0  # a process that imports Dagster, on a machine that is very busy


class RunVerdict(enum.Enum):
    """What one run says about its batch, the strongest first."""

    ACK = "ack"
    END = "end"  #: the run must be ended before its batch can go on
    WAIT = "wait"
    REISSUE = "reissue"  #: the run was made and not submitted; asking again submits it
    ROLLBACK = "rollback"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What is known of one run. `state_seconds`: in this status; `silent_seconds`: since its last event of any kind.

    `lock_free_seconds`: for so long this process has seen the run lock free while the run was in its status; 0 while it is held.
    `drains`: it takes the batches that follow its own. `grows`: it takes its own with what came since, under another delivery.
    """

    run_id: str
    status: DagsterRunStatus
    state_seconds: float = 0.0
    silent_seconds: float = 0.0
    lock_free_seconds: float = 0.0
    drains: bool = False
    grows: bool = False

    @property
    def takes_it_next(self) -> str:
        """Why a tick leaves a batch to this run."""
        return f"run {self.run_id[:8]} {'drains and takes it next' if self.drains else 'has it next'}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a status means, and when it lasted too long (seconds; None: no limit)."""

    verdict: RunVerdict
    state_seconds_max: float | None = None
    silent_seconds_max: float | None = None
    lock_free_seconds_max: float | None = None


RULES: dict[DagsterRunStatus, Rule] = {
    DagsterRunStatus.SUCCESS: Rule(RunVerdict.ACK),
    DagsterRunStatus.FAILURE: Rule(RunVerdict.ROLLBACK),
    DagsterRunStatus.CANCELED: Rule(RunVerdict.ROLLBACK),
    DagsterRunStatus.NOT_STARTED: Rule(RunVerdict.REISSUE, state_seconds_max=SUBMIT_SECONDS_MAX),
    DagsterRunStatus.QUEUED: Rule(RunVerdict.WAIT, state_seconds_max=RUN_SECONDS_MAX),
    DagsterRunStatus.MANAGED: Rule(RunVerdict.WAIT, state_seconds_max=RUN_SECONDS_MAX),
    DagsterRunStatus.SUSPENDED: Rule(RunVerdict.WAIT, state_seconds_max=RUN_SECONDS_MAX),
    DagsterRunStatus.STARTING: Rule(RunVerdict.WAIT, state_seconds_max=STARTING_SECONDS_MAX),
    DagsterRunStatus.STARTED: Rule(
        RunVerdict.WAIT, silent_seconds_max=RUN_SECONDS_MAX, lock_free_seconds_max=LOCK_FREE_SECONDS_MAX
    ),
    DagsterRunStatus.CANCELING: Rule(
        RunVerdict.WAIT, silent_seconds_max=RUN_SECONDS_MAX, lock_free_seconds_max=LOCK_FREE_SECONDS_MAX
    ),
}


@dataclasses.dataclass(frozen=True)
class Ack:
    run_id: str


@dataclasses.dataclass(frozen=True)
class Rollback:
    run_id: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Wait:
    run_id: str
    reason: str


@dataclasses.dataclass(frozen=True)
class EndRun:
    run_id: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Reissue:
    """Hand out the same batch under the same run key: no run of it exists, or one was never submitted."""


Decision = Ack | Rollback | Wait | EndRun | Reissue


def overdue(run: RunRecord) -> str:
    """Why a run must be ended, a sentence; empty when it need not."""
    rule = RULES[run.status]
    if rule.lock_free_seconds_max is not None and run.lock_free_seconds > rule.lock_free_seconds_max:
        return (
            f"it counts as {run.status.value}, but no process has held the run lock for {run.lock_free_seconds:.0f} s"
        )
    if rule.silent_seconds_max is not None and run.silent_seconds > rule.silent_seconds_max:
        return f"it counts as {run.status.value}, but gave no news for {run.silent_seconds:.0f} s"
    if rule.state_seconds_max is not None and run.state_seconds > rule.state_seconds_max:
        return f"it has been {run.status.value} for {run.state_seconds:.0f} s"
    return ""


def verdict_of(run: RunRecord) -> RunVerdict:
    return RunVerdict.END if overdue(run) else RULES[run.status].verdict


def strongest(runs: Sequence[RunRecord]) -> str:
    """The state of the run that decides, in Dagster's word; empty where there is none. One that works comes before one that waits."""
    order = list(RunVerdict)
    working = (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
    ranked = sorted(runs, key=lambda run: (order.index(verdict_of(run)), run.status not in working))
    return ranked[0].status.value if ranked else ""


def decide(runs: Sequence[RunRecord], takers: Sequence[RunRecord] = ()) -> Decision:
    """What becomes of a batch whose runs are these; `runs` are all runs with the tags of this very delivery, in any order.

    `takers`: the open runs of the destination that may take another batch than they were made for. One that no run has taken yet is theirs.
    """
    order = list(RunVerdict)
    ranked = sorted(runs, key=lambda run: order.index(verdict_of(run)))
    if not ranked or verdict_of(ranked[0]) is RunVerdict.REISSUE:
        return _taken_next(takers) or Reissue()
    run = ranked[0]
    match verdict_of(run):
        case RunVerdict.ACK:
            return Ack(run.run_id)
        case RunVerdict.END:
            return EndRun(run.run_id, overdue(run))
        case RunVerdict.WAIT:
            return Wait(run.run_id, f"run {run.run_id[:8]} is {run.status.value}")
        case RunVerdict.ROLLBACK | RunVerdict.REISSUE:  # the latter is answered above
            return Rollback(run.run_id, f"run {run.run_id[:8]} ended as {run.status.value}")


def _taken_next(takers: Sequence[RunRecord]) -> Wait | EndRun | None:
    for run in takers:
        if why := overdue(run):
            return EndRun(run.run_id, why)
        return Wait(run.run_id, run.takes_it_next)
    return None


class LockWatch:
    """For how long the run lock has been free, run by run, as this process saw it; told each tick, before deciding.

    Time starts again when the process does and whenever the lock is held: a run is never ended on one glance.
    """

    def __init__(self) -> None:
        self._free_since: dict[tuple[str, DagsterRunStatus], float] = {}

    def observe(self, runs: Sequence[RunRecord], *, lock_held: bool, now_seconds: float) -> list[RunRecord]:
        """The same runs with `lock_free_seconds` filled in. `now_seconds`: of a clock that never goes back."""
        keys = {(run.run_id, run.status) for run in runs}
        self._free_since = {} if lock_held else {key: self._free_since.get(key, now_seconds) for key in keys}
        return [
            dataclasses.replace(
                run,
                lock_free_seconds=now_seconds - self._free_since.get((run.run_id, run.status), now_seconds),
            )
            for run in runs
        ]
