"""Recorded events of XA transactions on disk, until they are decided. Owns the files of a destination's `prepared/` directory.

One file a transaction, named by a digest of its XA name and the order key of its prepare: `DIGEST.KEY.prepared` until it is decided,
`DIGEST.KEY.COMMIT.committed` with the order key of its commit until that was acked, for the stream may begin again before it. A record
holds only for a stream that was read without a gap since the prepare: a name may be used again, and another transaction's rows would be
taken for this one's. So where the stream begins again, what was prepared after that place is removed and comes anew, and what was
committed after it is prepared once more, under whatever order key the commit then has (another server, a new epoch). All of it is removed
where the stream goes on elsewhere (`forget_prepared`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_engine.durable_files import make_folder
from cdc_engine.errors import BinlogFormatError, StagingError
from cdc_engine.position import Position
from cdc_engine.store.record_file import RecordedFile, Recording, verified

PREPARED_DIRECTORY = "prepared"
RECORDING, PREPARED, COMMITTED = "open.recording", ".prepared", ".committed"


@dataclasses.dataclass(frozen=True)
class Record:
    """A file's name, taken apart. `committed`: order key of the commit, None until then."""

    digest: str
    prepared: int
    committed: int | None = None

    @property
    def name(self) -> str:
        if self.committed is None:
            return f"{self.digest}.{self.prepared}{PREPARED}"
        return f"{self.digest}.{self.prepared}.{self.committed}{COMMITTED}"

    @classmethod
    def of(cls, path: Path) -> Record:
        """Raises ValueError on a name of another form."""
        digest, *keys, _ = path.name.split(".")
        return cls(digest, *(int(key) for key in keys))


class PreparedFiles:
    """`contracts.PreparedTransactions`. `acked`: up to where nothing will be read again.

    Raises StagingError when the directory holds what it did not write, or cannot be read.
    """

    def __init__(self, directory: Path, acked: Callable[[], Position | None]) -> None:
        self._directory = directory
        self._acked = acked
        self._recording: Recording | None = None
        found = _records(directory)
        self._prepared = {record.digest: record for record in found if record.committed is None}
        self._committed = sorted((record for record in found if record.committed is not None), key=_commit_key)

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
        """On disk when it returns."""
        with _sentence(self._directory):
            record = Record(_digest(name), order_key)
            self._writer().keep_as(self._directory / record.name)
            self._recording = None
            before = self._prepared.get(record.digest)
            if before is not None and before != record:
                self._remove(before)
            self._prepared[record.digest] = record

    def commit(self, name: str, order_key: int) -> RecordedFile | None:
        """The events; None when nothing is known of the transaction. The same again for the same commit, until it was acked.

        Raises BinlogFormatError when its record is not whole: nothing of it was used.
        """
        with _sentence(self._directory):
            digest = _digest(name)
            record = self._prepared.get(digest)
            if record is not None:
                content = verified(self._directory / record.name)
                content = RecordedFile(
                    self._rename(record, dataclasses.replace(record, committed=order_key)), content.size
                )
                self._remove_acked(order_key)
                return content
            known = next(
                (each for each in self._committed if (each.digest, each.committed) == (digest, order_key)), None
            )
            return None if known is None else verified(self._directory / known.name)

    def roll_back(self, name: str) -> None:
        with _sentence(self._directory):
            record = self._prepared.pop(_digest(name), None)
            if record is not None:
                self._remove(record)

    def rewind(self, position: Position) -> None:
        with _sentence(self._directory):
            place = position.order_key
            for record in [each for each in (*self._prepared.values(), *self._committed) if each.prepared > place]:
                self._forget(record)
                self._remove(record)
            for record in [each for each in self._committed if _commit_key(each) > place]:
                self._rename(record, dataclasses.replace(record, committed=None))

    def _rename(self, record: Record, renamed: Record) -> Path:
        path = (self._directory / record.name).replace(self._directory / renamed.name)
        self._forget(record)
        if renamed.committed is None:
            self._prepared[renamed.digest] = renamed
        else:
            self._committed.append(renamed)
        return path

    def _forget(self, record: Record) -> None:
        if record.committed is None:
            self._prepared.pop(record.digest, None)
        else:
            self._committed.remove(record)

    def _remove(self, record: Record) -> None:
        (self._directory / record.name).unlink(missing_ok=True)

    def _remove_acked(self, at: int) -> None:
        acked = self._acked()
        key = min(acked.order_key if acked is not None else -1, at)
        for record in [each for each in self._committed if _commit_key(each) < key]:
            self._forget(record)
            self._remove(record)

    def _writer(self) -> Recording:
        if self._recording is None:
            raise BinlogFormatError("an XA transaction goes on that did not begin")
        return self._recording

    def _close(self) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None


def forget_prepared(destination_dir: Path) -> None:
    """The stream goes on where it was not read up to: what was recorded may have been decided in between. Raises StagingError."""
    directory = destination_dir / PREPARED_DIRECTORY
    with _sentence(directory):
        if directory.exists():
            shutil.rmtree(directory)


def _records(directory: Path) -> list[Record]:
    paths = [*directory.glob(f"*{PREPARED}"), *directory.glob(f"*{COMMITTED}")]
    try:
        return [Record.of(path) for path in paths]
    except (ValueError, TypeError) as error:
        raise StagingError(
            f"{directory} holds a file that is no record of this version ({error}): remove it"
        ) from error


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _commit_key(record: Record) -> int:
    return -1 if record.committed is None else record.committed


@contextmanager
def _sentence(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StagingError(
            f"the rows of a prepared XA transaction could not be kept in {directory}: {error.strerror or error}; make room there or "
            "correct its permissions, the stream goes on from the last transaction"
        ) from error
