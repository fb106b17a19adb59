"""Stores the records of a destination's snapshots: one file per record, changed under a lock, or records that all hosts share.

Used by `records`. Each change is computed from the record's current state, and no two changes from the same state.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from cdc_engine.contracts import LedgerLocation
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError, StaleWriteError
from cdc_engine.ha.file_lock import FileLock
from cdc_engine.records.contract import NOT_THERE, RecordStore
from cdc_engine.records.location import shared_record_store
from cdc_engine.snapshot.record import SnapshotRecord

RECORD_FILE, LOCK_FILE = "snapshot.json", "records.lock"
DOCUMENT = "rows-of-"  # followed by the table's digest
LOCK_SECONDS_MAX, LOCK_POLL_SECONDS = 30.0, 0.02
TRIES_MAX = 100  # attempts for a change that conflicts with others

Change = Callable[[SnapshotRecord | None], SnapshotRecord]


class RecordTexts(Protocol):
    """The records of one destination. Any process and thread may use it. Every method raises MetaError."""

    def all(self) -> tuple[SnapshotRecord, ...]: ...

    def get(self, name: str) -> SnapshotRecord | None: ...

    def change(self, name: str, change: Change) -> SnapshotRecord:
        """Applies a change and returns the stored result. Raises what `change` raises. A change without effect writes nothing."""

    def kept_at(self, name: str) -> float | None:
        """Returns when it was last stored, in seconds since 1970."""

    def alone(self) -> AbstractContextManager[object]:
        """Prevents changes by other processes within the block, if the storage supports that."""


def digest_of(name: str) -> str:
    """Returns the digest of a "database.table" that names its files and records."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class RecordFiles:
    """Implements `RecordTexts` in a folder of the destination."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alone = threading.local()

    def all(self) -> tuple[SnapshotRecord, ...]:
        found = [_read(path) for path in sorted(self._folder.glob(f"*/{RECORD_FILE}"))]
        return tuple(each for each in found if each is not None)

    def get(self, name: str) -> SnapshotRecord | None:
        return _read(self._path(name))

    def change(self, name: str, change: Change) -> SnapshotRecord:
        with self.alone():
            before = self.get(name)
            after = change(before)
            if after != before:
                keep_file(self._path(name), json.dumps(after.to_json(), indent=1) + "\n")
            return after

    def kept_at(self, name: str) -> float | None:
        try:
            return self._path(name).stat().st_mtime
        except OSError:
            return None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock within the block; may be nested."""
        if getattr(self._alone, "held", False):
            yield
            return
        with self._locked():
            self._alone.held = True
            try:
                yield
            finally:
                self._alone.held = False

    def _path(self, name: str) -> Path:
        return self._folder / digest_of(name) / RECORD_FILE

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock, deadline = FileLock(self._folder / LOCK_FILE), time.monotonic() + LOCK_SECONDS_MAX
        while not lock.try_acquire():
            if time.monotonic() >= deadline:
                raise MetaError(
                    f"another process keeps {lock.path} for {LOCK_SECONDS_MAX:g} s: look what it does, or end it"
                )
            threading.Event().wait(LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            lock.release()


class SharedRecords:
    """Implements `RecordTexts` with records that all hosts share, by compare-and-set."""

    def __init__(self, place: LedgerLocation) -> None:
        self._place = place

    def all(self) -> tuple[SnapshotRecord, ...]:
        there = self._documents.read_all(DOCUMENT)
        return tuple(self._parsed(name, kept.text)[1] for name, kept in there.items())

    def get(self, name: str) -> SnapshotRecord | None:
        kept = self._documents.read(_document(name))
        return self._parsed(_document(name), kept.text)[1] if kept else None

    def change(self, name: str, change: Change) -> SnapshotRecord:
        for _ in range(TRIES_MAX):
            kept = self._documents.read(_document(name))
            before = self._parsed(_document(name), kept.text)[1] if kept else None
            after = change(before)
            if after == before:
                return after
            text = json.dumps({"kept_at": time.time(), "record": after.to_json()})
            with contextlib.suppress(StaleWriteError):
                self._documents.write(_document(name), text, version=kept.version if kept else NOT_THERE)
                return after
        raise MetaError(f"others change the record of {name} in {self._documents} all the time; it is tried again")

    def kept_at(self, name: str) -> float | None:
        kept = self._documents.read(_document(name))
        return self._parsed(_document(name), kept.text)[0] if kept else None

    def alone(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    @functools.cached_property
    def _documents(self) -> RecordStore:
        return shared_record_store(self._place)

    def _parsed(self, name: str, text: str) -> tuple[float, SnapshotRecord]:
        try:
            said = json.loads(text)
            return float(said["kept_at"]), SnapshotRecord.from_json(said["record"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(f"{name} in {self._documents}", "it", error) from error


def _document(name: str) -> str:
    return f"{DOCUMENT}{digest_of(name)}"


def _read(path: Path) -> SnapshotRecord | None:
    try:
        return SnapshotRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(str(path), "its folder", error) from error


def _unreadable(where: str, what: str, error: Exception) -> MetaError:
    return MetaError(
        f"{where} cannot be read ({error}): put the right one back, or remove {what} and take the table anew"
    )
