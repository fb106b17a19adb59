"""Decodes MariaDB's UUID, INET4 and INET6 into the text that SELECT prints. In the table map, columns of these types have the type code of
BINARY.

The row image omits trailing zero bytes. The server stores the five parts of a UUID in reverse order, so that UUIDs sort by time (MariaDB's
sql_type_uuid.h). UUIDs of version 6 and later, and UUIDs outside RFC 4122 (nil, max), are stored in the printed order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import gather as rows_gather
from sluice.cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    ValueRefusedError,
    Values,
    buffer_of,
    declared_type,
)
from sluice.cdc_engine.binlog.column_types.zero_dates import put_number
from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.contracts import Bytes, Column, Int32s, Int64s

UUID_BYTES, INET6_BYTES, INET4_BYTES = 16, 16, 4
INET6_CHARS_MAX, INET4_CHARS_MAX = len("ffff:" * 7 + "ffff"), len("255.255.255.255")
GROUPS, COLON, POINT = 8, ord(":"), ord(".")
UUID_CHARS = 36
# For each byte in the printed order, its index in a UUID that is stored with its parts in reverse order.
REVERSED = np.array([12, 13, 14, 15, 10, 11, 8, 9, 6, 7, 0, 1, 2, 3, 4, 5])
HYPHENS, HEX = [8, 13, 18, 23], np.frombuffer(b"0123456789abcdef", np.uint8)
DIGIT_INDICES = np.array([index for index in range(UUID_CHARS) if index not in HYPHENS])


@declared_type("uuid")
def uuid(_column: Column) -> ColumnType:
    return ColumnType(prefix_bytes=1, arrow=pa.string(), spark="string", finish=_uuids)


@declared_type("inet6")
def inet6(_column: Column) -> ColumnType:
    return ColumnType(prefix_bytes=1, arrow=pa.string(), spark="string", finish=_inet6s)


@declared_type("inet4")
def inet4(_column: Column) -> ColumnType:
    return ColumnType(prefix_bytes=1, arrow=pa.string(), spark="string", finish=_inet4s)


def _rows(values: Values, width: int) -> Bytes:
    """Returns the values that are not NULL as a two-dimensional array with `width` bytes per value. Zero bytes fill up a shorter value.
    Raises ValueRefusedError for a value of more than `width` bytes.
    """
    too_long = np.flatnonzero(values.sizes > width)
    if len(too_long):
        raise ValueRefusedError(int(too_long[0]), f"is longer than the {width} bytes of its type")
    offsets, out = np.empty(values.count + 1, np.int32), np.zeros(values.count * width, np.uint8)
    rows_gather.copy_padded(values.buffer, values.starts, values.sizes, width, offsets, out)
    return out[: int(offsets[-1])].reshape(-1, width)


def _uuids(values: Values) -> AnyArray:
    stored = _rows(values, UUID_BYTES)
    reverse = (stored[:, 6] & 0x80 != 0) & (stored[:, 8] - np.uint8(1) < 0x5F)
    octets = np.where(reverse[:, None], stored[:, REVERSED], stored)
    texts = np.full((len(octets), UUID_CHARS), ord("-"), np.uint8)
    texts[:, DIGIT_INDICES[0::2]], texts[:, DIGIT_INDICES[1::2]] = HEX[octets >> 4], HEX[octets & 15]
    ends = np.cumsum(values.starts >= 0) * UUID_CHARS
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(texts)]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)


def _inet4s(values: Values) -> AnyArray:
    octets = _rows(values, INET4_BYTES)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(len(octets) * INET4_CHARS_MAX, np.uint8)
    print_inet4s(values.starts, octets, offsets, out)
    return _texts(values, offsets, out)


def _inet6s(values: Values) -> AnyArray:
    octets = _rows(values, INET6_BYTES)
    offsets, out = np.empty(values.count + 1, np.int32), np.empty(len(octets) * INET6_CHARS_MAX, np.uint8)
    print_inet6s(values.starts, octets, offsets, out)
    return _texts(values, offsets, out)


def _texts(values: Values, offsets: Int32s, out: Bytes) -> AnyArray:
    buffers = [values.validity(), buffer_of(offsets), buffer_of(out[: offsets[-1]])]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)


@kernel
def print_inet4s(starts: Int64s, octets: Bytes, offsets: Int32s, out: Bytes) -> None:
    """Writes IPv4 addresses as text to `out`, back to back. `octets`: the four bytes of each value that is not NULL."""
    used, line = np.int64(0), np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            used = print_inet4(octets, line, 0, out, used)
            line += 1
        offsets[row + 1] = used


@kernel
def print_inet6s(starts: Int64s, octets: Bytes, offsets: Int32s, out: Bytes) -> None:
    """Writes IPv6 addresses as text to `out`, back to back. `octets`: the 16 bytes of each value that is not NULL."""
    used, line = np.int64(0), np.int64(0)
    offsets[0] = 0
    for row in range(starts.shape[0]):
        if starts[row] >= 0:
            used = print_inet6(octets, line, out, used)
            line += 1
        offsets[row + 1] = used


@kernel
def print_inet4(octets: Bytes, line: Integer, first: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes one IPv4 address as text. `octets[line]` has its four bytes from index `first` on. Returns the end of the text in `out`."""
    for index in range(INET4_BYTES):
        number = np.int64(octets[line, first + index])
        if index:
            out[used] = POINT
            used += 1
        used = put_number(out, used, number, 1 + (number >= 10) + (number >= 100))
    return used


@kernel
def print_inet6(octets: Bytes, line: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes one IPv6 address as the server's INET6_NTOA does. Returns the end of the text in `out`.

    `::` replaces the longest run of zero groups, even a run of only one group. Of equally long runs, it replaces the first. An embedded
    IPv4 address has dots.
    """
    first, length = zero_groups(octets, line)
    mapped = first == 0 and length == 5 and octets[line, 10] == 0xFF and octets[line, 11] == 0xFF
    compatible = first == 0 and length == 6
    group, shown = np.int64(0), 6 if mapped or compatible else GROUPS
    while group < shown:
        if group == first and length:
            out[used], out[used + 1] = COLON, COLON
            used += 2
            group += length
            continue
        if group and group != first + length:
            out[used] = COLON
            used += 1
        used = print_group(out, used, np.int64(octets[line, 2 * group]) << 8 | np.int64(octets[line, 2 * group + 1]))
        group += 1
    if mapped or compatible:
        if mapped:
            out[used] = COLON
            used += 1
        used = print_inet4(octets, line, 12, out, used)
    return used


@kernel
def zero_groups(octets: Bytes, line: Integer) -> tuple[Integer, Integer]:
    """Finds the longest run of zero groups in an IPv6 address (`octets[line]`), which has GROUPS groups of two bytes. Returns the index of
    the run's first group, and the number of groups. Of equally long runs, returns the first. Returns (0, 0) if no group is zero.
    """
    first, longest, length = np.int64(0), np.int64(0), np.int64(0)
    for group in range(GROUPS):
        zero = octets[line, 2 * group] == 0 and octets[line, 2 * group + 1] == 0
        length = length + 1 if zero else np.int64(0)
        if length > longest:
            first, longest = group + 1 - length, length
    return first, longest


@kernel
def print_group(out: Bytes, used: Integer, number: Integer) -> Integer:
    """Writes a 16-bit number in hexadecimal without leading zeros. Returns the end of the text in `out`."""
    for index in range(3, -1, -1):
        if index == 0 or number >> 4 * index:
            out[used] = HEX[number >> 4 * index & 15]
            used += 1
    return used
