"""Recorded events of XA transactions on disk, until they are decided. Owns the files of a destination's `prepared/` directory.

One file a transaction, named by a digest of its XA name: `.<order key of its prepare>.prepared` until it is decided, `.<order key of its
commit>.committed` until that was acked, for a restart reads again what was not. A record holds only for a stream that was read without a
gap since the prepare: a name may be used again, and another transaction's rows would be taken for this one's. So what lies behind the
place where the stream begins again is removed, and all of it where the stream goes on elsewhere (`forget_prepared`).

A file holds whole binlog events without checksums, one behind the other; it is empty for a transaction without rows of captured tables.
It is not forced to disk: what a power cut takes with it stops the stream at the XA COMMIT, with a sentence.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from cdc_engine.errors import BinlogFormatError, StagingError
from cdc_engine.position import Position

PREPARED_DIRECTORY = "prepared"
RECORDING, PREPARED, COMMITTED = "open.recording", ".prepared", ".committed"
BUFFER_BYTES = 1 << 16


class RecordFile:
    """`contracts.Content` of a file; closed with its last byte."""

    def __init__(self, path: Path) -> None:
        self.size = path.stat().st_size
        self._path = path
        self._file: FileIO | None = None

    def read_into(self, space: memoryview) -> int:
        try:
            self._file = self._file or self._path.open("rb", buffering=0)
            count = int(self._file.readinto(space) or 0)
            if not count:
                self._file.close()
        except (OSError, ValueError) as error:
            raise BinlogFormatError(f"the recorded events of an XA transaction cannot be read: {error}") from error
        return count


class PreparedFiles:
    """`contracts.PreparedTransactions`. `acked`: up to where nothing will be read again."""

    def __init__(self, directory: Path, acked: Callable[[], Position | None]) -> None:
        self._directory = directory
        self._acked = acked
        self._open: BinaryIO | None = None
        self._prepared = {path.name.split(".")[0]: path for path in directory.glob(f"*.*{PREPARED}")}  # by digest
        # Ascending by order key; those left by another process first, and theirs are lower.
        self._committed = sorted((_key(path), path) for path in directory.glob(f"*{COMMITTED}"))

    def begin(self) -> None:
        with _sentence(self._directory):
            self._close()
            self._directory.mkdir(parents=True, exist_ok=True)
            self._open = (self._directory / RECORDING).open("wb", buffering=BUFFER_BYTES)

    def record(self, event: bytes) -> None:
        with _sentence(self._directory):
            self._writer().write(event)

    def recorded(self) -> RecordFile:
        with _sentence(self._directory):
            self._close()
            return RecordFile(self._directory / RECORDING)

    def prepare(self, name: str, order_key: int) -> None:
        with _sentence(self._directory):
            self._writer()
            self._close()
            self._remove(_digest(name))
            path = self._path(name, f".{order_key}{PREPARED}")
            (self._directory / RECORDING).rename(path)
            self._prepared[_digest(name)] = path

    def commit(self, name: str, order_key: int) -> RecordFile | None:
        """The events; None when nothing is known of the transaction. The same again for the same commit, until it was acked."""
        with _sentence(self._directory):
            committed = self._path(name, f".{order_key}{COMMITTED}")
            path = self._prepared.pop(_digest(name), None)
            if path is not None:
                path.rename(committed)
                self._committed.append((order_key, committed))
            if not committed.exists():
                return None
            content = RecordFile(committed)
            self._remove_acked(order_key)
            return content

    def roll_back(self, name: str) -> None:
        with _sentence(self._directory):
            self._remove(_digest(name))

    def rewind(self, position: Position) -> None:
        with _sentence(self._directory):
            behind = [digest for digest, path in self._prepared.items() if _key(path) > position.order_key]
            for digest in behind:
                self._remove(digest)

    def _remove(self, digest: str) -> None:
        path = self._prepared.pop(digest, None)
        if path is not None:
            path.unlink(missing_ok=True)

    def _remove_acked(self, at: int) -> None:
        acked = self._acked()
        key = acked.order_key if acked is not None else -1
        while self._committed and self._committed[0][0] < min(key, at):
            self._committed.pop(0)[1].unlink(missing_ok=True)

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / (_digest(name) + suffix)

    def _writer(self) -> BinaryIO:
        if self._open is None:
            raise BinlogFormatError("an XA transaction goes on that did not begin")
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def forget_prepared(destination_dir: Path) -> None:
    """The stream goes on where it was not read up to: what was recorded may have been decided in between. Raises StagingError."""
    directory = destination_dir / PREPARED_DIRECTORY
    with _sentence(directory):
        if directory.exists():
            shutil.rmtree(directory)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _key(path: Path) -> int:
    """The order key in a record's name."""
    return int(path.name.split(".")[1])


@contextmanager
def _sentence(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StagingError(
            f"the rows of a prepared XA transaction could not be kept in {directory}: {error.strerror or error}; make room there or "
            "correct its permissions, the stream goes on from the last transaction"
        ) from error
