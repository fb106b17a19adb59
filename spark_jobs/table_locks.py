"""Locks Delta tables that several destinations write, so that only one run at a time writes a table. All code that writes such a table
takes its lock here.

On a disk and in S3, Spark first checks whether a commit exists and then writes it. The check and the write are not atomic. So a statement
that a killed run left in Spark could overwrite a commit that another destination's run makes later. The statement must end before the other
run commits. A later run of the same destination is not affected, because its commit has the same effect as the overwritten commit.

So a run that takes a lock stores the ids of its Spark sessions with the lock, and removes the ids at the end. If a run finds ids of another
run with the lock, it ends those sessions first. Writes by `deltalake` need not be ended, because they never replace an existing commit.
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

from sluice.spark_jobs.errors import SparkJobError, SparkUnavailableError, TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.session import LakeSession, SparkSettings, end_sessions, first_line, is_away

POLL_SECONDS = 0.1
# If another run has waited longer for the lock, this run waits this long before it tries to take the lock, so that the other run gets it.
GIVE_WAY_SECONDS = 0.3
# A run waits at most this long for a table lock, because another run may be publishing a large snapshot. After that, this run does not
# write the table.
WAIT_SECONDS_MAX = 600.0
# After a run has interrupted the sessions of another run, it waits this long before it writes, because a statement that was committing may
# need this time to end.
ENDED_SECONDS = 2.0
# If a run cannot reach the sessions of another run, it waits this long before it writes the table. This is twice the time after which Spark
# ends a statement whose client no longer exists (spark.connect.execute.manager.detachedTimeout).
DETACHED_SECONDS = 600.0
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


class TableLock(Protocol):
    """The lock of one Delta table, for all destinations that write it. Implemented by `cdc_engine.destination_files.table_locks`.

    `held` uses what this process knows, and `confirm` queries the store of the lock. `register_waiting` returns False if another process
    has waited longer. With `write`, the holder stores a text that later holders read with `writer`.
    """

    @property
    def held(self) -> bool: ...
    def confirm(self) -> bool: ...
    def try_take(self) -> bool: ...
    def register_waiting(self) -> bool: ...
    def writer(self) -> str: ...
    def write(self, text: str) -> None: ...
    def release(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing:
    """The text that the holder of a table lock stores with the lock: the holder's name (`who`), and the Spark sessions in which the holder
    writes.

    `remote` is the address of Spark as `host` reaches it. `found_dead` is 0 while the holder runs. If the holder died, and the next holder
    cannot reach the sessions to end them, the next holder sets `found_dead` to the present time, in seconds since 1970.
    """

    who: str
    host: str = ""
    remote: str = ""
    sessions: tuple[str, ...] = ()
    found_dead: float = 0.0

    @classmethod
    def of(cls, who: str, spark: SparkSettings, sessions: Sequence[LakeSession]) -> Writing:
        """Describes a run and its sessions. Leaves out the sessions of a Spark in this process, because they end with the process."""
        found = () if spark.master else tuple(str(session.spark.session_id) for session in sessions)
        return cls(who=who, host=platform.node(), remote="" if spark.master else spark.remote, sessions=found)

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Writing:
        """Parses a stored text. If it is not valid, returns a holder without sessions."""
        try:
            record = json.loads(text)
            return cls(**{**record, "sessions": tuple(map(str, record["sessions"]))})
        except (ValueError, KeyError, TypeError):
            return cls(who="another run")


def _no_lock(_: str) -> TableLock | None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableLocks:
    """Takes table locks for a run. `lock` returns the lock for the path of a table, or None if runs take no locks, as in a merge from the
    command line. Other runs that wait for a lock name its holder with `who` in their messages. The run waits for one lock at most
    `wait_seconds`.
    """

    lock: Callable[[str], TableLock | None] = _no_lock
    who: str = "a run"
    wait_seconds: float = WAIT_SECONDS_MAX

    @contextlib.contextmanager
    def at(
        self, name: str, path: str, writing: Writing, fence: Fence, *, shared: bool, wait_seconds: float | None = None
    ) -> Iterator[bool]:
        """Holds the lock of the Delta table at `path` while the context is open, if the table is `shared`. The fence then checks the lock
        before each commit.

        Yields True if this run has the lock or needs none. Yields False if another run holds the lock for all of `wait_seconds`. If
        `wait_seconds` is None, waits `self.wait_seconds` instead, and raises TableError if another run holds the lock for all of this time.
        Also raises TableError if the lock was lost while the context was open.
        """
        lock = self._opened(name, path) if shared else None
        if lock is None:
            yield True
            return
        held_lock = _HeldLock(name, path, lock)
        try:
            given_up = self.wait_seconds if wait_seconds is None else wait_seconds
            if not held_lock.take(given_up):
                if wait_seconds is None:
                    raise held_lock.timed_out(given_up)
                lock.release()
                yield False
                return
            with held_lock.written_down(writing), fence.at(name, held_lock.why_lost):
                yield True
        finally:
            # A lock that cannot be released expires with the session that the run has in the lock's store.
            with contextlib.suppress(Exception):
                lock.release()

    def _opened(self, name: str, path: str) -> TableLock | None:
        with _translated(name, path):
            return self.lock(path)


NO_TABLE_LOCKS = TableLocks()


@dataclasses.dataclass(frozen=True)
class _HeldLock:
    """One attempt to take and hold the lock of one table."""

    name: str
    path: str
    lock: TableLock

    def take(self, wait_seconds: float) -> bool:
        with self._translated():
            deadline = time.monotonic() + wait_seconds
            if not self.lock.register_waiting():  # False if another run has waited longer.
                if not wait_seconds:
                    return False
                threading.Event().wait(GIVE_WAY_SECONDS)
            while not self.lock.try_take():
                if time.monotonic() >= deadline:
                    return False
                self.lock.register_waiting()
                threading.Event().wait(POLL_SECONDS)
        return True

    def why_lost(self) -> str:
        """Returns why the run may no longer write the table. Returns "" if the run may still write it. Queries the store of the lock."""
        try:
            held = self.lock.confirm()
        except Exception as error:
            return f"this run cannot confirm that it still has the lock of the Delta table {self.path}: {first_line(error)}"
        return "" if held else self._was_lost()

    def _was_lost(self) -> str:
        why = (
            f"the lock of the Delta table {self.path} was lost while the table was written (the run was paused, or lost its "
            "network)"
        )
        return f"{why}; Sluice tries the batch again"

    def timed_out(self, seconds: float) -> TableError:
        with self._translated():
            writer = Writing.from_text(self.lock.writer()).who
        why = (
            f"this run waited {seconds:g} s for the lock of the Delta table {self.path}, which several destinations write, and "
            f"{writer} holds it"
        )
        return TableError(self.name, f"{why}; Sluice tries again. If {writer} hangs, end that run", own=False)

    @contextlib.contextmanager
    def written_down(self, writing: Writing) -> Iterator[None]:
        """Stores the ids of the sessions with the lock before the run writes the table. Removes the ids afterwards, unless a statement
        of the sessions may still be running.
        """
        with self._translated():
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
        """Removes the session ids that are stored with the lock. If this fails, the next run ends sessions that have already ended,
        which does no harm.
        """
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
            why = (
                f"{left.who} ended during a commit to the Delta table {self.path}, and statements of that run "
                f"may still run in the Spark Connect server {left.remote} of {left.host}"
            )
            raise TableError(
                self.name,
                f"{why}; Spark ends these statements within {rest:.0f} s, and Sluice tries the merge again until then",
                own=False,
            )

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return _translated(self.name, self.path)


def _is_reached(left: Writing, ours: Writing) -> bool:
    """Returns whether another run (`left`) used the same Spark as this run (`ours`), so that this run can end the sessions of the other
    run. The same loopback address names the same Spark only if both runs are on the same host.
    """
    host = urllib.parse.urlsplit(left.remote).hostname or ""
    return left.remote == ours.remote and (left.host == ours.host or host not in LOOPBACK)


def _goes_on(error: Exception) -> bool:
    """Returns whether a statement may still be running in Spark after its caller got this error."""
    return isinstance(error, SparkUnavailableError) or is_away(error)


@contextlib.contextmanager
def _translated(name: str, path: str) -> Iterator[None]:
    """Converts errors of the lock's store to a TableError whose cause is not the table itself (`own=False`)."""
    try:
        yield
    except SparkJobError:
        raise
    except Exception as error:
        why = f"the lock of the Delta table {path}, which shards of several destinations share, cannot be taken: {first_line(error)}"
        raise TableError(name, f"{why}; Sluice tries the batch again", own=False) from error
