"""Finds, in a kernel, every value in the rows of a SELECT in the binary protocol. Called by `decoder`; decodes nothing.

A packet: length (3), number (1), payload; one of 0xFFFFFF bytes continues in the next. A row's payload is 0x00, a
bitmap of NULLs that begins at its third bit, and the values that are not NULL, back to back: some have a fixed width,
the others a length-encoded length before them. After the rows comes a packet that begins with 0xFE and is shorter than
nine bytes, or an error, which begins with 0xFF
(https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_binary_resultset.html).

Every read is checked against the packet's end, and the packet against the received bytes. A row must end where its
packet ends."""
# ruff: noqa: PLR0917 - a kernel takes every array it touches by name, and numba knows no keyword-only arguments

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

# Results of `locate_rows`. MORE: the next packet is incomplete. FULL: the arrays are full. END: the result's end was
# read. FAILED: the server sent an error (its payload is between cursor[3] and cursor[4]). BROKEN: the bytes are not of
# the protocol.
MORE, FULL, DONE, ERROR, WRONG = 0, 1, 2, 3, 4

HEADER_BYTES = 4
GOES_ON = 0xFFFFFF  # The length of a packet that continues in the next one.
ROW, END, REFUSED = 0x00, 0xFE, 0xFF
END_BYTES_MAX = 8
NULL_BITS_FIRST = 2
AT, SEQUENCE, ROWS, PAYLOAD, PAYLOAD_END = 0, 1, 2, 3, 4
CURSOR_FIELDS = 5


@compiled
def packet_end(buffer: Bytes, at: Integer, end: Integer) -> Integer:
    """Returns the end of the packet at `at` with all its continuations; -1 if it is incomplete."""
    length = GOES_ON
    while length == GOES_ON:
        if at + HEADER_BYTES > end:
            return -1
        length = little_endian(buffer, at, 3)
        at += HEADER_BYTES + length
        if at > end:
            return -1
    return at


@compiled
def join_packets(buffer: Bytes, at: Integer, sequence: Integer) -> tuple[Integer, Integer]:
    """Joins the parts of a whole packet by removing the headers between them. Returns (its payload's end, number of the
    next packet).

    The end is -1 if a packet number is wrong.
    """
    length = GOES_ON
    write, read = at + HEADER_BYTES, at
    while length == GOES_ON:
        length = little_endian(buffer, read, 3)
        if np.int64(buffer[read + 3]) != sequence:
            return -1, sequence
        sequence = (sequence + 1) & 0xFF
        read += HEADER_BYTES
        if read != write:
            for index in range(length):
                buffer[write + index] = buffer[read + index]
        write += length
        read += length
    return write, sequence


@compiled
def length_at(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Returns (the length-encoded length at `at`, the offset after it). The length is -1 if it is truncated or invalid."""
    if at >= end:
        return -1, at
    first = np.int64(buffer[at])
    if first < 0xFB:
        return first, at + 1
    width = 2 if first == 0xFC else 3 if first == 0xFD else 8
    if first in (0xFB, 0xFF) or at + 1 + width > end:
        return -1, at
    return little_endian(buffer, at + 1, width), at + 1 + width


@compiled
def locate_row(
    buffer: Bytes, at: Integer, end: Integer, width: Int8s, starts: Int64s, sizes: Int64s, row: Integer
) -> bool:
    """Writes start and size of each value of the row whose payload is between `at` and `end`; NULL starts at -1.
    Returns False if it is not a row.
    """
    columns = width.shape[0]
    nulls = at + 1
    at = nulls + ((columns + NULL_BITS_FIRST + 7) >> 3)
    if at > end:
        return False
    for column in range(columns):
        bit = column + NULL_BITS_FIRST
        if (np.int64(buffer[nulls + (bit >> 3)]) >> np.int64(bit & 7)) & 1:
            starts[column, row], sizes[column, row] = -1, 0
            continue
        size = np.int64(width[column])
        if size == 0:
            size, at = length_at(buffer, at, end)
        if size < 0 or size > end - at:
            return False
        starts[column, row], sizes[column, row] = at, size
        at += size
    return bool(at == end)


@compiled
def locate_rows(buffer: Bytes, end: Integer, width: Int8s, cursor: Int64s, starts: Int64s, sizes: Int64s) -> Integer:
    """Continues until a packet is incomplete before `end` (MORE), the arrays are full (FULL), or the rows end.

    `cursor` (int64, 5): offset of the next packet, its number, rows located so far, and for an ERROR where its payload
    begins and ends. `width`: bytes of each value of a column, 0 if a length precedes it. `starts`, `sizes`: columns by
    rows.
    """
    while True:
        at = cursor[AT]
        if cursor[ROWS] == starts.shape[1]:
            return FULL
        next_at = packet_end(buffer, at, end)
        if next_at < 0:
            return MORE
        payload_end, sequence = join_packets(buffer, at, cursor[SEQUENCE])
        payload = at + HEADER_BYTES
        if payload_end <= payload:
            return WRONG
        first = buffer[payload]
        cursor[PAYLOAD], cursor[PAYLOAD_END] = payload, payload_end
        if first == ROW and not locate_row(buffer, payload, payload_end, width, starts, sizes, cursor[ROWS]):
            return WRONG
        if first == REFUSED:
            return ERROR
        cursor[AT], cursor[SEQUENCE] = next_at, sequence
        if first == END:
            return DONE if payload_end - payload <= END_BYTES_MAX else WRONG
        if first != ROW:
            return WRONG
        cursor[ROWS] += 1
