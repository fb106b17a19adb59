"""Reads one SELECT result of MySQL's binary protocol: the column descriptions, then the rows as record batches.

The caller's function `receive` writes pieces of any size into one buffer, which is reused. The buffer grows for a row that does not fit,
and shrinks afterwards. Called by `cdc_engine.snapshot`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pymysql.constants import FLAG
from pymysql.protocol import FieldDescriptorPacket

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.result_rows import locate
from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder, SentColumn
from sluice.cdc_engine.binlog.rows.decoder import CHUNK_CELLS_MAX, CHUNK_ROWS_MAX
from sluice.cdc_engine.contracts import Int64s
from sluice.cdc_engine.errors import SourceConnectionError

# A function that receives bytes into the given memory and returns the number of bytes. 0 means that the connection ended.
Receive = Callable[[memoryview], int]
# The offset of the text in an error packet: after 0xFF, the code (2 bytes), '#' and the SQL state (5 bytes).
ERROR_TEXT_AT = 9
ERROR_BYTES_MIN = 3
WIDER = 0xFC  # First byte of a length-encoded integer whose next two bytes are the number.


class ServerRefusedError(Exception):
    """Raised if the server sends an error instead of a result, or in the middle of one. `code`, `text`: the server's error number and
    message.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class ResultReader:
    """Reads one SELECT result. Callers call `sent_columns` once, then `batches`. `received`: number of bytes received so far.

    Both methods raise ServerRefusedError if the server sends an error, and SourceConnectionError if the connection ends or the bytes do not
    follow the protocol.
    """

    def __init__(self, receive: Receive, buffer_bytes: int = limits.READ_BUFFER_BYTES) -> None:
        self.receive, self._buffer_bytes = receive, buffer_bytes
        self._buffer = np.empty(buffer_bytes, np.uint8)
        self._filled, self.received = 0, 0
        self._cursor = np.zeros(locate.CURSOR_FIELDS, np.int64)
        self._cursor[locate.SEQUENCE] = 1  # The client's command has the packet number 0.

    def sent_columns(self) -> list[SentColumn]:
        """Returns the result's column descriptions. The list is empty if the statement has no result set (an INSERT, for example). A SELECT
        that finds no rows has columns.
        """
        first, *more = self._payload()
        count = first if first != WIDER else int.from_bytes(bytes(more[:2]), "little")
        columns = [sent_column(self._payload()) for _ in range(count)]
        if columns:
            self._payload()
        return columns

    def batches(self, decoder: ResultDecoder) -> Iterator[pa.RecordBatch]:
        """Yields the rows as record batches, each with as many rows as fit into the buffer and into the arrays `starts` and `sizes`. Also
        raises the errors of `decoder.batch`.
        """
        rows_max = min(CHUNK_ROWS_MAX, CHUNK_CELLS_MAX // max(1, len(decoder.columns)))
        starts, sizes = (np.empty((len(decoder.columns), rows_max), np.int64) for _ in range(2))
        status = locate.MORE
        while status != locate.DONE:
            status = self._locate(decoder, starts, sizes)
            rows = int(self._cursor[locate.ROWS])
            if rows:
                yield decoder.batch(self._buffer, starts[:, :rows], sizes[:, :rows])
                self._cursor[locate.ROWS] = 0
            if status == locate.ERROR:
                raise self._refusal()
            if status == locate.WRONG:
                raise _no_result("bytes that are not a row of the result")
            if status == locate.MORE:
                self._make_room()

    def _locate(self, decoder: ResultDecoder, starts: Int64s, sizes: Int64s) -> int:
        """Receives bytes and locates values until there are no more rows, `starts` and `sizes` are full, or the buffer is full. Returns the
        result of `locate_rows`.
        """
        while True:
            status: int = locate.locate_rows(self._buffer, self._filled, decoder.widths, self._cursor, starts, sizes)
            if status != locate.MORE or self._filled == len(self._buffer):
                return status
            self._fill()

    def _fill(self) -> None:
        count = self.receive(self._buffer[self._filled :].data)
        if not count:
            raise SourceConnectionError(
                "the source closed the connection before it had sent the whole result of a chunk's SELECT"
            )
        self._filled += count
        self.received += count

    def _make_room(self) -> None:
        """Moves the unread bytes to the beginning of the buffer. If they fill the whole buffer, replaces the buffer by one of twice the
        size. After a large row, replaces the large buffer by one of the usual size.
        """
        rest = self._buffer[self._cursor[locate.AT] : self._filled]
        size = 2 * len(rest) if len(rest) == len(self._buffer) else max(self._buffer_bytes, 2 * len(rest))
        if size != len(self._buffer):
            self._buffer, before = np.empty(size, np.uint8), rest
        else:
            before = rest.copy()
        self._buffer[: len(before)] = before
        self._filled, self._cursor[locate.AT] = len(before), 0

    def _payload(self) -> bytes:
        """Reads one of the packets that the server sends before the rows, and returns the packet's payload."""
        while (end := locate.packet_end(self._buffer, int(self._cursor[locate.AT]), self._filled)) < 0:
            if self._filled == len(self._buffer):
                self._make_room()
            self._fill()
        at = int(self._cursor[locate.AT])
        payload_end, sequence = locate.join_packets(self._buffer, at, int(self._cursor[locate.SEQUENCE]))
        self._cursor[locate.AT], self._cursor[locate.SEQUENCE] = end, sequence
        payload = self._buffer[at + locate.HEADER_BYTES : max(payload_end, 0)].tobytes()
        if not payload:
            raise _no_result("an empty packet")
        if payload[0] == locate.REFUSED:
            raise _refused(payload)
        return payload

    def _refusal(self) -> ServerRefusedError:
        payload = self._buffer[self._cursor[locate.PAYLOAD] : self._cursor[locate.PAYLOAD_END]]
        return _refused(payload.tobytes())


def sent_column(payload: bytes) -> SentColumn:
    """Parses the payload of a packet that describes a column."""
    try:
        field: Any = FieldDescriptorPacket(payload, "utf8")
    except (struct.error, AssertionError, IndexError, ValueError, TypeError, AttributeError):
        raise _no_result("a malformed description of a column") from None
    return SentColumn(field.type_code, field.charsetnr, bool(field.flags & FLAG.UNSIGNED))


def _refused(payload: bytes) -> ServerRefusedError:
    code = int.from_bytes(payload[1:ERROR_BYTES_MIN], "little")
    return ServerRefusedError(code, payload[ERROR_TEXT_AT:].decode("utf-8", errors="replace"))


def _no_result(what: str) -> SourceConnectionError:
    return SourceConnectionError(f"the source answered a chunk's SELECT with {what}")
