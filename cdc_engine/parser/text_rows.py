"""Reads the rows of a query as columns of text, block by block, without a Python object per row or value.

The server sends one packet per row (text protocol). The packet has the length and the bytes of each column's value, as `SELECT` prints it.
A kernel finds the values in the packets.
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset.html
"""

# ruff: noqa: PLR0917 - a kernel takes every array it touches by name

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.column_types.entry import buffer_of, validity_of
from sluice.cdc_engine.binlog.column_types.gather import copy_bytes
from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.contracts import Bytes, Int64s
from sluice.cdc_engine.errors import BinlogFormatError, SourceConnectionError

HEAD_BYTES = 4  # The header of a packet: three bytes of length, one byte of sequence number.
BUFFER_BYTES = 4 << 20
ROWS_MAX = 65_536  # The maximum number of rows per block.
OK, ERROR, END = 0x00, 0xFF, 0xFE
# The packet that ends a result begins with 0xFE and has fewer bytes than this. A row may begin with 0xFE too, but then it has more bytes.
END_BYTES_MAX = 9
RECEIVE_SECONDS = 1.0
# If the server sends nothing for this many seconds, the query has failed. The limit is high, because the server may scan a whole table
# before it finds the first row.
SILENCE_SECONDS_MAX = 600.0
MALFORMED = -1
Texts = list[Any]  # One Arrow binary array per column, with NULLs.


class Wire(Protocol):
    """The methods of `SourceConnection` that this module calls."""

    def begin_query(self, sql: str) -> None: ...
    def end_query(self) -> None: ...
    def receive_into(self, space: memoryview, seconds: float) -> int: ...
    def answer_error(self, answer: bytes) -> Exception: ...


@kernel
def split_rows(buffer: Bytes, begin: Integer, end: Integer, starts: Any, sizes: Any, out: Int64s) -> None:
    """Finds the complete rows in buffer[begin:end]. Writes the offset and size of each value to `starts` and `sizes` (one row per column;
    the offset of a NULL is -1).

    Writes to `out` the number of rows, and the offset of the next packet or MALFORMED. Stops at a packet that is not a row, and at a row
    that continues in another packet.
    """
    at, row, rows_max = np.int64(begin), np.int64(0), starts.shape[1]
    while row < rows_max and end - at >= 4:
        length = np.int64(buffer[at]) | np.int64(buffer[at + 1]) << 8 | np.int64(buffer[at + 2]) << 16
        stop = at + 4 + length
        if stop > end or length in (0xFFFFFF, 0):
            break
        first = buffer[at + 4]
        if first == 0xFF or (first == 0xFE and length < 9):
            break
        if split_row(buffer, at + 4, stop, row, starts, sizes) != stop:
            out[0], out[1] = row, -1
            return
        row += 1
        at = stop
    out[0], out[1] = row, at


@kernel
def split_row(buffer: Bytes, begin: Integer, stop: Integer, row: Integer, starts: Any, sizes: Any) -> Integer:
    """Finds the values of one row in buffer[begin:stop]. Returns the offset after the last value, or -1 if the values exceed the row."""
    offset = np.int64(begin)
    for column in range(starts.shape[0]):
        if offset >= stop:
            return -1
        size = np.int64(buffer[offset])
        offset += 1
        if size == 0xFB:
            starts[column, row], sizes[column, row] = -1, 0
            continue
        if size > 0xFB:
            width = 2 if size == 0xFC else 3 if size == 0xFD else 8
            if offset + width > stop:
                return -1
            size = np.int64(0)
            for index in range(width):
                size |= np.int64(buffer[offset + index]) << np.int64(8 * index)
            offset += width
        if size < 0 or offset + size > stop:
            return -1
        starts[column, row], sizes[column, row] = offset, size
        offset += size
    return offset


def text_blocks(wire: Wire, sql: str) -> Iterator[Texts]:
    """Runs a query and yields its rows in blocks. After the last block, the connection can run the next query. A caller that does not read
    all blocks must close the connection, because unread bytes of the result remain in it.

    Raises the error that the server returns, or SourceConnectionError if the server is silent for too long.
    """
    wire.begin_query(sql)
    answer = _Answer(wire)
    columns = answer.column_count()
    while (rows := answer.rows(columns)) is not None:
        if rows:
            yield rows
    wire.end_query()


class _Answer:
    """Reads the server's answer to one query. buffer[begin:end] are the bytes that are received but not processed yet."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._buffer: Bytes = np.empty(BUFFER_BYTES, np.uint8)
        self._begin = self._end = 0

    def column_count(self) -> int:
        """Reads all packets before the first row, and returns the number of columns. Raises the server's error."""
        first = self._packet()
        if first[0] == ERROR:
            raise self._wire.answer_error(first)
        if first[0] == OK:
            raise BinlogFormatError("the server answered a query with OK instead of rows")
        while not _is_end(self._packet()):
            pass  # Skips the packet with the name and type of a column, because the caller knows them.
        return int(first[0]) if first[0] < 0xFB else int.from_bytes(first[1:3], "little")

    def rows(self, columns: int) -> Texts | None:
        """Returns the rows that have arrived, [] if no row is complete yet, or None at the end of the answer."""
        starts = np.empty((columns, ROWS_MAX), np.int64)
        sizes = np.empty((columns, ROWS_MAX), np.int64)
        found = np.zeros(2, np.int64)
        split_rows(self._buffer, self._begin, self._end, starts, sizes, found)
        count, after = int(found[0]), int(found[1])
        if after == MALFORMED:
            raise BinlogFormatError(
                "the server's answer to a query does not have the form of text rows in MySQL's protocol"
            )
        if count:
            self._begin = after
            return [_texts(self._buffer, starts[column, :count], sizes[column, :count]) for column in range(columns)]
        if self._end - self._begin < HEAD_BYTES + 1:
            self._receive()
            return []
        return self._odd_packet(columns)

    def _odd_packet(self, columns: int) -> Texts | None:
        """Processes a packet that is not one complete row. For the first packet of a row of several packets, returns the row. For an
        incomplete packet, receives more bytes and returns []. For the end of the answer, returns None. For an error, raises the server's
        error.
        """
        length = self._length_at(self._begin)
        if length == limits.PACKET_BYTES_MAX:
            return _one_row(self._long_packet(), columns)
        if self._end - self._begin < HEAD_BYTES + length:
            self._receive()
            return []
        packet = self._packet()
        if packet[:1] == bytes([ERROR]):
            raise self._wire.answer_error(packet)
        if not _is_end(packet):
            raise BinlogFormatError(
                "the server's answer to a query does not have the form of text rows in MySQL's protocol"
            )
        return None

    def _packet(self) -> bytes:
        while self._end - self._begin < HEAD_BYTES or self._end - self._begin < HEAD_BYTES + self._length_at(
            self._begin
        ):
            self._receive()
        length = self._length_at(self._begin)
        start = self._begin + HEAD_BYTES
        self._begin = start + length
        return self._buffer[start : start + length].tobytes()

    def _long_packet(self) -> bytes:
        """Returns the payload of a packet and of all packets that continue it, joined."""
        parts = [self._packet()]
        while len(parts[-1]) == limits.PACKET_BYTES_MAX:
            parts.append(self._packet())
        return b"".join(parts)

    def _length_at(self, offset: int) -> int:
        return int.from_bytes(self._buffer[offset : offset + 3].tobytes(), "little")

    def _receive(self) -> None:
        if self._begin:  # The bytes before `_begin` can be overwritten, because returned rows are copies.
            left = self._end - self._begin
            self._buffer[:left] = self._buffer[self._begin : self._end].copy()
            self._begin, self._end = 0, left
        if self._end == len(self._buffer):
            larger = np.empty(2 * len(self._buffer), np.uint8)
            larger[: self._end] = self._buffer
            self._buffer = larger
        deadline = time.monotonic() + SILENCE_SECONDS_MAX
        while not (count := self._wire.receive_into(memoryview(self._buffer.data)[self._end :], RECEIVE_SECONDS)):
            if time.monotonic() > deadline:
                raise SourceConnectionError(
                    f"the server sent nothing for {SILENCE_SECONDS_MAX:g} s, although the rows of a query are not complete: check the "
                    "load of the server and the network"
                )
        self._end += count


def _is_end(packet: bytes) -> bool:
    return packet[:1] == bytes([END]) and len(packet) < END_BYTES_MAX


def _texts(buffer: Bytes, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Any:
    """Returns copies of the values as an Arrow binary array."""
    offsets = np.empty(len(starts) + 1, np.int32)
    out = np.empty(int(sizes.sum()), np.uint8)
    copy_bytes(buffer, starts, sizes, offsets, out)
    buffers = [validity_of(starts >= 0), buffer_of(offsets), buffer_of(out)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def _one_row(row: bytes, columns: int) -> Texts:
    """Returns the values of a row that is larger than one packet."""
    found: Texts = []
    at = 0
    for _ in range(columns):
        head, at = row[at], at + 1
        if head == 0xFB:
            found.append(pa.array([None], pa.binary()))
            continue
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(head, 0)
        size = int.from_bytes(row[at : at + width], "little") if width else head
        found.append(pa.array([row[at + width : at + width + size]], pa.binary()))
        at += width + size
    return found
