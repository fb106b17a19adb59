"""Kernel that finds the values in the rows of a SELECT result in MySQL's binary protocol. `decoder` decodes the values.

A packet has a length (3 bytes), a number (1) and a payload. A payload of 0xFFFFFF bytes continues in the next packet. A row's payload is
0x00, a bitmap of NULLs whose first two bits are unused, and the values that are not NULL, back to back. Some types have a fixed width;
other values have a length-encoded length before them. After the rows, the server sends a packet that begins with 0xFE and is shorter than
nine bytes, or an error packet, which begins with 0xFF
(https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_binary_resultset.html).

The kernel checks that every read is within its packet, that the packet is within the received bytes, and that a row ends where its
packet ends.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument, and numba has no keyword-only arguments

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, compiled
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int8s, Int64s

# Results of `locate_rows`. MORE: the next packet has not arrived completely. FULL: `starts` and `sizes` are full. DONE: there are no more
# rows. ERROR: the server sent an error; it is the last payload. WRONG: the bytes do not follow the protocol.
MORE, FULL, DONE, ERROR, WRONG = 0, 1, 2, 3, 4

HEADER_BYTES = 4
GOES_ON = 0xFFFFFF  # A payload of this many bytes continues in the next packet.
ROW, END, REFUSED = 0x00, 0xFE, 0xFF  # The first byte of a row, of the packet after the rows, and of an error.
END_BYTES_MAX = 8
NULL_BITS_FIRST = 2
# Indices in `cursor`: offset and number of the next packet, number of rows located so far, beginning and end of the last payload.
AT, SEQUENCE, ROWS, PAYLOAD, PAYLOAD_END = 0, 1, 2, 3, 4
CURSOR_FIELDS = 5


@compiled
def packet_end(buffer: Bytes, at: Integer, end: Integer) -> Integer:
    """Returns the end of the packet at `at`, including the packets that continue it, or -1 if one of them is incomplete."""
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
    """Joins a packet with the packets that continue it, in place, by removing the headers between them. Returns (end of the joined payload,
    number of the next packet). The returned end is -1 if a packet has a wrong number.
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
    """Returns (length-encoded integer at `at`, offset after the integer). The first result is -1 if the integer is truncated or invalid."""
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
    """Writes the offset and size of each value of a row to `starts` and `sizes`. NULL has the offset -1. The row's payload is from `at` to
    `end`. Returns False if the payload is not a valid row.
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
    """Locates the values of rows in `buffer` up to `end`. Returns DONE after the last row, MORE if a packet is incomplete, FULL if `starts`
    and `sizes` are full, ERROR if the server sent an error, or WRONG if the bytes do not follow the protocol.

    `cursor` (int64, CURSOR_FIELDS): offset of the next packet, number of the next packet, number of rows located so far, and beginning and
    end of the last payload. `width`: for each column, the bytes of a value, or 0 if a length precedes each value. `starts`, `sizes`:
    columns by rows.
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
