"""What goes wrong in a history, and when: a crash, an error, or a stall at a call to the outside; and the clocks. Used by all fakes.

A step may carry faults: "at the third write of the ledger the process dies". The fakes ask `Trouble.reach` before and after what they
do; nothing else decides. Time is played: it moves when a step says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

Place = Literal["ledger", "staging", "lake", "source", "storage", "end", "rewind", "record"]
Kind = Literal["crash before", "crash after", "error before", "error after", "stall"]
PLACES: dict[Place, str] = {
    "ledger": "write of the ledger",
    "staging": "staging of a batch",
    "lake": "statement for the lake",
    "source": "call to the source",
    "storage": "call to Dagster's storage",
    "end": "end of a run that has merged all",
    "record": "note of how a table was left",
    "rewind": "stop of the parser's thread",
}
START_SECONDS = 1_700_000_000.0


class Crash(BaseException):
    """The process ends here, as by SIGKILL. No production code may catch it."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """At the `nth` call (from 1) to `place` during its step."""

    place: Place
    nth: int
    kind: Kind

    def __str__(self) -> str:
        what = {
            "crash before": "the process dies before it",
            "crash after": "the process dies right after it",
            "error before": "it fails",
            "error after": "it is done, but the answer is an error",
            "stall": "the process stands still there",
        }[self.kind]
        return f"at the {ordinal(self.nth)} {PLACES[self.place]} {what}"


def ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


class Trouble:
    """The faults of the step that is being played."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._counts: Counter[Place] = Counter()
        self.dying = False  # a process is on its way out after a crash: it must not write any more

    @contextlib.contextmanager
    def death(self) -> Iterator[None]:
        """Within it, whatever still runs of a process that died does nothing."""
        self.dying = True
        try:
            yield
        finally:
            self.dying = False

    def arm(self, faults: Sequence[Fault] = ()) -> None:
        self._faults, self._counts = list(faults), Counter()

    def reach(self, place: Place, act: Callable[[], object], error: Callable[[], Exception]) -> object:
        """Does `act` with whatever goes wrong at this call."""
        if self.dying:
            raise Crash
        kind = self._met(place)
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

    def _met(self, place: Place) -> Kind | None:
        self._counts[place] += 1
        met = next((each for each in self._faults if (each.place, each.nth) == (place, self._counts[place])), None)
        if met is None:
            return None
        self._faults.remove(met)
        return met.kind


class Clock:
    """Stands in for the module `time` wherever production looks at a clock."""

    def __init__(self) -> None:
        self.seconds = START_SECONDS  # of the wall clock, which may go back
        self.ticks = 1000.0  # of the monotonic one

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
    """A thread that runs only while the history lets it: one at a time, so that all is the same for the same seed.

    `resume` runs it until it suspends or ends. `kill`: it never runs production code again.
    """

    current = threading.local()

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._go, self._back = threading.Lock(), threading.Lock()  # handed to and fro: one side waits for the other
        self._go.acquire()
        self._back.acquire()
        self.ended = self.killed = self.crashed = False
        self.error: BaseException | None = None
        self.stopping: Callable[[], bool] = lambda: False
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """The thread's own body, where production made the thread."""
        self._go.acquire()
        Actor.current.actor = self
        try:
            if not self.killed:
                self._body()
        except Crash:
            self.crashed = not self.killed
        except BaseException as error:  # a defect of the simulation, raised where it is driven from
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
        """Called in its own thread: the history goes on until it resumes this one. Raises Crash when it was killed meanwhile."""
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
        """Within it the calling thread does what another process does, which cannot stand still: others wait for its locks."""
        actor, Actor.current.actor = getattr(Actor.current, "actor", None), None
        try:
            yield
        finally:
            Actor.current.actor = actor


def stall() -> None:
    """The calling process stands still, as by SIGSTOP, if it is one that can."""
    actor = getattr(Actor.current, "actor", None)
    if actor is not None:
        actor.suspend()
