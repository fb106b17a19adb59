"""Reads integers and texts one after the other from bytes, and raises an error if the bytes end too early. Used for table maps and JSON
differences.
"""

from __future__ import annotations

from sluice.cdc_engine.errors import BinlogFormatError

_PACKED_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}  # First byte of a length-encoded integer → number of bytes after it.


class ByteCursor:
    """Reads bytes from the first to the last. `what`: name of the bytes in error messages."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self.what = what

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._data) - self._at

    def take(self, size_bytes: int) -> bytes:
        """Returns the next `size_bytes` bytes. Raises BinlogFormatError if fewer remain."""
        if size_bytes > self.left:
            raise BinlogFormatError(
                f"{self.what} ends too early: {size_bytes} bytes are needed at byte {self._at}, and {self.left} "
                "are left"
            )
        self._at += size_bytes
        return self._data[self._at - size_bytes : self._at]

    def rest(self) -> bytes:
        """Returns all remaining bytes."""
        return self.take(self.left)

    def integer(self, size_bytes: int) -> int:
        """Reads an unsigned little-endian integer."""
        return int.from_bytes(self.take(size_bytes), "little")

    def packed(self) -> int:
        """Reads a length-encoded integer of the MySQL protocol (1, 3, 4 or 9 bytes)."""
        first = self.integer(1)
        if first in {0xFB, 0xFF}:
            raise BinlogFormatError(f"{self.what} has {first:#x} at byte {self._at - 1}, which cannot begin an integer")
        return self.integer(_PACKED_BYTES[first]) if first in _PACKED_BYTES else first

    def text(self, size_bytes: int) -> str:
        """Reads an identifier, which servers write in UTF-8."""
        raw = self.take(size_bytes)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise BinlogFormatError(
                f"{self.what} has {raw!r} at byte {self._at - size_bytes}, which is not UTF-8"
            ) from error
