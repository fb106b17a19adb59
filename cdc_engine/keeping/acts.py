"""Passes an operator's command (start, stop, restart or release) to one engine, and waits until an engine process has executed it.

`sluice instance` and a job in Dagster's UI call this module. A command stores its request as a record next to the ledger (`orders`),
because the engine process may be on another host, or may start later. `start` removes the request to stay stopped.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.cdc_engine.contracts import Holder
from sluice.cdc_engine.destination_files import lease_holder
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.states import ended
from sluice.cdc_engine.status_file import engine_status

POLL_SECONDS = 0.2
# How long a command waits until its request is executed. The engine may have to compile its numba functions, and another host takes over
# only after `meta.session_seconds`.
WAIT_SECONDS = 40.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a command. `done`: the request was executed within the time limit. `message` is a sentence for the operator."""

    destination: str
    act: str
    done: bool
    message: str


def stop(name: str, directory: Path, seconds: float = WAIT_SECONDS) -> Outcome:
    """Requests that the engine of a destination stops on every host, and does not run again until an operator starts it. Waits up to
    `seconds` until the engine has ended. Raises SluiceError if the request cannot be stored.
    """
    ran = holder_of(directory)
    orders.stay_stopped(directory)
    stays = f"{name} stays stopped until `sluice instance start {name}`"
    if ran is None:
        return Outcome(destination=name, act="stop", done=True, message=f"{name} did not run; {stays}")
    if _until(lambda: holder_of(directory) is None, seconds):
        return Outcome(destination=name, act="stop", done=True, message=f"{name} is stopped; {stays}")
    return _not_yet(
        name, "stop", f"the stop of {name} is requested, but {_who(ran)} has not ended its engine yet; {stays}"
    )


def start(name: str, directory: Path, seconds: float = WAIT_SECONDS) -> Outcome:
    """Removes an operator's request to stay stopped, so that the engine starts again. Waits up to `seconds` for the start. If there is no
    such request, the message of the result says so. Raises SluiceError if the request cannot be removed.
    """
    if orders.may_run(directory):
        return _started(name, "start", directory, lambda _: True, seconds)
    unchanged = f"nothing was changed: no operator had stopped {name}"
    # Also looks at the status, because a process holds the lease already while it tries to start the engine.
    _until(lambda: holder_of(directory) is not None and not _has_ended(engine_status(directory)), seconds)
    holder, status = holder_of(directory), engine_status(directory)
    if _has_ended(status):
        return _not_yet(
            name,
            "start",
            f"{unchanged}, and the engine of {name} does not run ({status['state']}): {status.get('reason')}",
        )
    if holder is not None:
        return Outcome(
            destination=name, act="start", done=True, message=f"{unchanged}, and {_who(holder)} runs its engine"
        )
    tried = "if one runs already, it tries again every few seconds"
    return _not_yet(
        name,
        "start",
        f"{unchanged}, and no process runs the engine. Start an engine process with `sluice up` or `sluice engine`; {tried}, "
        f"and `sluice status` and its log show why it cannot start {name}",
    )


def restart(name: str, directory: Path, seconds: float = WAIT_SECONDS) -> Outcome:
    """Makes the process that runs the engine restart the engine. Raises ActRefusedError if an operator has stopped the engine."""
    _refuse_stopped(name, directory)
    token = _token(directory)
    orders.request(directory, "restart")
    if not _until(lambda: orders.requested(directory) is None, seconds):
        orders.done(directory)
        return _not_yet(
            name,
            "restart",
            f"{name} was not restarted, because no engine process answered within {seconds:g} s: start one with `sluice up`, or see "
            "the log of the process that runs",
        )
    return _started(name, "restart", directory, lambda holder: holder.token > token, seconds)


def release(name: str, directory: Path, seconds: float = WAIT_SECONDS) -> Outcome:
    """Makes the process that runs the engine stop the engine and release the lease, so that another host takes the destination over. Waits
    up to `seconds` for the process. Raises ActRefusedError if no process runs the engine, or if an operator has stopped it.
    """
    _refuse_stopped(name, directory)
    holder = holder_of(directory)
    if holder is None:
        raise ActRefusedError(
            f"{name} was not released, because no process runs its engine; `sluice up` starts the engine"
        )
    orders.request(directory, "release")
    if not _until(lambda: orders.requested(directory) is None, seconds):
        orders.done(directory)
        return _not_yet(
            name,
            "release",
            f"{name} was not released, because {_who(holder)}, which holds the lease, does not answer; see "
            "the log of that process",
        )
    end = time.monotonic() + seconds
    _until(lambda: _token(directory) > holder.token, max(0.0, end - time.monotonic()))
    now = holder_of(directory)
    holder_now = f"{_who(now)} now runs {name}" if now is not None else f"no other host has taken {name} yet"
    return Outcome(
        destination=name, act="release", done=True, message=f"{name} was released by {_who(holder)}; {holder_now}"
    )


def _started(name: str, act: str, directory: Path, is_new: Callable[[Holder], bool], seconds: float) -> Outcome:
    since = time.time()

    def runs() -> bool:
        holder = holder_of(directory)
        return holder is not None and is_new(holder) and engine_status(directory).get("updated_at_us", 0) / 1e6 >= since

    if _until(runs, seconds):
        status, holder = engine_status(directory), holder_of(directory)
        why = f": {status['reason']}" if status.get("reason") else ""
        return Outcome(
            destination=name, act=act, done=True, message=f"{name} is {status.get('state')}{why}, run by {_who(holder)}"
        )
    holder, status = holder_of(directory), engine_status(directory)
    if holder is None and _has_ended(status) and status.get("updated_at_us", 0) / 1e6 >= since:
        return _not_yet(name, act, f"{name} could not be started: {status['state']}: {status.get('reason')}")
    what = (
        f"{_who(holder)} has the lease of {name} but writes no status: look at the log of that process"
        if holder
        else "no process runs it: start the engine with `sluice up`"
    )
    return _not_yet(name, act, f"the engine of {name} is allowed to run, but {what}; see `sluice status`")


def _refuse_stopped(name: str, directory: Path) -> None:
    if (order := orders.stopped(directory)) is not None:
        raise ActRefusedError(
            f"{name} was stopped by {order.by} at {order.when()}; `sluice instance start {name}` starts it"
        )


def _has_ended(status: dict[str, Any]) -> bool:
    return ended(str(status.get("state")))


def _not_yet(name: str, act: str, sentence: str) -> Outcome:
    return Outcome(destination=name, act=act, done=False, message=sentence)


def holder_of(directory: Path) -> Holder | None:
    """Returns the process that holds the lease of a destination, or None if no process holds it now. Raises MetaError if the store of the
    lease does not answer.
    """
    holder = lease_holder(directory)
    return holder if holder is not None and holder.held else None


def _token(directory: Path) -> int:
    holder = lease_holder(directory)
    return holder.token if holder is not None else 0


def _who(holder: Holder | None) -> str:
    return f"process {holder.pid} on {holder.host}" if holder is not None else "nobody"


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    end, pause = time.monotonic() + seconds, threading.Event().wait
    while not holds():
        if time.monotonic() >= end:
            return False
        pause(POLL_SECONDS)
    return True
