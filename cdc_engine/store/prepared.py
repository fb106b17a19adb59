"""Records the events of XA transactions on disk until they are committed or rolled back, in the directory `prepared/` of a destination.

The file of a prepared transaction is named `DIGEST.KEY.prepared`, with a digest of its XA name and the order key of its prepare. After
the commit, the file is renamed to `DIGEST.KEY.COMMIT.committed`, with the order key of the commit. The renamed file stays until the
commit is acked, because the stream may begin again before the commit.

A record is valid only if the stream was read without a gap since the prepare: in a gap, the transaction may have ended and another
transaction may have got the same XA name. If the stream begins again at a position, transactions that were prepared after the position
are removed, and transactions that were committed after the position count as prepared again. The commit may have another order key when
it is read again, because it may come from another server or be in a new epoch. If the stream continues at a position after a gap,
`forget_prepared` removes all records.

If several hosts share a ledger and an object store, the object store has copies of the records (`prepared_copies`). The copies decide
which records are valid: a local file without a copy is removed, and a missing local file is downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.cdc_engine.binlog.events.undone_rows import UndoneRows
from sluice.cdc_engine.durable_files import make_folder
from sluice.cdc_engine.errors import BinlogFormatError, StagingError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import as_location
from sluice.cdc_engine.store.prepared_copies import COMMITTED, PREPARED, CopyName, PreparedCopies
from sluice.cdc_engine.store.record_file import RecordedFile, Recording, verified

PREPARED_DIRECTORY = "prepared"
RECORDING = "open.recording"
# After this many failed attempts to open a record, `recorded_before` raises an error. An attempt fails if another thread renames the
# record's file before this thread opens the file.
LOOKS_MAX = 10


class PreparedFiles:
    """The prepared XA transactions of a destination's stream, in files (`ports.PreparedTransactions`). `acked` returns the earliest
    position at which the stream may begin again, or None if this position is unknown. The record of a committed transaction is removed only
    if the commit is before this position, because the stream needs the record when it reads the commit again. `copies` are the copies for
    other hosts, if conf/ names an object store.

    Raises StagingError if the directory cannot be read or has files that Sluice did not write, and NotSharedError if the object store
    does not answer.
    """

    def __init__(
        self, directory: Path, acked: Callable[[], Position | None], copies: PreparedCopies | None = None
    ) -> None:
        self._directory, self.undone = directory, UndoneRows()
        self._acked, self._copies = acked, copies
        self._recording: Recording | None = None
        self._downloading = threading.Lock()
        found = _records(directory) if copies is None else _agreed(directory, copies.records())
        self._prepared: dict[str, CopyName] = {}
        self._committed = sorted((record for record in found if record.committed is not None), key=_commit_key)
        for record in sorted((each for each in found if each.committed is None), key=lambda each: each.prepared):
            # Removes an older record of the same XA name, which a crash between two steps of `prepare` may leave.
            if (before := self._prepared.get(record.digest)) is not None:
                self._remove(before)
            self._prepared[record.digest] = record

    def begin(self) -> None:
        with _sentence(self._directory):
            self._close()
            make_folder(self._directory)
            self._recording = Recording(self._directory / RECORDING)

    def record(self, event: bytes) -> None:
        with _sentence(self._directory):
            self._writer().add(event)

    def recorded(self) -> RecordedFile:
        with _sentence(self._directory):
            recording = self._writer()
            self._close()
            return RecordedFile(recording.path, recording.size)

    def prepare(self, name: str, order_key: int) -> None:
        """Completes the file to which the events of a transaction were written. The file becomes the record of the prepared transaction
        with the XA name `name`. When this method returns, the record is on disk, and in the object store if there is one.
        """
        with _sentence(self._directory):
            record = CopyName(_digest(name), order_key)
            self._writer().keep_as(self._directory / record.name)
            self._recording = None
            if self._copies is not None:
                self._copies.put(record, self._directory / record.name)
            before = self._prepared.get(record.digest)
            if before is not None and before != record:
                self._remove(before)
            self._prepared[record.digest] = record

    def commit(self, name: str, order_key: int) -> RecordedFile | None:
        """Marks a prepared transaction as committed, and returns its events, or None if the transaction is unknown. Until the commit is
        acked, the same call returns the same events again.

        Raises BinlogFormatError, before any event is used, if the record is damaged.
        """
        with _sentence(self._directory):
            digest = _digest(name)
            record = self._prepared.get(digest)
            if record is not None:
                content = verified(self._local_copy(record))
                committed = dataclasses.replace(record, committed=order_key)
                if self._copies is not None:
                    self._copies.mark(committed)
                content = RecordedFile(self._rename(record, committed), content.size)
                self._remove_acked(order_key)
                return content
            known = next(
                (each for each in self._committed if (each.digest, each.committed) == (digest, order_key)), None
            )
            return None if known is None else verified(self._local_copy(known))

    def recorded_before(self, name: str, begin: Position) -> RecordedFile | None:
        """Returns the events of the last transaction with this XA name that was prepared before the position `begin`, for a stream that
        begins at this position. Any thread may call it. Returns None if there is no such transaction. Raises BinlogFormatError if the
        record is damaged, and StagingError if it cannot be read.
        """
        digest, key = _digest(name), begin.order_key
        for _ in range(LOOKS_MAX):
            known = [*self._prepared.values(), *self._committed]
            found = [each for each in known if each.digest == digest and each.prepared <= key]
            if not found:
                return None
            # Tries again if the record's file was renamed after `known` was computed, because the transaction was committed.
            with _sentence(self._directory), contextlib.suppress(FileNotFoundError):
                return verified(self._local_copy(max(found, key=lambda each: each.prepared))).opened()
        raise StagingError(
            f"the record of the prepared XA transaction {name} in {self._directory} is missing; Sluice looks "
            "for the record again"
        )

    def roll_back(self, name: str) -> None:
        with _sentence(self._directory):
            record = self._prepared.get(_digest(name))
            if record is not None:
                self._remove(record)
                self._forget(record)

    def rewind(self, position: Position) -> None:
        with _sentence(self._directory):
            order_key = position.order_key
            for record in [each for each in (*self._prepared.values(), *self._committed) if each.prepared > order_key]:
                self._remove(record)
                self._forget(record)
            for record in [each for each in self._committed if _commit_key(each) > order_key]:
                self._local_copy(record)
                if self._copies is not None:
                    self._copies.unmark(record)
                self._rename(record, dataclasses.replace(record, committed=None))

    def _rename(self, record: CopyName, renamed: CopyName) -> Path:
        path = (self._directory / record.name).replace(self._directory / renamed.name)
        self._forget(record)
        if renamed.committed is None:
            self._prepared[renamed.digest] = renamed
        else:
            self._committed.append(renamed)
        return path

    def _forget(self, record: CopyName) -> None:
        if record.committed is None:
            self._prepared.pop(record.digest, None)
        else:
            self._committed.remove(record)

    def _local_copy(self, record: CopyName) -> Path:
        """Returns the local file of a record. Downloads the record if only the object store has it."""
        path = self._directory / record.name
        with self._downloading:
            if self._copies is not None and not path.exists():
                make_folder(self._directory)
                self._copies.download(record, path)
        return path

    def _remove(self, record: CopyName) -> None:
        if self._copies is not None:
            self._copies.remove(record)
        (self._directory / record.name).unlink(missing_ok=True)

    def _remove_acked(self, at: int) -> None:
        acked = self._acked()
        key = min(acked.order_key if acked is not None else -1, at)
        for record in [each for each in self._committed if _commit_key(each) < key]:
            self._remove(record)
            self._forget(record)

    def _writer(self) -> Recording:
        if self._recording is None:
            raise BinlogFormatError("the stream has events of an XA transaction, but not its XA START")
        return self._recording

    def _close(self) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None


def forget_prepared(destination_dir: Path) -> None:
    """Removes all records of prepared transactions. Called when the stream continues after a gap, because the transactions may have ended
    in the gap. Raises StagingError if a record cannot be removed, and NotSharedError if the object store does not answer.
    """
    location = as_location(destination_dir)
    if location.is_apart:
        PreparedCopies(location).forget()
    directory = destination_dir / PREPARED_DIRECTORY
    with _sentence(directory):
        if directory.exists():
            shutil.rmtree(directory)


def _agreed(directory: Path, copied: Iterable[CopyName]) -> list[CopyName]:
    """Returns the records that have a copy in the object store. Renames local files to the names of their copies, and removes local files
    without a copy.
    """
    by_key = {record.key: record for record in copied}
    for record in _records(directory):
        counts, path = by_key.get(record.key), directory / record.name
        if counts is None:
            path.unlink(missing_ok=True)
        else:
            path.replace(directory / counts.name)
    return list(by_key.values())


def _records(directory: Path) -> list[CopyName]:
    return [_record(path) for path in (*directory.glob(f"*{PREPARED}"), *directory.glob(f"*{COMMITTED}"))]


def _record(path: Path) -> CopyName:
    """Parses the name of a file. Raises StagingError if the name does not have the form that this version of Sluice writes."""
    try:
        return CopyName.of(path)
    except (ValueError, TypeError) as error:
        raise StagingError(
            f"{path} is not a file that this version of Sluice wrote, because its name has another form: remove the file"
        ) from error


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _commit_key(record: CopyName) -> int:
    return -1 if record.committed is None else record.committed


@contextmanager
def _sentence(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StagingError(
            f"the records of prepared XA transactions in {directory} cannot be read or written: "
            f"{error.strerror or error}; free space in that folder or correct its permissions; the stream "
            "then continues from the last transaction"
        ) from error
