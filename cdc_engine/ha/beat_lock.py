"""Implements a lock as a record of a shared record store, for installations without ZooKeeper. The holder of the lock writes a new version
of the record at short intervals, by compare-and-set.

A process that wants the lock watches the record. If the record's version does not change for `seconds`, the length of a session, the
process considers the holder dead and replaces the record. The process measures this time by its own clock: clocks of two machines are never
compared. If two processes replace the record at the same time, the store refuses one of the two writes. A holder that cannot write new
versions gives up the lock well before the session ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import uuid

from sluice.cdc_engine.contracts import Holder
from sluice.cdc_engine.errors import MetaError, StaleWriteError
from sluice.cdc_engine.ha.session import CONFIRM_PART, LeaseSession, now
from sluice.cdc_engine.records.contract import NOT_THERE, RecordStore, StoredRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class LockClaim:
    """The content of a lock's record. `claim_id` identifies the object that took the lock, and `since` is when it took the lock, in seconds
    since 1970. `token` is greater than the tokens of all earlier holders. `pid` and `host` name the holder's process for messages. `held`
    is False after the lock was released.
    """

    claim_id: str
    pid: int
    host: str
    since: float
    token: int
    held: bool

    def holder(self, *, held: bool) -> Holder:
        return Holder(pid=self.pid, host=self.host, since=self.since, token=self.token, held=held)


class LockWatcher:
    """Watches the record of a lock: remembers the newest version of the record that this process has read, and when it read this version
    for the first time. Thread-safe.
    """

    def __init__(self, store: RecordStore, name: str, seconds: float) -> None:
        self._store, self._name, self._seconds = store, name, seconds
        self._lock = threading.Lock()
        self._seen: tuple[int, float] = (NOT_THERE, 0.0)

    def look(self) -> tuple[StoredRecord | None, LockClaim | None, bool]:
        """Reads the record of the lock. Returns the record, the parsed content, and whether a process holds the lock. No process holds the
        lock if it was released or never taken, or if the record's version has not changed for `seconds`. Raises MetaError if the record
        store does not answer.
        """
        requested_at = now()
        kept = self._store.read(self._name)
        claim = _claim(kept.text, f"{self._name} in {self._store}") if kept else None
        with self._lock:
            if kept is not None and kept.version != self._seen[0]:
                self._seen = (kept.version, now())
            silent_seconds = requested_at - self._seen[1]
        return kept, claim, claim is not None and claim.held and silent_seconds < self._seconds


class BeatLock:
    """A lock that only one process of all hosts can hold at a time, stored as a record. While the lock is held, `token` is greater than the
    tokens of all earlier holders; otherwise it is 0. `seconds` is the length of a session: after this time without a new version of the
    record, another process may take the lock.
    """

    def __init__(self, store: RecordStore, name: str, seconds: float, watcher: LockWatcher | None = None) -> None:
        """Prepares the lock without taking it. `watcher` is an existing watcher of the lock's record, or None for a new one. An existing
        watcher has already watched the record for some time, so it finds out sooner that the holder is dead.
        """
        self._store, self._name = store, name
        self._watcher = watcher or LockWatcher(store, name, seconds)
        self._session = LeaseSession(seconds)
        self._claim_id = uuid.uuid4().hex
        self._claim: LockClaim | None = None
        self._version = NOT_THERE
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        # Held during each write, so that the thread of this lock and a caller of `confirm` do not write at the same time.
        self._beating = threading.Lock()

    @property
    def token(self) -> int:
        return self._claim.token if self._claim else 0

    @property
    def held(self) -> bool:
        """Whether the lock is held, and was confirmed so recently that no other process can have taken it."""
        return self._claim is not None and self._session.trusted

    def try_acquire(self) -> bool:
        """Takes the lock if it is free or its holder counts as dead, without waiting. Returns whether this object holds the lock. Raises
        MetaError if the record store does not answer.
        """
        if self.held:
            return True
        self._forget()
        kept, there, is_held = self._watcher.look()
        # If the record has this object's own claim id, an earlier attempt took the lock, and only the answer was lost. So the lock is taken
        # again.
        if is_held and there is not None and there.claim_id != self._claim_id:
            return False
        claim = LockClaim(
            claim_id=self._claim_id,
            pid=os.getpid(),
            host=socket.gethostname(),
            since=time.time(),
            token=(there.token if there else 0) + 1,
            held=True,
        )
        requested_at = now()
        try:
            self._version = self._write(claim, kept.version if kept else NOT_THERE)
        except StaleWriteError:
            return False
        self._claim = claim
        self._session.begin(requested_at)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(claim, self._ending), daemon=True)
        self._thread.name = f"beat-{self._name}"
        self._thread.start()
        return True

    def confirm(self) -> bool:
        """Writes a new version of the record, and returns whether this object still holds the lock. Returns False if this object does not
        hold the lock, or if another process has replaced the record. Raises MetaError if the record store does not answer.
        """
        claim = self._claim
        return claim is not None and self._beat_once(claim) and self.held

    def release(self) -> None:
        """Releases the lock, if it is held. If the record store does not answer, the lock becomes free when the session ends."""
        claim, version = self._claim, self._version
        self._forget()
        if claim is not None:
            with contextlib.suppress(MetaError), self._beating:
                self._write(dataclasses.replace(claim, held=False), self._version or version)

    def _forget(self) -> None:
        self._ending.set()
        self._session.end()
        if self._thread is not None:
            self._thread.join()
        self._thread = self._claim = None

    def _beat(self, claim: LockClaim, ending: threading.Event) -> None:
        while not ending.wait(self._session.seconds * CONFIRM_PART):
            # If the record store does not answer, the lock expires at the end of the session.
            with contextlib.suppress(MetaError):
                if not self._beat_once(claim):
                    return

    def _beat_once(self, claim: LockClaim) -> bool:
        """Writes a new version of the record. Returns whether this claim still holds the lock. Raises MetaError if the record store does
        not answer.
        """
        with self._beating:
            # Writes nothing if the lock was released while this call waited, because a new version would take the lock again.
            if self._claim is not claim:
                return False
            requested_at = now()
            try:
                self._version = self._write(claim, self._version)
            except StaleWriteError:
                if not self._is_ours(claim):
                    self._session.end()
                    return False
            self._session.confirm(requested_at)
            return True

    def _is_ours(self, claim: LockClaim) -> bool:
        """Called if a write failed with StaleWriteError. Returns whether this object wrote the stored record. This is the case if the
        record store carried out an earlier write whose answer was lost. This object then still holds the lock.
        """
        with contextlib.suppress(MetaError):
            kept, there, _ = self._watcher.look()
            if (
                kept is not None
                and there is not None
                and (there.claim_id, there.token) == (claim.claim_id, claim.token)
            ):
                self._version = kept.version
                return True
        return False

    def _write(self, claim: LockClaim, version: int) -> int:
        return self._store.write(self._name, json.dumps(dataclasses.asdict(claim)), version=version)


def _claim(text: str, where: str) -> LockClaim:
    try:
        return LockClaim(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise MetaError(
            f"{where} does not have the content that Sluice writes ({error}); remove this record while no engine runs"
        ) from error
