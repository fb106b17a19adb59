"""Turns at Delta tables that runs of several destinations write: one run at a time, by a lock of the table. Whatever writes one asks here.

On a disk, and in S3, Spark's commits look and then write; so what a run that died left running in Spark must have ended before another
destination's run commits: its commit could be written over. (After a run of its own destination it would be one of the same effect.) Who
takes a turn therefore writes down the sessions it has, and takes that back when it is done. Who finds such a text of another ends those
sessions first. What was left of `deltalake` needs no end: its commits never replace a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from spark_jobs.errors import SparkJobError, SparkUnavailableError, TableError
from spark_jobs.fence import Fence
from spark_jobs.session import Lane, SparkSettings, end_sessions, first_line, is_away

POLL_SECONDS = 0.1
GIVE_WAY_SECONDS = 0.3  # to one who waits already
WAIT_SECONDS_MAX = 600.0  # as for the run lock: another may publish the rows of a large table
ENDED_SECONDS = 2.0  # for a statement that was at its commit when it was ended
# Spark ends a statement that nobody waits for after five minutes (spark.connect.execute.manager.detachedTimeout)
DETACHED_SECONDS = 600.0
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


class TableLock(Protocol):
    """The lock of one table over all destinations, and a text beside it; `cdc_engine.destination_files.table_locks` has one."""

    @property
    def held(self) -> bool: ...
    def confirm(self) -> bool: ...
    def try_take(self) -> bool: ...
    def wait_turn(self) -> bool: ...
    def writer(self) -> str: ...
    def write(self, text: str) -> None: ...
    def release(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing:
    """Who has a turn, and the `sessions` it writes by, of the Spark at `remote` as `host` sees it.

    `found_dead`: when another found that it had died without taking this back, seconds since 1970; 0 where nobody has.
    """

    who: str
    host: str = ""
    remote: str = ""
    sessions: tuple[str, ...] = ()
    found_dead: float = 0.0

    @classmethod
    def of(cls, who: str, spark: SparkSettings, lanes: Sequence[Lane]) -> Writing:
        """A session within this process ends with it."""
        found = () if spark.master else tuple(str(lane.session.session_id) for lane in lanes)
        return cls(who=who, host=platform.node(), remote="" if spark.master else spark.remote, sessions=found)

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Writing:
        """Of a text that is not one, somebody without sessions."""
        try:
            record = json.loads(text)
            return cls(**{**record, "sessions": tuple(map(str, record["sessions"]))})
        except (ValueError, KeyError, TypeError):
            return cls(who="another")


def _no_lock(_: str) -> TableLock | None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """The turns of a run. `lock`: of a table, by its path. `who`: the run, for who waits for it. `wait_seconds`: for one turn, at most."""

    lock: Callable[[str], TableLock | None] = _no_lock
    who: str = "a run"
    wait_seconds: float = WAIT_SECONDS_MAX

    @contextlib.contextmanager
    def at(
        self, name: str, path: str, writing: Writing, fence: Fence, *, shared: bool, wait_seconds: float | None = None
    ) -> Iterator[bool]:
        """Holds the table lock of the Delta table at `path`, where it is `shared` with others, and has the fence ask it before each commit.

        False: it is another's, and was so for `wait_seconds`. Where those are not given it waits for as long as all turns may, and then
        raises TableError. It does so too where the turn was lost meanwhile.
        """
        lock = self._opened(name, path) if shared else None
        if lock is None:
            yield True
            return
        turn = _Turn(name, path, lock)
        try:
            given_up = self.wait_seconds if wait_seconds is None else wait_seconds
            if not turn.take(given_up):
                if wait_seconds is None:
                    raise turn.timed_out(given_up)
                lock.release()
                yield False
                return
            with turn.written_down(writing), fence.at(name, turn.why_lost):
                yield True
        finally:
            with contextlib.suppress(Exception):  # then the lock ends with its session
                lock.release()

    def _opened(self, name: str, path: str) -> TableLock | None:
        with _told(name, path):
            return self.lock(path)


NO_TURNS = Turns()


@dataclasses.dataclass(frozen=True)
class _Turn:
    """One turn at one table."""

    name: str
    path: str
    lock: TableLock

    def take(self, wait_seconds: float) -> bool:
        with self._told():
            deadline = time.monotonic() + wait_seconds
            if not self.lock.wait_turn():  # another one waits: it goes first
                if not wait_seconds:
                    return False
                threading.Event().wait(GIVE_WAY_SECONDS)
            while not self.lock.try_take():
                if time.monotonic() >= deadline:
                    return False
                self.lock.wait_turn()
                threading.Event().wait(POLL_SECONDS)
        return True

    def why_lost(self) -> str:
        """Why the table may not be written any more, or empty. Asks where the lock is kept."""
        try:
            held = self.lock.confirm()
        except Exception as error:
            return f"nobody can say whether this run still has the lock of the Delta table {self.path}: {first_line(error)}"
        return "" if held else self._was_lost()

    def _was_lost(self) -> str:
        why = f"the lock of the Delta table {self.path} was lost while it was written (the run stood still, or was cut off)"
        return f"{why}; the batch is tried again"

    def timed_out(self, seconds: float) -> TableError:
        with self._told():
            writer = Writing.from_text(self.lock.writer()).who
        why = f"{writer} has been at the Delta table {self.path} for {seconds:g} s, which shards of several destinations share"
        return TableError(
            self.name, f"{why}; it is waited for and tried again: see what that run does, or end it", own=False
        )

    @contextlib.contextmanager
    def written_down(self, writing: Writing) -> Iterator[None]:
        """What may be left running is known before anything is written, and until all has ended."""
        with self._told():
            self._end_left_over(writing)
            self.lock.write(writing.to_text())
        try:
            yield
        except Exception as error:
            if not _goes_on(error):
                self._take_back()
            raise
        if not self.lock.held:
            raise TableError(self.name, self._was_lost(), own=False)
        self._take_back()

    def _take_back(self) -> None:
        """Where it fails the next one ends sessions that have ended."""
        with contextlib.suppress(Exception):
            if self.lock.held:
                self.lock.write("")

    def _end_left_over(self, ours: Writing) -> None:
        if not (text := self.lock.writer()):
            return
        left = Writing.from_text(text)
        if not left.sessions:
            return
        if _is_reached(left, ours):
            if end_sessions(left.remote, left.sessions):
                threading.Event().wait(ENDED_SECONDS)
            return
        if not left.found_dead:
            left = dataclasses.replace(left, found_dead=time.time())
            self.lock.write(left.to_text())
        if (rest := left.found_dead + DETACHED_SECONDS - time.time()) > 0:
            why = f"{left.who} died at the Delta table {self.path}, and what it began in the Spark {left.remote} of {left.host} may go on"
            raise TableError(self.name, f"{why}; it is waited for {rest:.0f} s, then Spark has ended it", own=False)

    def _told(self) -> contextlib.AbstractContextManager[None]:
        return _told(self.name, self.path)


def _is_reached(left: Writing, ours: Writing) -> bool:
    """Whether what is left is in the Spark that this run has: 127.0.0.1 of another host is another one."""
    host = urllib.parse.urlsplit(left.remote).hostname or ""
    return left.remote == ours.remote and (left.host == ours.host or host not in LOOPBACK)


def _goes_on(error: Exception) -> bool:
    """Whether a statement may run in Spark though its caller heard an error."""
    return isinstance(error, SparkUnavailableError) or is_away(error)


@contextlib.contextmanager
def _told(name: str, path: str) -> Iterator[None]:
    """Who keeps the lock does not answer: no fault of the table's."""
    try:
        yield
    except SparkJobError:
        raise
    except Exception as error:
        why = f"the lock of the Delta table {path}, which shards of several destinations share, cannot be taken: {first_line(error)}"
        raise TableError(name, f"{why}; the batch is tried again", own=False) from error
