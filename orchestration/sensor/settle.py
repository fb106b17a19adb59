"""Decides what happens to the batch in flight, from the records of its runs. `tick` reads the records and carries the decision out.

States decide, not events: each tick reads all runs with the batch's tags, so it cannot miss an event. Only SUCCESS acks. Several runs can
have the same tags, because a re-execution copies them. One SUCCESS of exactly this delivery is enough to ack. A failed run does not roll
the batch back while another run works.

A run without a process is ended, because the batch would wait for it forever. A working run holds the destination's run lock, or the drain
lock between its batches. So if a run's status is STARTED or CANCELING and both locks were free for a while, the run has no process. In this
module, "the run lock is free" means that both locks are free.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from dagster import DagsterRunStatus

from sluice.cdc_engine.limits import RUN_SECONDS_MAX
from sluice.orchestration.base.open_runs import STARTING_SECONDS_MAX, SUBMIT_SECONDS_MAX

# If a run's status is STARTED or CANCELING, and both the run lock and the drain lock are free for longer than this, the run has no process,
# and is ended. A working run takes one of the locks within a second, and ends within a second after it releases both.
LOCK_FREE_SECONDS_MAX = 30.0


class RunVerdict(enum.Enum):
    """What a run means for its batch. If the runs of a batch have different verdicts, the verdict that is listed first here counts."""

    ACK = "ack"
    END = "end"  #: The run must be ended before its batch can continue.
    WAIT = "wait"
    REISSUE = "reissue"  #: The run was created and never submitted. The next request with the same run key submits it.
    ROLLBACK = "rollback"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The status of one run, and the times that show whether its process still works.

    - `state_seconds` is the time in this status. `silent_seconds` is the time since its last event of any kind.
    - `lock_free_seconds` tells how long this process has seen both the run lock and the drain lock free while the run had this status. The
      time is 0 while one of the locks is held.
    - `drains` is true if the run takes further batches after its first one.
    """

    run_id: str
    status: DagsterRunStatus
    state_seconds: float = 0.0
    silent_seconds: float = 0.0
    lock_free_seconds: float = 0.0
    drains: bool = False

    @property
    def takes_it_next(self) -> str:
        """A sentence that says why a tick requests no run for a batch: this draining run takes the batch."""
        return f"run {self.run_id[:8]} drains and takes the batch next"


@dataclasses.dataclass(frozen=True)
class Rule:
    """The verdict for a run status, and the limits for the times in `RunRecord`. A run that exceeds a limit must be ended. None means no
    limit.
    """

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
class SettleWait:
    run_id: str
    reason: str


@dataclasses.dataclass(frozen=True)
class EndRun:
    run_id: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Reissue:
    """A run must be requested for the batch with its run key, because the batch has no run, or only a run that was never submitted."""


Decision = Ack | Rollback | SettleWait | EndRun | Reissue


def overdue(run: RunRecord) -> str:
    """Returns why a run must be ended, or "" if it may continue."""
    rule = RULES[run.status]
    if rule.lock_free_seconds_max is not None and run.lock_free_seconds > rule.lock_free_seconds_max:
        return (
            f"Dagster shows the run as {run.status.value}, but no process has had the run lock for "
            f"{run.lock_free_seconds:.0f} s"
        )
    if rule.silent_seconds_max is not None and run.silent_seconds > rule.silent_seconds_max:
        return (
            f"Dagster shows the run as {run.status.value}, but the run has reported nothing for "
            f"{run.silent_seconds:.0f} s"
        )
    if rule.state_seconds_max is not None and run.state_seconds > rule.state_seconds_max:
        return f"the run has been {run.status.value} for {run.state_seconds:.0f} s"
    return ""


def verdict_of(run: RunRecord) -> RunVerdict:
    return RunVerdict.END if overdue(run) else RULES[run.status].verdict


def strongest(runs: Sequence[RunRecord]) -> str:
    """Returns the Dagster status of the run that decides about a batch, or "" if the batch has no run. The run whose verdict is listed
    first in `RunVerdict` decides. Among runs with the same verdict, a run with the status STARTED or CANCELING comes first.
    """
    order = list(RunVerdict)
    working = (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
    ranked = sorted(runs, key=lambda run: (order.index(verdict_of(run)), run.status not in working))
    return ranked[0].status.value if ranked else ""


def decide(runs: Sequence[RunRecord], draining: Sequence[RunRecord] = ()) -> Decision:
    """Returns what happens to a batch. `runs` are all runs whose tags name exactly this delivery, in any order. `draining` are the open
    draining runs of the destination: one of them takes a batch that has no run, or only a run that was never submitted.
    """
    order = list(RunVerdict)
    ranked = sorted(runs, key=lambda run: order.index(verdict_of(run)))
    if not ranked or verdict_of(ranked[0]) is RunVerdict.REISSUE:
        return _taken_next(draining) or Reissue()
    run = ranked[0]
    match verdict_of(run):
        case RunVerdict.ACK:
            return Ack(run.run_id)
        case RunVerdict.END:
            return EndRun(run.run_id, overdue(run))
        case RunVerdict.WAIT:
            return SettleWait(run.run_id, f"run {run.run_id[:8]} is {run.status.value}")
        # REISSUE is listed only for completeness: the code above has handled it.
        case RunVerdict.ROLLBACK | RunVerdict.REISSUE:
            return Rollback(run.run_id, f"run {run.run_id[:8]} ended as {run.status.value}")


def _taken_next(draining: Sequence[RunRecord]) -> SettleWait | EndRun | None:
    for run in draining:
        if why := overdue(run):
            return EndRun(run.run_id, why)
        return SettleWait(run.run_id, run.takes_it_next)
    return None


class LockWatch:
    """Measures, for each run, for how long this process has seen the run lock and the drain lock free. A tick uses the result to decide
    about the run.

    The measurement begins again when this process starts, and whenever one of the locks is held. Therefore a run is never ended because the
    locks were free at a single tick.
    """

    def __init__(self) -> None:
        self._free_since: dict[tuple[str, DagsterRunStatus], float] = {}

    def observe(self, runs: Sequence[RunRecord], *, lock_held: bool, now_seconds: float) -> list[RunRecord]:
        """Returns the runs with `lock_free_seconds`: for how many seconds ticks have seen both the run lock and the drain lock free while
        the run had its current status. `lock_held` tells whether one of the locks is held now. `now_seconds` is the time of a monotonic
        clock.
        """
        keys = {(run.run_id, run.status) for run in runs}
        self._free_since = {} if lock_held else {key: self._free_since.get(key, now_seconds) for key in keys}
        return [
            dataclasses.replace(
                run,
                lock_free_seconds=now_seconds - self._free_since.get((run.run_id, run.status), now_seconds),
            )
            for run in runs
        ]
