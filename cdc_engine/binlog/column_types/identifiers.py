"""MariaDB's UUID, INET4 and INET6: bytes in the row image, behind the type code of BINARY, and in the lake the text that SELECT prints.

Trailing zero bytes are not in the image. A UUID's bytes are stored in reverse order of its five parts, so that they sort by time (MariaDB's
sql_type_uuid.h); those of version 6 and later, and what is no UUID of RFC 4122 (nil, max), are stored as they are printed.
"""

from __future__ import annotations

import ipaddress
import itertools
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_engine.binlog.column_types import gather as rows_gather
from cdc_engine.binlog.column_types.entry import (
    AnyArray,
    ColumnType,
    ValueRefusedError,
    Values,
    buffer_of,
    declared_type,
)
from cdc_engine.contracts import Bytes, Column

UUID_BYTES, INET6_BYTES, INET4_BYTES = 16, 16, 4
UUID_CHARS = 36
# the place in the image of each printed byte, where the parts stand in reverse order
REVERSED = np.array([12, 13, 14, 15, 10, 11, 8, 9, 6, 7, 0, 1, 2, 3, 4, 5])
HYPHENS, HEX = [8, 13, 18, 23], np.frombuffer(b"0123456789abcdef", np.uint8)
DIGIT_PLACES = np.array([place for place in range(UUID_CHARS) if place not in HYPHENS])


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
    """The bytes of the values that are not NULL, rows by width."""
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
    texts[:, DIGIT_PLACES[0::2]], texts[:, DIGIT_PLACES[1::2]] = HEX[octets >> 4], HEX[octets & 15]
    ends = np.cumsum(values.starts >= 0) * UUID_CHARS
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [values.validity(), buffer_of(offsets), buffer_of(texts)]
    return pa.Array.from_buffers(pa.string(), values.count, buffers)


def _inet4s(values: Values) -> AnyArray:
    return _printed(values, INET4_BYTES, lambda octets: str(ipaddress.IPv4Address(octets)))


def _inet6s(values: Values) -> AnyArray:
    return _printed(values, INET6_BYTES, printed_inet6)


def _printed(values: Values, width: int, text_of: Any) -> AnyArray:
    """Once a distinct address, not once a row."""
    unique, inverse = np.unique(_rows(values, width), axis=0, return_inverse=True)
    texts = pa.array([text_of(octets.tobytes()) for octets in unique], pa.string())
    places = np.zeros(values.count, np.int64)
    places[values.starts >= 0] = np.ravel(inverse)
    indices = pa.Array.from_buffers(pa.int64(), values.count, [values.validity(), buffer_of(places)])
    return texts.take(indices)


def printed_inet6(octets: bytes) -> str:
    """As INET6_NTOA: the first of the longest runs of zero groups, were it one group, is `::`; an IPv4 address within is printed as one."""
    if octets[:12] == bytes(10) + b"\xff\xff":
        return f"::ffff:{ipaddress.IPv4Address(octets[12:])}"
    if octets[:12] == bytes(12) and octets[12:14] != b"\0\0":
        return f"::{ipaddress.IPv4Address(octets[12:])}"
    groups = [octets[at : at + 2] for at in range(0, len(octets), 2)]
    zeros = [len(list(itertools.takewhile(lambda group: group == b"\0\0", groups[at:]))) for at in range(len(groups))]
    longest = max(zeros)
    printed = [f"{int.from_bytes(group):x}" for group in groups]
    if not longest:
        return ":".join(printed)
    first = zeros.index(longest)
    return f"{':'.join(printed[:first])}::{':'.join(printed[first + longest :])}"
