"""Describes the problems of an engine that runs: no ticks, batches that no run takes, a stream that does not move. Pure functions.

`engine` calls this module once per second and writes the sentences that describe the problems to `status.json`. `./sluice status` and the
check on the engine's asset show these sentences. Each sentence says what is wrong, for how long, and what to do.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import (
    AccessDeniedError,
    MetaError,
    ReplicaClashError,
    SecretUnavailableError,
    StagingError,
)

AT_WORK = frozenset({"STARTED", "CANCELING"})  # The states of a Dagster run whose process runs.
RESTART = "`sluice down` and `sluice up` restart everything"
# The sentence about an engine without ticks begins with this text. `sluice status` searches for it.
NO_TICK = "no tick of the sensor"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vitals:
    """The facts about an engine from which `troubles` finds its problems. Each `…_seconds` is the time since something happened.
    `starting_seconds` is the time for which the engine has been starting, or 0 if it is not starting.

    `tick_seconds` is the time since the last successful tick, or since the engine started if there was none (`ever_ticked` is then False).
    If the newest tick failed, `tick_failed` is the reason and `tick_failed_seconds` the time since that tick. `batch` names the batch in
    flight, or is empty. `batch_seconds` is the time since the batch was handed out. `run` is the state of the batch's run in Dagster at
    the last tick. `waiting` is True if the next attempt to merge is delayed. `failing` says how many runs in a row could not merge the
    batch, with the error message of the newest run. `unmoved_seconds` is the time for which the cursor has not moved while changes waited.

    The fields `stream`, `retention`, `heartbeat`, `serving` and `lake` are sentences about problems that other modules found, and are empty
    if there is none. `stream` is about the stream from the source, and `retention` about the source's binlog. `heartbeat` says that the
    source does not answer, `serving` what prevents Canal clients from connecting, and `lake` what is wrong with Delta tables.
    """

    destination: str
    starting_seconds: float = 0.0
    tick_seconds: float = 0.0
    ever_ticked: bool = True
    tick_failed: str = ""
    tick_failed_seconds: float = 0.0
    batch: str = ""
    batch_seconds: float = 0.0
    run: str = ""
    waiting: bool = False
    failing: str = ""
    unmoved_seconds: float = 0.0
    stream: str = ""
    serving: str = ""
    heartbeat: str = ""
    retention: str = ""
    lake: tuple[str, ...] = ()


def troubles(vitals: Vitals) -> tuple[str, ...]:
    """Returns one sentence for each problem, or an empty tuple if all is well."""
    found = (
        _no_news(vitals),
        _no_tick(vitals),
        _no_run(vitals),
        _failing(vitals),
        _no_progress(vitals),
        vitals.stream,
        vitals.serving,
        vitals.heartbeat,
        vitals.retention,
        *vitals.lake,
    )
    return tuple(sentence for sentence in found if sentence)


def _no_news(vitals: Vitals) -> str:
    if vitals.starting_seconds <= limits.START_SECONDS_MAX:
        return ""
    return (
        f"the engine has been starting for {_age(vitals.starting_seconds)}: check whether the source answers, and look at the "
        "code server's log in <data_dir>/logs"
    )


def _no_tick(vitals: Vitals) -> str:
    if vitals.tick_seconds <= limits.TICK_SILENCE_SECONDS_MAX:
        return ""
    since = "since the engine started" if not vitals.ever_ticked else "since the last successful tick"
    if vitals.tick_failed and vitals.tick_failed_seconds <= limits.TICK_FAILED_SECONDS_MAX:
        return (
            f"the ticks of the sensor {vitals.destination}_engine have failed for {_age(vitals.tick_seconds)} "
            f"{since}, so nothing is merged: Dagster's daemon runs, and the "
            f"newest tick failed {_age(vitals.tick_failed_seconds)} ago with {vitals.tick_failed}; the "
            "sensor's page in Dagster's UI has the whole error, and Dagster tries the ticks again without a "
            "restart"
        )
    return (
        f"{NO_TICK} {vitals.destination}_engine has reached the engine for {_age(vitals.tick_seconds)} "
        f"{since}, so nothing is merged: `sluice status` shows whether Dagster's daemon runs. If the daemon "
        f"does not run or cannot reach the code server, {RESTART}. If the sensor is switched off, switch the "
        "sensor on in Dagster's UI, Automation"
    )


def _no_run(vitals: Vitals) -> str:
    if not vitals.batch or vitals.waiting or vitals.tick_seconds > limits.TICK_SILENCE_SECONDS_MAX:
        return ""
    out = f"batch {vitals.batch} was handed out and has no ack for {_age(vitals.batch_seconds)}"
    if vitals.run in AT_WORK:
        long = vitals.batch_seconds > limits.PROGRESS_SECONDS_MAX
        return (
            (
                f"{out}, and its run still works: look at the run's page in Dagster's UI, and check whether Spark "
                "answers. If the run hangs, end it in Dagster's UI"
            )
            if long
            else ""
        )
    if vitals.batch_seconds <= limits.RUN_BEGIN_SECONDS_MAX:
        return ""
    seen = f"the run of the batch is {vitals.run}" if vitals.run else "Dagster has no run of the batch"
    return (
        f"{out}, and no process merges it, because {seen}: look at the queue of runs in Dagster's UI and at "
        f"the daemon's log in <data_dir>/logs; {RESTART}"
    )


def _failing(vitals: Vitals) -> str:
    if not vitals.failing:
        return ""
    return (
        f"{vitals.failing}; nothing is lost, and Sluice tries the batch again: the pages of its runs in Dagster's "
        "UI show the error to correct"
    )


def _no_progress(vitals: Vitals) -> str:
    """Returns a sentence if the engine makes no progress and no other sentence explains why. For example, a disk does not answer, or a lock
    is never released.
    """
    explained = vitals.waiting or vitals.failing or vitals.tick_seconds > limits.TICK_SILENCE_SECONDS_MAX
    if vitals.batch or explained or vitals.unmoved_seconds <= limits.PROGRESS_SECONDS_MAX:
        return ""
    return (
        f"changes have waited for {_age(vitals.unmoved_seconds)}, and the engine makes no batch: check "
        f"whether the disk of data_dir answers. The code server's log in <data_dir>/logs has more; {RESTART}"
    )


def revive_seconds(error: Exception | None, revived: int) -> float | None:
    """Returns how many seconds after its end a parser is restarted. Returns None if it is not restarted: no error ended it (`error` is
    None), or an operator must correct the cause. `revived` is the number of restarts since the parser was last RUNNING.
    """
    if _of_the_disk(error):
        return limits.REVIVE_SECONDS
    if isinstance(error, ReplicaClashError | AccessDeniedError | SecretUnavailableError):
        return min(limits.REVIVE_SECONDS * 2.0 ** min(revived, 16), limits.REVIVE_SECONDS_MAX)
    return None


def _of_the_disk(error: Exception | None) -> bool:
    """Returns whether the parser ended because it could not write to a disk: spilled rows, recorded rows, or the schema history."""
    return isinstance(error, StagingError) or (isinstance(error, MetaError) and isinstance(error.__cause__, OSError))


def _age(seconds: float) -> str:
    """Formats an age: `95 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
