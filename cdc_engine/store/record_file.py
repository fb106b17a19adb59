"""Reads and writes files with the recorded events of an XA transaction. A file has the events, then their length, their checksum, and
four fixed bytes that identify the format. A damaged file is refused as a whole. Used by `prepared`.

After the binlog position of a prepared transaction is acked, the transaction's file is the only copy of its rows. So the file is on disk
before the prepare counts as read, and is verified before any event is used.
"""

from __future__ import annotations

import os
import struct
import zlib
from io import FileIO
from pathlib import Path

from sluice.cdc_engine.durable_files import rename
from sluice.cdc_engine.errors import BinlogFormatError

BUFFER_BYTES = 1 << 16
CHECK_BYTES = 1 << 20  # How many bytes are read at once to verify a file.
TRAILER = struct.Struct("<QI4s")  # The number of bytes of events, their CRC32, and MARK.
MARK = b"SLX1"
WHAT_TO_DO = "the rows of this transaction are lost: re-snapshot the captured tables"


class Recording:
    """Writes a file of recorded events. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self._checksum = 0
        self._file = path.open("wb", buffering=BUFFER_BYTES)

    def add(self, event: bytes) -> None:
        self._file.write(event)
        self.size += len(event)
        self._checksum = zlib.crc32(event, self._checksum)

    def close(self) -> None:
        self._file.close()

    def keep_as(self, path: Path) -> None:
        """Completes the file, and renames it to `path`. The file is on disk when this method returns."""
        self._file.write(TRAILER.pack(self.size, self._checksum, MARK))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        rename(self.path, path)


class RecordedFile:
    """Reads the recorded events of a file piece by piece: its first `size` bytes (`ports.Content`). Closes the file after the last byte was
    read.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = self._left = size
        self._path = path
        self._file: FileIO | None = None

    def opened(self) -> RecordedFile:
        """Opens the file, so that the events can be read even after the file is renamed or removed. Returns this object. Raises OSError."""
        self._file = self._file or self._path.open("rb", buffering=0)
        return self

    def read_into(self, space: memoryview) -> int:
        try:
            self._file = self._file or self._path.open("rb", buffering=0)
            count = int(self._file.readinto(space[: self._left]) or 0) if self._left else 0
            self._left -= count
            if not count or not self._left:
                self._file.close()
        except (OSError, ValueError) as error:
            raise BinlogFormatError(
                f"the record {self._path} of an XA transaction cannot be read: {error}; correct the disk or the permissions of this file"
            ) from error
        return count


def verified(path: Path) -> RecordedFile:
    """Returns the recorded events of a file. Raises BinlogFormatError if the file is damaged, and OSError if it cannot be read."""
    size = path.stat().st_size - TRAILER.size
    with path.open("rb") as file:
        checksum, left = 0, size
        while left > 0:
            piece = file.read(min(left, CHECK_BYTES))
            if not piece:
                break
            checksum, left = zlib.crc32(piece, checksum), left - len(piece)
        trailer = file.read(TRAILER.size) if size >= 0 else b""
    if len(trailer) != TRAILER.size or TRAILER.unpack(trailer) != (size, checksum, MARK):
        raise BinlogFormatError(
            f"the record {path} of a prepared XA transaction is incomplete or was changed ({max(0, size)} "
            f"bytes); {WHAT_TO_DO}"
        )
    return RecordedFile(path, size)
