"""Reads GTID events in the scan: MySQL's, tagged ones, and MariaDB's. Called by `kernel`.

A source is a uuid, a uuid with a tag (MySQL 8.3 and later), or MariaDB's domain and server: six integers
(`state.SOURCE_NEW`), so that sources are compared without text. The tagged event is a message of MySQL's serialization
with the fields of libs/mysql/binlog/event/control_events.h:
https://dev.mysql.com/doc/dev/mysql-server/latest/PageLibsMysqlSerialization.html.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.events.event_types import GTID, HEADER_BYTES
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.binlog.scan.state import (
    COMMITTED,
    EVENT,
    FILE_END,
    GENERATION,
    IN_XA,
    NUMBER,
    OPEN,
    OPEN_ROWS,
    QUERY_AT,
    SEQUENCE,
    SOURCE,
    SOURCE_COUNT,
    SOURCE_NEW,
    SOURCE_ROWS,
    TAG_BYTES_MAX,
    TIME_US,
    TRANSACTION_OFFSET,
    ScanStatus,
)
from sluice.cdc_engine.contracts import Bytes, Int64s

# A GTID event has flags 1, source 16, number 8, clock kind 1, two clocks 8 each; then commit times of 7 bytes.
CLOCK_KIND, LOGICAL_CLOCK = 25, 42
KNOWN_CLOCK = 2
HAS_ORIGINAL_TIME = 1 << 55  # If set, the commit time on the original server follows the one on this replica.
STANDALONE, PREPARED_OR_COMPLETED_XA = 0x01, 0xC0  # flags of MariaDB's GTID event
SERIALIZATION = 1  # version of the message in a tagged GTID event
# The ids of the event's fields. The other known fields are numbers that Sluice does not use.
UUID_FIELD, NUMBER_FIELD, TAG_FIELD, TIME_FIELD, ORIGINAL_TIME_FIELD, LAST_FIELD = 1, 2, 3, 6, 7, 11
NEEDED_FIELDS = 1 << UUID_FIELD | 1 << NUMBER_FIELD | 1 << TAG_FIELD


@nb.njit(inline="always")
def is_unfinished(state: Int64s) -> bool:
    """Returns whether a transaction with rows is open, so that another one cannot begin."""
    return bool(state[OPEN] == 1 and state[OPEN_ROWS] > 0)


@kernel
def take_gtid(buffer: Bytes, state: Int64s, sources: Int64s, body_end: int) -> ScanStatus:
    """Reads a GTID event: flags 1, source uuid 16, number 8; since MySQL 5.7 the logical clock; since 8.0 commit times in microseconds."""
    body = state[EVENT] + HEADER_BYTES
    if body + 25 > body_end:
        return ScanStatus.BAD_BODY
    if is_unfinished(state):
        return ScanStatus.UNFINISHED
    source = -1
    if buffer[state[EVENT] + 4] == GTID:
        source = _plain_source(state, sources, little_endian(buffer, body + 1, 8), little_endian(buffer, body + 9, 8))
        if source < 0:
            return ScanStatus.SOURCES_FULL
    _begin(state, source, little_endian(buffer, body + 17, 8))
    state[OPEN] = 0  # A BEGIN or a standalone statement follows.
    if body + LOGICAL_CLOCK <= body_end and buffer[body + CLOCK_KIND] == KNOWN_CLOCK:
        state[COMMITTED] = little_endian(buffer, body + CLOCK_KIND + 1, 8)
        state[SEQUENCE] = little_endian(buffer, body + CLOCK_KIND + 9, 8)
    times = body + LOGICAL_CLOCK
    if times + 7 <= body_end:
        state[TIME_US] = little_endian(buffer, times, 7)
        if state[TIME_US] & HAS_ORIGINAL_TIME:
            state[TIME_US] = little_endian(buffer, times + 7, 7) if times + 14 <= body_end else 0
    return ScanStatus.GO_ON


@kernel
def take_mariadb_gtid(buffer: Bytes, state: Int64s, sources: Int64s, body_end: int) -> ScanStatus:
    """Reads MariaDB's GTID event: sequence number 8, domain 4, flags 1. It also begins a transaction, unless a
    standalone statement follows.
    """
    body = state[EVENT] + HEADER_BYTES
    if body + 13 > body_end:
        return ScanStatus.BAD_BODY
    if is_unfinished(state):
        return ScanStatus.UNFINISHED
    flags = buffer[body + 12]
    domain, server = little_endian(buffer, body + 8, 4), little_endian(buffer, state[EVENT] + 5, 4)
    source = _plain_source(state, sources, domain, server)
    if source < 0:
        return ScanStatus.SOURCES_FULL
    _begin(state, source, little_endian(buffer, body, 8))
    state[OPEN] = 0 if flags & STANDALONE else 1
    if flags & PREPARED_OR_COMPLETED_XA:
        return ScanStatus.HAND_OVER
    return ScanStatus.GO_ON


@nb.njit(inline="always")
def _begin(state: Int64s, source: int, number: int) -> None:
    state[SOURCE] = source
    state[NUMBER] = number
    state[TIME_US] = 0
    state[COMMITTED] = state[SEQUENCE] = state[QUERY_AT] = -1
    state[OPEN_ROWS] = state[IN_XA] = 0
    state[TRANSACTION_OFFSET] = state[FILE_END]
    state[GENERATION] += 1


@nb.njit(inline="always")
def _plain_source(state: Int64s, sources: Int64s, high: int, low: int) -> int:
    state[SOURCE_NEW] = high
    state[SOURCE_NEW + 1] = low
    for row in range(2, SOURCE_ROWS):
        state[SOURCE_NEW + row] = 0
    return _source_index(state, sources)


@kernel
def _source_index(state: Int64s, sources: Int64s) -> int:
    """Returns the index of the source at SOURCE_NEW, adding it if it is new; -1 if there is no space. Searches
    backwards, because a stream has few writers.
    """
    count: int = state[SOURCE_COUNT]
    for index in range(count - 1, -1, -1):
        row = 0
        while row < SOURCE_ROWS and sources[row, index] == state[SOURCE_NEW + row]:
            row += 1
        if row == SOURCE_ROWS:
            return index
    if count >= sources.shape[1]:
        return -1
    for row in range(SOURCE_ROWS):
        sources[row, count] = state[SOURCE_NEW + row]
    state[SOURCE_COUNT] = count + 1
    return count


# ── tagged ──


@kernel
def take_tagged_gtid(buffer: Bytes, state: Int64s, sources: Int64s, body_end: int) -> ScanStatus:
    """Reads a tagged GTID event: version, total size, the last field that must be understood; then fields in ascending
    order, each after its id.

    A newer message, or one with an unknown field that must be understood, is left to Python, which refuses it.
    """
    body = state[EVENT] + HEADER_BYTES
    version, at = _varlen(buffer, body, body_end)
    size, at = _varlen(buffer, at, body_end)
    last_needed, at = _varlen(buffer, at, body_end)
    if at < 0 or not at - body <= size <= body_end - body:
        return ScanStatus.BAD_BODY
    if version != SERIALIZATION or last_needed > LAST_FIELD:
        return ScanStatus.HAND_OVER
    if is_unfinished(state):
        return ScanStatus.UNFINISHED
    number, time_us = _tagged_fields(buffer, at, body + size, state)
    if number <= 0:
        return ScanStatus.BAD_BODY
    source = _source_index(state, sources)
    if source < 0:
        return ScanStatus.SOURCES_FULL
    _begin(state, source, number)
    state[OPEN] = 0  # A BEGIN or a standalone statement follows.
    state[TIME_US] = time_us
    return ScanStatus.GO_ON


@kernel
def _tagged_fields(buffer: Bytes, at: Integer, end: Integer, state: Int64s) -> tuple[Integer, Integer]:
    """Reads the fields. Returns (the transaction's number, its commit time in µs or 0) and writes its source to SOURCE_NEW. The number is 0
    if the fields are unreadable.
    """
    seen, last = 0, -1
    number, time_us = np.int64(0), np.int64(0)
    while at < end:
        field, at = _varlen(buffer, at, end)
        if at < 0 or field <= last:
            return 0, 0
        if field > LAST_FIELD:
            break  # Later fields may be skipped.
        value = np.int64(0)
        if field == UUID_FIELD:
            at = _tagged_uuid(buffer, at, end, state)
        elif field == TAG_FIELD:
            at = _tag(buffer, at, end, state)
        else:
            value, at = _varlen(buffer, at, end)
        if at < 0:
            return 0, 0
        if field == NUMBER_FIELD:
            number = (value >> 1) * (1 - (value & 1))  # The lowest bit is the sign; the server sends no 0.
        # The event may have a second time: the commit time on the original server, which then counts.
        if field in (TIME_FIELD, ORIGINAL_TIME_FIELD):
            time_us = value
        seen |= 1 << field
        last = field
    return (number, time_us) if seen & NEEDED_FIELDS == NEEDED_FIELDS else (0, 0)


@kernel
def _varlen(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Reads an integer. Returns (the integer, the offset after it; -1 if truncated or if `at` is negative).

    The number of 1 bits below the lowest 0 bit of the first byte is the number of bytes that follow. The integer begins
    above that 0 bit, lowest byte first.
    """
    if at < 0 or at >= end:
        return 0, -1
    first, follow = np.int64(buffer[at]), np.int64(0)
    while follow < 8 and (first >> follow) & 1:
        follow += 1
    if at + 1 + follow > end:
        return 0, -1
    if follow == 8:
        return little_endian(buffer, at + 1, 8), at + 9
    bits = 7 * (follow + 1)
    return (little_endian(buffer, at, follow + 1) >> (follow + 1)) & ((np.int64(1) << bits) - 1), at + 1 + follow


@kernel
def _tagged_uuid(buffer: Bytes, at: Integer, end: Integer, state: Int64s) -> Integer:
    """Reads 16 bytes, each an integer of its own. Returns the offset after them, or -1."""
    state[SOURCE_NEW] = state[SOURCE_NEW + 1] = 0
    for index in range(16):
        value, at = _varlen(buffer, at, end)
        if at < 0 or not 0 <= value <= 0xFF:
            return -1
        state[SOURCE_NEW + (index >> 3)] |= value << (8 * (index & 7))
    return at


@kernel
def _tag(buffer: Bytes, at: Integer, end: Integer, state: Int64s) -> Integer:
    """Reads a length and as many letters, digits and underscores. Returns the offset after them, or -1."""
    length, at = _varlen(buffer, at, end)
    if at < 0 or not 0 <= length <= TAG_BYTES_MAX or at + length > end:
        return -1
    for row in range(2, SOURCE_ROWS):
        state[SOURCE_NEW + row] = 0
    for index in range(length):
        value = np.int64(buffer[at + index])
        mail = 97 <= value <= 122 or value == 95
        if not mail and (index == 0 or not 48 <= value <= 57):
            return -1
        state[SOURCE_NEW + 2 + (index >> 3)] |= value << (8 * (index & 7))
    return at + length
