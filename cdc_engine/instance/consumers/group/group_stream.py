"""Merges the streams of a group's members into one stream, for one consumer. `barrier` decides the order. This module reads the members'
streams and hands out the transactions that `barrier` chose.

    look at all members ─▶ decide ─▶ some transactions of one member ─▶ decide ─▶ …     until the batch is full, or a member is waited for

A merged stream keeps no changes between two calls, and each call names the position of each member. So a consumer can continue from an
earlier position after a rollback or a restart.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sluice.cdc_engine.binlog.entries.elements import State
from sluice.cdc_engine.contracts import Int64s
from sluice.cdc_engine.errors import (
    ConsumerStoppedError,
    EngineStartingError,
    EngineStoppedError,
    LeaseLostError,
    NotStartedError,
    SourceConnectionError,
)
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen, StreamPosition
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.group.ahead import Ahead, size_of
from sluice.cdc_engine.instance.consumers.group.barrier import Known, NextTransactions, decide
from sluice.cdc_engine.instance.consumers.group.members import MemberStream, View
from sluice.cdc_engine.instance.consumers.pieces import end_of
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.position import GroupPosition, Position
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition

LOOK_SECONDS = 0.1  # The interval at which the group checks the clock of a member for which it waits.
# A member's time of silence grows at each check, by at most this many seconds. Checks happen only while a client requests changes. So,
# without this maximum, every member would count as silent for an hour after an hour without requests.
SILENCE_SECONDS_MAX = 1.0
# The maximum number of runs (consecutive entries of one member) in a batch. A batch ends when it has this many.
RUNS_MAX = 2000
# A commit time that is more than this many µs ahead of the source's clock is replaced by the clock's time, because a session can set any
# commit time by SET timestamp.
FUTURE_US_MAX = 60_000_000
AWAY = (NotStartedError, LeaseLostError, EngineStartingError, EngineStoppedError, SourceConnectionError)


@dataclasses.dataclass(frozen=True)
class GroupStreamPosition:
    """The position of one consumer of a group. `members` has a position for each member's name. `barrier_us` is the commit time in µs since
    1970 up to which transactions were handed out. `late` counts the transactions that arrived after `barrier_us` had passed their commit
    time.

    `newest_us` has, per member, the commit time of the newest transaction that was handed out, in µs since 1970. `left` has the positions
    of members that left the group.
    """

    members: Mapping[str, StreamPosition]
    barrier_us: int = 0
    late: int = 0
    newest_us: Mapping[str, int] = dataclasses.field(default_factory=dict)
    left: tuple[tuple[str, Position], ...] = ()

    @property
    def position(self) -> GroupPosition:
        here = ((name, position.position) for name, position in self.members.items())
        return GroupPosition(members=tuple(sorted((*here, *self.left))), barrier_us=self.barrier_us, late=self.late)

    def restarted(self, members: Sequence[str]) -> GroupStreamPosition:
        """Returns this position with each of `members` moved back to the start of its open transaction. `members` are the members whose
        stream now has another transaction in place of one that the consumer got in part (`WindowReading.restarted`).
        """
        begun = {each: StreamPosition(WindowPosition(self.members[each].position)) for each in members}
        return dataclasses.replace(self, members={**self.members, **begun}) if begun else self


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Consecutive entries of one member in the merged stream. `forms` are the settings that decide how the consumer sees the member's
    rows.
    """

    member: str
    chosen: tuple[Chosen, ...]
    forms: Forms


class GroupProgress:
    """Tracks the position of each member while a batch is filled. Call `position` only once, at the end, because it computes executed sets,
    which takes time.
    """

    def __init__(self, begin: GroupStreamPosition) -> None:
        self._begin, self.barrier_us, self._late = begin, begin.barrier_us, begin.late
        self._newest_us, self._states = dict(begin.newest_us), {each: at.state for each, at in begin.members.items()}
        self._ends: dict[str, tuple[WindowPiece, ...] | WindowPosition] = {}

    def begun(self, member: str) -> bool:
        """Returns whether a part of the member's next transaction was already handed out."""
        return member not in self._ends and self._begin.members[member].window_position.events > 0

    def state(self, member: str) -> State:
        return self._states[member]

    def move(self, member: str, end: tuple[WindowPiece, ...] | WindowPosition, state: State, times: Int64s) -> None:
        """Moves a member to a later position. `end` is this position, or the pieces of the stream that end at it. `times` are the ascending
        commit times of the transactions up to this position, in µs since 1970. A transaction counts as late if its time is before
        `barrier_us`: newer transactions of other members were handed out before it.
        """
        times = np.maximum(times, self._newest_us.get(member, 0))
        self._late += int(np.searchsorted(times, self.barrier_us, "left"))
        self._newest_us[member] = int(times[-1])
        self.barrier_us = max(self.barrier_us, int(times[-1]))
        self._ends[member], self._states[member] = end, state

    def position(self) -> GroupStreamPosition:
        """Returns the new position, or the position given at the start if no member moved."""
        if not self._ends:
            return self._begin
        ends = {each: at if isinstance(at, WindowPosition) else end_of(at) for each, at in self._ends.items()}
        return dataclasses.replace(
            self._begin,
            members={
                **self._begin.members,
                **{each: StreamPosition(at, self._states[each]) for each, at in ends.items()},
            },
            barrier_us=self.barrier_us,
            late=self._late,
            newest_us=self._newest_us,
        )


class GroupStream:
    """The merged stream of a group for one consumer. Implements `server.consumer.ConsumerStream`. If a member is silent for more than
    `wait_seconds`, the group continues without the member. If `wait_seconds` is None, the group waits for a silent member forever. A member
    is silent while no changes arrive and the clock of its source does not advance.

    The status shows `waits_for`, the member whose next transaction may be the oldest, and `why`, the reason why that transaction is
    unknown.
    """

    def __init__(
        self,
        streams: Sequence[MemberStream],
        wait_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = {each.name: each for each in streams}
        self._wait_seconds, self._clock = wait_seconds, clock
        self._looked_at = clock()
        self._silent = dict.fromkeys(self._streams, 0.0)  # Member → for how many seconds it has been silent.
        self._clocks = dict.fromkeys(self._streams, 0)
        self.waits_for = self.why = ""
        self.absent: tuple[str, ...] = ()

    @property
    def reads_alone(self) -> bool:
        return any(each.reads_alone for each in self._streams.values())

    def take(
        self,
        position: GroupStreamPosition,
        bytes_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        entries_max: int = BATCH_EVENTS_MAX,
    ) -> tuple[tuple[Run, ...] | None, GroupStreamPosition]:
        del entries_max  # Has no effect, because conf/ refuses `fetch_unit: entries` for a group.
        deadline = time.monotonic() + timeout_seconds
        while True:
            views = {
                name: each.look(position.members[name].window_position, bytes_max)
                for name, each in sorted(self._streams.items())
            }
            self._hear(views)
            position = position.restarted([name for name, view in views.items() if view.ahead.restarted])
            runs, end = self._merged(views, position, bytes_max)
            if end is not position:
                return runs or None, end
            self._refuse_lost(views[self.waits_for])
            left = deadline - time.monotonic()
            if given_up() or left <= 0:
                return None, position
            waited = self.waits_for
            self._streams[waited].wait(position.members[waited].window_position, min(left, LOOK_SECONDS), given_up)

    def wake(self) -> None:
        for each in self._streams.values():
            each.wake()

    def close(self) -> None:
        for each in self._streams.values():
            each.close()

    def _merged(
        self, views: Mapping[str, View], position: GroupStreamPosition, bytes_max: int
    ) -> tuple[tuple[Run, ...], GroupStreamPosition]:
        """Returns merged entries up to the size of a batch, and the position after them. If the group must first wait for a member, returns
        the unchanged position.
        """
        ahead = {name: _counted(view) for name, view in views.items()}
        runs, moved, left = list[Run](), GroupProgress(position), bytes_max
        while left > 0 and len(runs) < RUNS_MAX:
            known = {
                name: Known(each.times, views[name].clock_us, moved.begun(name), name in self.absent)
                for name, each in ahead.items()
            }
            decision = decide(known, moved.barrier_us)
            self.waits_for, self.why = (
                ("", "") if isinstance(decision, NextTransactions) else (decision.member, _why(views[decision.member]))
            )
            if not isinstance(decision, NextTransactions):
                break
            name, stream, whole = decision.member, self._streams[decision.member], ahead[decision.member]
            readable = stream.readable(whole.first(decision.count))
            # Hands out only the transactions before the first unreadable row. If there are none, `chosen` below raises the error that stops
            # the consumer.
            count = readable or decision.count
            pieces = whole.first(count)
            try:
                chosen, state = stream.chosen(pieces, moved.state(name))
            except ConsumerStoppedError as error:
                if (end := moved.position()) is not position:
                    # First hands out the changes before the error. The next call raises the error again.
                    return tuple(runs), end
                raise ConsumerStoppedError(f"{name}: {error}") from error
            ahead[name] = whole.after(count)
            is_all = not ahead[name].pieces
            moved.move(name, whole.end if is_all else pieces, state, whole.times[:count])
            if chosen:
                runs.append(Run(name, chosen, stream.forms))
            left -= size_of(pieces)
            if is_all:
                break  # Ends here, because the time of the member's next transaction is unknown until the next check.
        return tuple(runs), moved.position()

    def _hear(self, views: Mapping[str, View]) -> None:
        now, before = self._clock(), self._looked_at
        self._looked_at = now
        for name, view in views.items():
            alive = view.ahead.pieces or view.clock_us > self._clocks[name]
            self._silent[name] = 0.0 if alive else self._silent[name] + min(now - before, SILENCE_SECONDS_MAX)
            self._clocks[name] = max(self._clocks[name], view.clock_us)
        limit = self._wait_seconds
        self.absent = () if limit is None else tuple(name for name, each in self._silent.items() if each > limit)

    def _refuse_lost(self, view: View) -> None:
        """Raises ConsumerStoppedError if an error has permanently ended a member's stream. Called when the group waits for the member,
        after all transactions that must come first were handed out. After a temporary error (AWAY), raises nothing, so that the group
        continues to wait.
        """
        if view.trouble is not None and not isinstance(view.trouble, AWAY):
            raise ConsumerStoppedError(f"{self.waits_for}: {view.trouble}") from view.trouble


def _counted(view: View) -> Ahead:
    """Returns a member's transactions with corrected commit times: the times never decrease, and a time more than FUTURE_US_MAX after the
    clock of the member's source becomes the clock's time. A session can set any commit time by SET timestamp.
    """
    times = view.ahead.times
    if view.newest_us:
        times = np.where(times > view.newest_us + FUTURE_US_MAX, view.newest_us, times)
    return dataclasses.replace(view.ahead, times=np.maximum.accumulate(times))


def _why(view: View) -> str:
    return str(view.trouble) if view.trouble is not None else view.clock_trouble
