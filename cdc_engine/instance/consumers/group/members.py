"""Finds the members of a group whose engines run in this process, the clocks of their sources, and the stream of a member for one consumer.

A member's engine may end at any time, for example because conf/ changed or another host took over. The group then reads from the engine
that replaces the ended one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sluice.cdc_engine.binlog.entries.elements import State
from sluice.cdc_engine.errors import NotStartedError, SluiceError
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen, DestinationStream, StreamReader
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.group.ahead import NOTHING, Ahead, ahead_of
from sluice.cdc_engine.instance.consumers.group.clock import MemberClock, SourceClock
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition


class Here(NamedTuple):
    """A member whose engine runs in this process."""

    consumers: Consumers
    clock: MemberClock


class Members:
    """The members of a group. `consumers_of` returns the consumers of a member's engine, or raises SluiceError if the engine does not run
    in this process. `clock_of` creates a member's clock, which queries the member's source for its time. Thread-safe.
    """

    def __init__(
        self,
        names: Iterable[str],
        consumers_of: Callable[[str], Consumers],
        clock_of: Callable[[str, Consumers], MemberClock] | None = None,
    ) -> None:
        self.names = tuple(sorted(names))
        self._consumers_of, self._clock_of = consumers_of, clock_of or _clock_of
        self._here: dict[str, Here] = {}
        self._lock = threading.Lock()
        self._closed = False

    def here(self, name: str) -> Here:
        """Returns the consumers and the clock of a member whose engine runs in this process. Raises SluiceError if the engine runs
        elsewhere or does not run.
        """
        consumers = self._consumers_of(name)
        with self._lock:
            found = self._here.get(name)
            if found is not None and found.consumers is consumers:
                return found
            if self._closed:
                raise NotStartedError(
                    f"the group of {name} is being stopped in this process; `sluice status` shows its state"
                )
            if found is not None:
                found.clock.end()
            clock = self._clock_of(name, consumers)
            self._here[name] = Here(consumers, clock)
            clock.begin()
            return self._here[name]

    def missing(self) -> dict[str, str]:
        """Returns the members whose engines do not run in this process, each with the reason."""
        found = {}
        for name in self.names:
            try:
                self._consumers_of(name)
            except SluiceError as error:
                found[name] = str(error)
        return found

    def known(self) -> dict[str, Here]:
        """Returns the members that `here` has found so far."""
        with self._lock:
            return dict(self._here)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for each in self._here.values():
                each.clock.end()


def _clock_of(name: str, consumers: Consumers) -> MemberClock:
    if consumers.source is None:
        raise NotStartedError(
            f"the clock of the source of {name} cannot be queried, because the engine of {name} reads no source"
        )
    return MemberClock(name, SourceClock(consumers.source))


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """What `MemberStream.look` found in a member's stream after a position.

    - `ahead` has the changes that were found.
    - `clock_us` is set if no changes were found: the stream has read everything that the source committed before this time, in µs since
      1970. If the time is unknown, `clock_us` is 0, and `clock_trouble` may say why.
    - `newest_us` is the current time of the member's source, in µs since 1970.
    - `trouble` is the error that occurred when the member was read.
    """

    ahead: Ahead
    clock_us: int = 0
    newest_us: int = 0
    trouble: SluiceError | None = None
    clock_trouble: str = ""


class MemberStream:
    """One member's stream for one consumer of a group. Call `look`, `wait` and `chosen` from one thread at a time."""

    def __init__(self, name: str, reader: StreamReader, members: Members, filters: Sequence[TableFilter]) -> None:
        self.name = name
        self._reader, self._members, self._filters = reader, members, filters
        self._read: tuple[Consumers, DestinationStream] | None = None
        self._woken = threading.Event()

    @property
    def reads_alone(self) -> bool:
        return self._read is not None and self._read[1].reads_alone

    @property
    def forms(self) -> Forms:
        """The settings that decide how the consumer sees the rows that `chosen` returned last, or the default settings if nothing was read
        yet.
        """
        return self._read[0].forms if self._read is not None else Forms()

    def look(self, position: WindowPosition, bytes_max: int) -> View:
        """Returns what can be read from the member now, without waiting. If the member cannot be read, raises no error, but returns a view
        with the error.
        """
        try:
            here = self._members.here(self.name)
        except SluiceError as error:
            # Closes the consumer's own stream, because the member's engine does not run in this process now.
            self.close()
            return View(Ahead((), position, NOTHING), trouble=error)
        try:
            stream = self._destination_stream(here)
            own = stream.own
            # First gets the stream's state: the position up to which the source was read. If the following read finds no changes, the
            # stream has none up to this position.
            at = own.stream_state() if own is not None else here.consumers.stream_state()
            reading = stream.read(position, bytes_max, 0.0, _never)
        except SluiceError as error:
            return View(Ahead((), position, NOTHING), trouble=error)
        newest_us = here.clock.newest_us
        if reading is not None and reading.pieces:
            return View(ahead_of(reading), newest_us=newest_us)
        clock_us = here.clock.reached_us(at) if reading is not None and stream.own is own else 0
        trouble = "" if clock_us else here.clock.trouble or here.consumers.trouble()
        return View(Ahead((), position, NOTHING), clock_us, newest_us, clock_trouble=trouble)

    def wait(self, position: WindowPosition, seconds: float, given_up: Callable[[], bool]) -> None:
        """Waits until the member has changes after the position, at most for `seconds`, and only until `given_up` returns True."""
        self._woken.clear()
        try:
            stream = self._destination_stream(self._members.here(self.name))
            reading = stream.read(position, 1, seconds, given_up)
        except SluiceError:
            reading = None
        if reading is None and not given_up():
            self._woken.wait(seconds)

    def chosen(self, pieces: Sequence[WindowPiece], state: State) -> tuple[tuple[Chosen, ...], State]:
        """Selects what the consumer gets from pieces of the stream that `look` returned. Raises ConsumerStoppedError if the pieces contain
        rows that cannot be shown, or a RENAME to a name for which conf/ has other row rules or columns.
        """
        if self._read is None:
            raise NotStartedError(f"the engine of {self.name} does not run in this process; `sluice status` shows why")
        return self._read[1].selection.chosen(pieces, state)

    def readable(self, pieces: Sequence[WindowPiece]) -> int | None:
        """Returns how many whole transactions in the pieces come before the first row event that cannot be shown. Returns None if there is
        no such row event, or if nothing was read yet.
        """
        return self._read[1].selection.readable(pieces) if self._read is not None else None

    def wake(self) -> None:
        self._woken.set()
        read = self._read
        if read is not None:
            read[1].wake()

    def close(self) -> None:
        read, self._read = self._read, None
        if read is not None:
            read[1].close()

    def _destination_stream(self, here: Here) -> DestinationStream:
        if self._read is None or self._read[0] is not here.consumers:
            self.close()
            self._read = (here.consumers, here.consumers.stream_for(self._reader, self._filters))
        return self._read[1]


def _never() -> bool:
    return False
