"""Starts the parts of Sluice in order and keeps them running, with one thread and one loop. A signal, or the death of a part, ends every
wait.

`next_step` decides, and the loop carries out the decision. `sluice up` runs the loop until all parts answer, and `sluice up --foreground`
until a signal ends the process. A failed part is restarted after increasing waits. `Patience` limits the number of restarts. If the part
fails again after the last restart, an error names the part.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from sluice.console.stack.signals import held_back
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.process import last_lines

POLL_SECONDS = 0.1
# Part → its name in messages, for parts whose name is used without an article.
SHOWN = {"spark": "Spark"}
# Signal → why a part ended. Other programs send these signals, so the part's log does not contain the reason.
SIGNALS = {
    "signal 9": "another program killed the process, or the kernel did so for lack of memory (see dmesg)",
    "signal 15": "another program ended the process",
}

Say = Callable[[str], None]
_now = time.monotonic


class StackPart(Protocol):
    """A process of Sluice, or a task that is done once. No method may block for longer than a moment."""

    name: str
    after: tuple[str, ...]  # The names of the parts that must answer before this part starts.
    # True for a task. A task is done when `answers` returns True. A task is repeated when a part in `after` is restarted.
    once: bool
    seconds_max: float  # The longest time from the start of the part until it answers.
    log: Path

    def begin(self) -> None:
        """Starts the part. Raises SetupError if it cannot be started."""

    def end(self) -> None:
        """Kills all processes of the part that still run."""

    def ended(self) -> str:
        """Returns how the part ended, as "exit code 1" or "signal 9". Returns "" while it runs."""

    def port_taken(self) -> bool:
        """Returns whether another program has the port that the part needs."""

    def answers(self) -> bool:
        """Returns whether the part can be used or, for a task, whether it is done. Raises ServerError if waiting cannot help."""


class State(enum.Enum):
    WAITING = "waits for other parts, or for the end of a pause"
    STARTING = "has started, but does not answer yet"
    READY = "answers, or is done"


class SupervisorStep(enum.Enum):
    NONE = "nothing"
    BEGIN = "begin it"
    READY = "it answers"
    FAIL = "it failed"


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a failed part is restarted: at most `restarts_max` times in a row. The first wait is `first_seconds`. Each later wait is
    twice as long as the wait before, up to `longest_seconds`.

    If a part has answered for `steady_seconds` before it fails, the count starts again. With `first_start_must_do`, a part that fails
    before it has ever answered is not restarted, because it would fail again. There are two exceptions: a part that a signal ended, and a
    part whose port another program has, because that program may end.
    """

    restarts_max: int
    first_seconds: float
    first_start_must_do: bool = False
    longest_seconds: float = 60.0
    steady_seconds: float = 300.0

    def wait_seconds(self, failures: int) -> float:
        return min(self.longest_seconds, self.first_seconds * 2.0 ** (failures - 1))


UP = Patience(restarts_max=6, first_seconds=0.5, first_start_must_do=True)
FOREGROUND = Patience(restarts_max=6, first_seconds=1.0)


@dataclasses.dataclass
class PartRecord:
    """What the supervisor knows about a part. `since` is the time at which the part entered its state. `due` is the time before which a
    waiting part must not start. Both times are values of `time.monotonic`. `failures` counts the failures in a row. The count starts again
    after the part has answered for `Patience.steady_seconds`.
    """

    part: StackPart
    state: State = State.WAITING
    since: float = 0.0
    due: float = 0.0
    failures: int = 0
    answered: bool = False  # Whether the part has answered at any time.

    def enter(self, state: State, now: float) -> None:
        self.state, self.since = state, now


def next_step(
    kept: PartRecord, now: float, ready: Collection[str], ended: str, answers: Callable[[], bool]
) -> SupervisorStep:
    """Returns the next step for a part. `now` is a value of `time.monotonic`. `ready` are the names of the parts that answer. `ended` says
    how the part ended, and is empty while the part runs. `answers` checks whether the part answers, and is called only if the decision
    depends on the result.
    """
    part = kept.part
    if kept.state is State.WAITING:
        return SupervisorStep.BEGIN if now >= kept.due and set(part.after) <= set(ready) else SupervisorStep.NONE
    if ended and not (part.once and kept.state is State.READY):
        return SupervisorStep.READY if part.once and answers() else SupervisorStep.FAIL
    if kept.state is State.READY:
        return SupervisorStep.NONE
    if answers():
        return SupervisorStep.READY
    return SupervisorStep.FAIL if now - kept.since > part.seconds_max else SupervisorStep.NONE


def _failure(part: StackPart, ended: str) -> str:
    """Returns a sentence about a failed part: how it failed, the cause if it is known, and the last lines of its log."""
    how = f"ended ({ended})" if ended else f"did not answer within {part.seconds_max:.0f} s"
    cause = SIGNALS.get(ended)
    log = f": {cause}; the reason is not in its log {part.log}, which ends" if cause else f"; {part.log} ends"
    return f"{SHOWN.get(part.name, f'The {part.name}')} {how}{log}: {last_lines(part.log)}"


class Supervisor:
    """Starts and supervises parts. `running` are the names of the parts that run already. The supervisor waits for answers of these parts
    too, and restarts these parts when they die.
    """

    def __init__(self, parts: Iterable[StackPart], say: Say, patience: Patience, running: Collection[str] = ()) -> None:
        now = _now()
        self._kept = {part.name: PartRecord(part) for part in parts}
        self._say, self._patience = say, patience
        self.begun: list[str] = []  # The names of all parts that this object has started, in order.
        for kept in self._kept.values():
            if kept.part.name in running:
                kept.enter(State.STARTING, now)
                kept.answered = True
            elif kept.part.once and kept.part.after and set(kept.part.after) <= set(running):
                kept.enter(State.READY, now)  # The process that started the parts in `after` has also done this task.

    def is_ready(self, *, tasks: bool = True) -> bool:
        """Returns whether every process answers. With `tasks`, returns True only if every task is done too."""
        parts = (kept for kept in self._kept.values() if tasks or not kept.part.once)
        return all(kept.state is State.READY for kept in parts)

    def until_ready(self, *, tasks: bool = True) -> None:
        """Returns when every process answers and, with `tasks`, every task is done. Raises ServerError if a part fails and is not restarted
        any more. The message names the part.
        """
        while not self.is_ready(tasks=tasks):
            self.tick()
            time.sleep(POLL_SECONDS)
        self.tick()  # While some parts were starting, another part that had answered may have died.
        if not self.is_ready(tasks=tasks):
            self.until_ready(tasks=tasks)

    def end_work(self) -> None:
        """Ends the tasks that still run. The caller ends the processes, because it knows the order in which they must end."""
        for kept in self._kept.values():
            if kept.part.once:
                kept.part.end()

    def tick(self) -> None:
        """Checks every part once, and takes its next step. Raises ServerError if a part fails and is not restarted any more."""
        for kept in self._kept.values():
            final = False
            try:
                ended = "" if kept.state is State.WAITING else kept.part.ended()
                sentence = self._take(kept, ended)
                final = self._is_final(kept, ended) if sentence else False
            except ServerError as error:
                sentence = str(error)
            if sentence:
                self._fail(kept, sentence, final=final)

    def _is_final(self, kept: PartRecord, ended: str) -> bool:
        """Returns whether the failed part must not be restarted, because it would fail again. Returns True only with
        `Patience.first_start_must_do`, and only for a part that has never answered. Returns False if a signal ended the part, or if another
        program has the part's port, because that program may end.
        """
        died = self._patience.first_start_must_do and not kept.answered and not ended.startswith("signal")
        return died and not kept.part.port_taken()

    def _take(self, kept: PartRecord, ended: str) -> str:
        """Takes the next step with a part. Returns a sentence if the part failed, and otherwise ""."""
        part, now = kept.part, _now()
        ready = [name for name, other in self._kept.items() if other.state is State.READY]
        step = next_step(kept, now, ready, ended, part.answers)
        if step is SupervisorStep.BEGIN:
            self._say(f"starting {SHOWN.get(part.name, f'the {part.name}')}")
            with held_back():
                part.begin()
                self.begun.append(part.name)
                kept.enter(State.STARTING, now)
        elif step is SupervisorStep.READY:
            kept.enter(State.READY, now)
            kept.answered = True
        elif step is SupervisorStep.FAIL:
            return _failure(part, ended)
        return ""

    def _fail(self, kept: PartRecord, sentence: str, *, final: bool) -> None:
        """Ends a failed part and schedules its restart, or raises ServerError if the part has failed too often. With `final`, raises
        ServerError without a restart. Also restarts the parts whose `after` names the failed part, if they are tasks or are still starting.
        """
        now = _now()
        steady = kept.state is State.READY and now - kept.since >= self._patience.steady_seconds
        kept.failures = 1 if steady else kept.failures + 1
        kept.part.end()
        if final:
            raise ServerError(sentence)
        if kept.failures > self._patience.restarts_max:
            raise ServerError(f"{sentence} (given up after {kept.failures} failures)")
        wait = self._patience.wait_seconds(kept.failures)
        self._say(f"{sentence}; starting it again{f' in {wait:.0f} s' if wait else ''}")
        kept.enter(State.WAITING, now)
        kept.due = now + wait
        for other in self._kept.values():
            if kept.part.name in other.part.after and (other.part.once or other.state is State.STARTING):
                other.part.end()
                other.enter(State.WAITING, now)
