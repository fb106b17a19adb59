"""The snapshots of a destination on disk: `snapshots/<digest of the table>/snapshot.json`, with the held files and the chunks beside it.

The console begins, pauses and cancels, a run of the snapshot job reads and publishes, a run that merges holds changes: each change of a
record is made under a lock, from what the record is then. Only who holds the run lock makes a change by which held files are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import ActRefusedError, MetaError
from cdc_engine.ha.file_lock import FileLock, is_locked
from cdc_engine.snapshot.record import SnapshotRecord

FOLDER, RECORD_FILE, LOCK_FILE, READING_FILE = "snapshots", "snapshot.json", "records.lock", "reading.lock"
LOCK_SECONDS_MAX, LOCK_POLL_SECONDS = 30.0, 0.02

Transition = Callable[[SnapshotRecord], SnapshotRecord]


class SnapshotRecords:
    """Of one destination. Its methods may be called from any process and thread."""

    def __init__(self, destination_dir: Path) -> None:
        self._folder = destination_dir / FOLDER

    def all(self) -> tuple[SnapshotRecord, ...]:
        """The newest snapshot of each table that ever had one, by name. Raises MetaError."""
        found = [_read(path) for path in sorted(self._folder.glob(f"*/{RECORD_FILE}"))]
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))

    def get(self, name: str) -> SnapshotRecord | None:
        """Of "database.table"; None where it never had one. Raises MetaError."""
        return _read(self._record(name))

    def begin(self, record: SnapshotRecord) -> None:
        """Keeps a snapshot that is wanted. Raises ActRefusedError while one of the table is open, MetaError."""
        with self._locked():
            before = self.get(record.name)
            if before is not None and before.is_open:
                raise ActRefusedError(f"a snapshot of {record.name} is under way ({before.state}); cancel it first")
            self._keep(record)
            self._sweep(record)

    def update(self, name: str, transition: Transition) -> SnapshotRecord:
        """The record after a transition, on disk. Raises what the transition does, ActRefusedError where there is none, MetaError."""
        with self._locked():
            before = self.get(name)
            if before is None:
                raise ActRefusedError(f"there is no snapshot of {name}")
            after = transition(before)
            if after != before:
                self._keep(after)
            return after

    def changes_dir(self, record: SnapshotRecord) -> Path:
        """Where the held files are. Chunks that are read anew leave them where they are; a statement that changed the table does not."""
        return self._home(record.name) / f"{record.snapshot_id}-changes-{record.held_after}"

    def chunks_dir(self, record: SnapshotRecord) -> Path:
        """Where the rows of the record's generation are."""
        return self._home(record.name) / f"{record.snapshot_id}-chunks-{record.generation}"

    def reading(self) -> FileLock:
        """Held by the one run that reads and publishes; free where none does, whatever Dagster believes."""
        return FileLock(self._folder / READING_FILE)

    def are_read(self) -> bool:
        """Whether some process reads and publishes now."""
        return is_locked(self._folder / READING_FILE)

    def still_seconds(self, record: SnapshotRecord, now: float) -> float:
        """For how long a snapshot that a run could bring further has stood still, nobody reading; else 0. `now`: of the wall."""
        if not record.has_work or self.are_read():
            return 0.0
        try:
            return max(0.0, now - self._record(record.name).stat().st_mtime)
        except OSError:
            return 0.0

    def sweep(self, name: str) -> None:
        """Removes what is no longer needed: other generations, and of a snapshot that ended everything."""
        with self._locked():
            if (record := self.get(name)) is not None:
                self._sweep(record)

    def _sweep(self, record: SnapshotRecord) -> None:
        kept = {self.changes_dir(record), self.chunks_dir(record)} if record.is_open else set()
        for path in self._home(record.name).iterdir():
            if path.is_dir() and path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _keep(self, record: SnapshotRecord) -> None:
        keep_file(self._record(record.name), json.dumps(record.to_json(), indent=1) + "\n")

    def _home(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]

    def _record(self, name: str) -> Path:
        return self._home(name) / RECORD_FILE

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


def _read(path: Path) -> SnapshotRecord | None:
    try:
        return SnapshotRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetaError(
            f"{path} cannot be read ({error}): put the right file back, or remove its folder and take the table anew"
        ) from error
