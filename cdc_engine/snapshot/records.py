"""Stores the snapshots of a destination: a record for each table (`snapshots/<digest of the table>.json`), and the files with buffered
changes and chunks in `snapshots/<digest of the table>/`. If the ledger is shared and staged batches are in an object store, these files are
in the object store too.

The console begins, pauses and cancels snapshots; a run of the snapshot job reads and publishes them; a merge run buffers changes. Each
change of a record is computed from the stored record, so that no change is lost. Only the holder of the run lock may change a record in
such a way that buffered files are no longer used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

from sluice.cdc_engine.contracts import LedgerLocation
from sluice.cdc_engine.errors import ActRefusedError, MetaError
from sluice.cdc_engine.ha.leases import READING, Lock, acquired_within, lock_held, open_lock
from sluice.cdc_engine.records.contract import RecordStore, StoredRecord
from sluice.cdc_engine.records.location import as_location, record_store
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.states import SnapshotState
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import resolved
from sluice.object_stores.stored_files import StoredFiles

FOLDER = "snapshots"
PARSED_MAX = 10_000  # A process caches at most this many parsed records, of some 2 kB each.

KNOWN_MAX = 128  # A process caches the snapshots of at most this many destinations.

# Location of the record store → the records that it returned last, and the snapshots that were parsed from them. Needs no lock, because
# threads replace an entry as a whole.
_known: dict[LedgerLocation, tuple[Mapping[str, StoredRecord], tuple[SnapshotRecord, ...]]] = {}
Transition = Callable[[SnapshotRecord], SnapshotRecord]


def digest_of(name: str) -> str:
    """Returns a digest of a table's name ("database.table"), which the names of the table's files and records contain."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class SnapshotRecords:
    """The snapshots of one destination. Any process and thread may call its methods."""

    def __init__(self, destination_dir: Path) -> None:
        self._folder = destination_dir / FOLDER
        self._location = location = as_location(destination_dir)
        self._records: RecordStore = record_store(location)

    def all(self) -> tuple[SnapshotRecord, ...]:
        """Returns the newest snapshot of each table that ever had a snapshot, sorted by name. Raises MetaError if a record cannot be read.

        Ignores a record whose file name belongs to another table, for example an operator's copy. A copy would appear as a second snapshot
        of the table, which no transition could end.
        """
        stored = self._records.read_all(f"{FOLDER}/")
        known = _known.get(self._location)
        if known is not None and known[0] is stored:
            return known[1]
        found = ((key, self._parsed(key, each.text)[1]) for key, each in stored.items())
        ordered = tuple(sorted((each for key, each in found if key == _key(each.name)), key=lambda each: each.name))
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[self._location] = (stored, ordered)
        return ordered

    def get(self, name: str) -> SnapshotRecord | None:
        """Returns the newest snapshot of "database.table", or None if the table never had a snapshot. Raises MetaError if the record cannot
        be read.
        """
        text = self._records.get(_key(name))
        return None if text is None else self._parsed(_key(name), text)[1]

    def begin(self, record: SnapshotRecord) -> None:
        """Stores the record of a requested snapshot, and removes the files of the table's earlier snapshot. Raises ActRefusedError while
        another snapshot of the table is open, and MetaError if the record cannot be stored.

        If the earlier snapshot was canceled, the lake still has the rows that the earlier snapshot would have replaced. So the stored
        record also gets the `heals` of the earlier record.
        """

        def begun(before: SnapshotRecord | None) -> SnapshotRecord:
            if before is not None and before.is_open:
                raise ActRefusedError(
                    f"a snapshot of {record.name} is in progress ({before.state}); cancel that snapshot first"
                )
            left = before.heals if before is not None and before.state == SnapshotState.CANCELED else ()
            return record.healing(*left)

        self._change(record.name, begun)
        self.sweep(record.name)

    def update(self, name: str, transition: Transition) -> SnapshotRecord:
        """Applies a transition to a table's record and returns the stored record. Raises the errors of the transition, ActRefusedError if
        the table has no record, and MetaError if the record cannot be read or stored.
        """

        def changed(before: SnapshotRecord | None) -> SnapshotRecord:
            if before is None:
                raise ActRefusedError(f"{name} has no snapshot; `sluice snapshot status` lists all snapshots")
            return transition(before)

        return self._change(name, changed)

    def forget_ended(self, captured: Container[str], before: float) -> tuple[str, ...]:
        """Removes the snapshots that ended before the time `before`, with their files, if their tables are not captured any more. `before`
        is in seconds since 1970. Keeps a snapshot that another process requests during the call. Returns the names of the tables whose
        snapshots were removed. Raises MetaError if the record store does not answer or a record is invalid.
        """
        forgotten = []
        for key, stored in sorted(self._records.read_all(f"{FOLDER}/").items()):
            kept_at, record = self._parsed(key, stored.text)
            if record.is_open or record.name in captured or kept_at >= before:
                continue
            if key == _key(record.name):
                self.sweep(record.name)
            if self._records.remove(key, stored.version):
                forgotten.append(record.name)
                # Keeps the folder if it has files of a snapshot that another process requested during the call. The folder may also be
                # missing.
                with contextlib.suppress(OSError):
                    (self._folder / digest_of(record.name)).rmdir()
        return tuple(forgotten)

    def changes(self, record: SnapshotRecord) -> StoredFiles:
        """Returns the location of a snapshot's buffered changes. The location changes when `buffered_after` of the record changes, because
        the changes that were buffered before are no longer used.
        """
        return self._stored_files(record.name, f"{record.snapshot_id}-changes-{record.buffered_after}")

    def cascades(self, record: SnapshotRecord) -> StoredFiles:
        """Returns the location of buffered changes of parent tables, which foreign keys pass on to rows of the snapshot's table. The
        location changes when `buffered_after` of the record changes, like the location that `changes` returns.
        """
        return self._stored_files(record.name, f"{record.snapshot_id}-cascades-{record.buffered_after}")

    def cascade_changes(self, record: SnapshotRecord) -> int:
        """Returns how many changes of parent tables are buffered for an open snapshot, or 0 if the snapshot has ended. Raises MetaError if
        the names of the files cannot be read.

        The number is in the names of the files that `spark_jobs/snapshot/buffered_cascades.py` writes.
        """
        if not record.is_open:
            return 0
        with _translated():
            counts = (name.split(".")[1] for name in self.cascades(record).names())
            return max((int(count) for count in counts if count.isdigit()), default=0)

    def chunks(self, record: SnapshotRecord) -> StoredFiles:
        """Returns the location of a snapshot's chunks. The location changes when `generation` of the record rises: all rows are then
        read again.
        """
        return self._stored_files(record.name, f"{record.snapshot_id}-chunks-{record.generation}")

    def reading(self) -> Lock:
        """Returns the lock that a run holds while it reads and publishes snapshots. The lock becomes free when the run is killed, even if
        Dagster still shows the run as started.
        """
        return open_lock(self._location, READING)

    def take_reading(self) -> Lock | None:
        """Acquires the lock that a run holds while it reads and publishes snapshots, and returns the lock. Returns None if another run has
        the lock. With a shared ledger, waits until the lock of a run that was killed on another host would have expired.
        """
        reading = self.reading()
        seconds = 2 * self._location.session_seconds if self._location.is_shared else 0.0
        return reading if acquired_within(reading, seconds) else None

    def are_read(self) -> bool:
        """Returns whether a run reads and publishes snapshots now."""
        return lock_held(self._location, READING)

    def still_seconds(self, now: float) -> dict[str, float]:
        """Returns for how many seconds snapshots that wait for a run have made no progress, by "database.table". Returns {} if a run reads
        snapshots now. `now` is in seconds since 1970.
        """
        if self.are_read():
            return {}
        found = (self._parsed(key, text) for key, text in self._records.all(FOLDER).items())
        return {each.name: max(0.0, now - kept_at) for kept_at, each in found if each.has_work}

    def sweep_buffered(self, name: str) -> None:
        """Removes buffered files that a table's snapshot no longer uses. Called after the snapshot was restarted, so that its rows are read
        again. Keeps all chunks, because a run may be writing chunks now. The caller must hold the run lock.
        """
        self._sweep(name, lambda folder: "-chunks-" not in folder)

    def sweep(self, name: str) -> None:
        """Removes files that a table's snapshot no longer needs. If the snapshot is open, keeps the buffered changes and chunks that its
        record names. If the snapshot has ended, keeps no files. Raises MetaError if the record cannot be read or a store does not answer.
        """
        self._sweep(name, lambda _: True)

    def _sweep(self, name: str, may_go: Callable[[str], bool]) -> None:
        # Lists the folders before it reads the record, so that it does not remove a folder that another process creates for a newer record.
        home, stored = self._folder / digest_of(name), self._store(name)
        here = [path for path in home.iterdir() if path.is_dir()] if home.is_dir() else []
        with _translated():
            there = stored.children() if stored else set()
        if not here and not there:
            return
        record = self.get(name)
        if record is None:
            return
        locations = (self.changes(record), self.cascades(record), self.chunks(record)) if record.is_open else ()
        kept = {each.folder.name for each in locations}
        for path in here:
            if path.name not in kept and may_go(path.name):
                shutil.rmtree(path, ignore_errors=True)
        with _translated():
            for each in filter(may_go, there - kept):
                self._store(name, each).remove()  # type: ignore[union-attr]

    def _change(self, name: str, change: Callable[[SnapshotRecord | None], SnapshotRecord]) -> SnapshotRecord:
        """Applies a change to a table's current record and returns the stored record. Writes nothing if the change has no effect."""
        key = _key(name)

        def changed(text: str | None) -> str:
            before = None if text is None else self._parsed(key, text)[1]
            after = change(before)
            if text is not None and after == before:
                return text
            return json.dumps({"kept_at": time.time(), "record": after.to_json()}, indent=1) + "\n"

        return self._parsed(key, self._records.change(key, changed))[1]

    def _parsed(self, key: str, text: str) -> tuple[float, SnapshotRecord]:
        """Returns when a record was stored (seconds since 1970), and the record. Raises MetaError if the text is invalid."""
        try:
            return _record_of(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetaError(
                f"{self._records.where(key)} cannot be read ({error}): restore the record, or remove it and "
                "re-snapshot the table"
            ) from error

    def _stored_files(self, name: str, folder: str) -> StoredFiles:
        here = self._folder / digest_of(name) / folder
        if not self._location.is_apart:
            return StoredFiles(folder=here)
        with _translated():
            return StoredFiles(folder=here, url=self._url(name, folder), options=_options(self._location))

    def _store(self, name: str, folder: str = "") -> StoreFolder | None:
        if not self._location.is_apart:
            return None
        with _translated():
            return StoreFolder(self._url(name, folder), _options(self._location))

    def _url(self, name: str, folder: str) -> str:
        return f"{self._location.sibling_url('snapshots')}/{digest_of(name)}/{folder}".rstrip("/")


@functools.lru_cache(maxsize=PARSED_MAX)
def _record_of(text: str) -> tuple[float, SnapshotRecord]:
    """Parses a stored record: returns the time when it was stored (seconds since 1970), and the snapshot. Results are cached, because ticks
    and runs read all records repeatedly, and few records change.
    """
    stored = json.loads(text)
    return float(stored["kept_at"]), SnapshotRecord.from_json(stored["record"])


def _key(name: str) -> str:
    return f"{FOLDER}/{digest_of(name)}.json"


def _options(location: LedgerLocation) -> dict[str, str]:
    return resolved(dict(location.storage_options))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise MetaError(
            f"the object store with rows and buffered changes of snapshots cannot be used now: {error}; Sluice tries again"
        ) from None
