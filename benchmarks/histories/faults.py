"""Simulates the faults of a history and its clocks. A fault is a crash, an error or a stall at a call to something that production depends
on.

A step may have faults, for example "at the third write of the ledger the process dies". The fakes pass each call to `Trouble.reach`, which
decides whether the call has a fault. Time is simulated, and advances only when a step requests this.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

Part = Literal["ledger", "staging", "lake", "source", "storage", "end", "rewind", "record"]
Kind = Literal["crash before", "crash after", "error before", "error after", "stall"]
PARTS: dict[Part, str] = {
    "ledger": "write of the ledger",
    "staging": "staging of a batch",
    "lake": "statement for the lake",
    "source": "call to the source",
    "storage": "call to Dagster's storage",
    "end": "end of a run that has merged all tables",
    "record": "record of a table's version after a run",
    "rewind": "stop of the parser's thread",
}
START_SECONDS = 1_700_000_000.0


class Crash(BaseException):
    """Simulates SIGKILL: the process ends here. Production code must not catch it."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the `nth` call to `part` during a step, counted from 1."""

    part: Part
    nth: int
    kind: Kind

    def __str__(self) -> str:
        what = {
            "crash before": "the process dies before it",
            "crash after": "the process dies right after it",
            "error before": "it fails",
            "error after": "the call is executed, but returns an error",
            "stall": "the process hangs",
        }[self.kind]
        return f"at the {ordinal(self.nth)} {PARTS[self.part]} {what}"


def ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


class Trouble:
    """The faults of the current step."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._counts: Counter[Part] = Counter()
        # True while a crash propagates through a process. During this time the process must not write.
        self.dying = False

    @contextlib.contextmanager
    def death(self) -> Iterator[None]:
        """Suppresses, until the block ends, everything that a killed process would still do."""
        self.dying = True
        try:
            yield
        finally:
            self.dying = False

    def arm(self, faults: Sequence[Fault] = ()) -> None:
        self._faults, self._counts = list(faults), Counter()

    def reach(self, part: Part, act: Callable[[], object], error: Callable[[], Exception]) -> object:
        """Calls `act`. If this call has a fault, the fault occurs before or after the call. `error` creates the error of a fault."""
        if self.dying:
            raise Crash
        kind = self._met(part)
        if kind == "stall":
            stall()
        if kind == "crash before":
            raise self._crash()
        if kind == "error before":
            raise error()
        outcome = act()
        if kind == "crash after":
            raise self._crash()
        if kind == "error after":
            raise error()
        return outcome

    def _crash(self) -> Crash:
        self.dying = True
        return Crash()

    def _met(self, part: Part) -> Kind | None:
        self._counts[part] += 1
        met = next((each for each in self._faults if (each.part, each.nth) == (part, self._counts[part])), None)
        if met is None:
            return None
        self._faults.remove(met)
        return met.kind


class Clock:
    """Replaces the module `time` wherever production reads a clock."""

    def __init__(self) -> None:
        self.seconds = START_SECONDS  # The wall clock, which can be set back.
        self.ticks = 1000.0  # The monotonic clock.

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.ticks += max(0.0, seconds)

    def time(self) -> float:
        return self.seconds

    def time_ns(self) -> int:
        return int(self.seconds * 1e9)

    def monotonic(self) -> float:
        return self.ticks

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Actor:
    """A thread that runs only when the history resumes it. Only one actor runs at a time, so that a seed always gives the same history.

    `resume` runs the thread until it suspends or ends. After `kill`, it runs no more production code.
    """

    current = threading.local()

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        # The history and the actor pass control to each other by these locks. Either the history or the actor always waits.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.ended = self.killed = self.crashed = False
        self.error: BaseException | None = None
        self.stopping: Callable[[], bool] = lambda: False
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Runs the body of the actor in its thread. Production calls this function where production creates the thread itself."""
        self._go.acquire()
        Actor.current.actor = self
        try:
            if not self.killed:
                self._body()
        except Crash:
            self.crashed = not self.killed
        except BaseException as error:  # This error is a defect of the simulation, and `resume` raises it.
            self.error = error
        self.ended = True
        self._back.release()

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        if self.ended:
            return
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def suspend(self) -> None:
        """Suspends the calling actor until the history resumes it. Raises Crash if the actor was killed meanwhile."""
        self._back.release()
        self._go.acquire()
        if self.killed:
            raise Crash

    def kill(self) -> None:
        self.killed = True
        self.resume()

    @staticmethod
    @contextlib.contextmanager
    def nobody() -> Iterator[None]:
        """Lets the calling thread act for another process until the block ends. The thread is not suspended in the block, because other
        threads wait for its locks.
        """
        actor, Actor.current.actor = getattr(Actor.current, "actor", None), None
        try:
            yield
        finally:
            Actor.current.actor = actor


def stall() -> None:
    """Suspends the calling process if it is an actor, as SIGSTOP does."""
    actor = getattr(Actor.current, "actor", None)
    if actor is not None:
        actor.suspend()
