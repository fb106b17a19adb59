"""Numba kernels that read GTID events: MySQL's, MySQL's with tags, and MariaDB's.

A GTID source is the part of a GTID before the number: a uuid, a uuid with a tag (MySQL 8.3 and later), or MariaDB's domain and server id.
The kernels compare sources as six integers (`state.SOURCE_NEW`) instead of texts. The GTID event with a tag is in the format of MySQL's
serialization library, with the fields of libs/mysql/binlog/event/control_events.h:
https://dev.mysql.com/doc/dev/mysql-server/latest/PageLibsMysqlSerialization.html
"""

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.events.event_types import GTID, HEADER_BYTES
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int64s
from sluice.cdc_engine.parser.scan.state import (
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

# Offsets in the body of a GTID event. CLOCK_KIND: the kind of the logical clock. LOGICAL_CLOCK: the end of the logical clock, where the
# commit times begin. The body has flags (1 byte), source (16), number (8), kind of clock (1), two clock values (8 each) and commit times (7
# each).
CLOCK_KIND, LOGICAL_CLOCK = 25, 42
KNOWN_CLOCK = 2
# This bit is set in the first commit time (the commit time on the replica) if the commit time on the original server follows.
HAS_ORIGINAL_TIME = 1 << 55
STANDALONE, PREPARED_OR_COMPLETED_XA = 0x01, 0xC0  # Flags of MariaDB's GTID event.
SERIALIZATION = 1  # The version of the tagged GTID event's message format.
# Ids of the fields of a tagged GTID event. The fields with other ids up to LAST_FIELD are integers that Sluice does not use.
UUID_FIELD, NUMBER_FIELD, TAG_FIELD, TIME_FIELD, ORIGINAL_TIME_FIELD, LAST_FIELD = 1, 2, 3, 6, 7, 11
NEEDED_FIELDS = 1 << UUID_FIELD | 1 << NUMBER_FIELD | 1 << TAG_FIELD


@nb.njit(inline="always")
def is_unfinished(state: Int64s) -> bool:
    """Returns whether a transaction with rows is open, so that no other transaction may begin."""
    return bool(state[OPEN] == 1 and state[OPEN_ROWS] > 0)


@kernel
def take_gtid(buffer: Bytes, state: Int64s, sources: Int64s, body_end: int) -> ScanStatus:
    """Reads MySQL's GTID event. Stores in `state` the GTID and the commit time of the next transaction. The event has flags (1 byte), uuid
    of the source (16) and number (8), since MySQL 5.7 also a logical clock, and since 8.0 also commit times in µs.
    """
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
    state[OPEN] = 0  # The next event is a BEGIN, which opens the transaction, or a statement outside of transactions.
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
    """Reads MariaDB's GTID event. Stores in `state` the GTID of the next transaction. The event has a sequence number (8 bytes), domain (4)
    and flags (1). Without the flag STANDALONE, the event also opens the transaction.
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
    """Returns the index in `sources` of the GTID source in SOURCE_NEW. Adds the source if it is new. Returns -1 if `sources` is full.
    Searches the newest sources first.
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


# ── MySQL's tagged GTIDs ──


@kernel
def take_tagged_gtid(buffer: Bytes, state: Int64s, sources: Int64s, body_end: int) -> ScanStatus:
    """Reads MySQL's GTID event with a tag. Stores in `state` the GTID and the commit time of the next transaction.

    The event has a version, a size, the id of the last field that a reader must understand, and the fields in ascending order of ids, each
    preceded by its id.

    Returns HAND_OVER if the version is newer, or if the event has an unknown field that a reader must understand. Python then raises an
    error.
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
    state[OPEN] = 0  # The next event is a BEGIN, which opens the transaction, or a statement outside of transactions.
    state[TIME_US] = time_us
    return ScanStatus.GO_ON


@kernel
def _tagged_fields(buffer: Bytes, at: Integer, end: Integer, state: Int64s) -> tuple[Integer, Integer]:
    """Reads the fields of a tagged GTID event. Writes the GTID source to SOURCE_NEW. Returns (number of the transaction, commit time in µs
    or 0). The returned number is 0 if the fields are invalid.
    """
    seen, last = 0, -1
    number, time_us = np.int64(0), np.int64(0)
    while at < end:
        field, at = _varlen(buffer, at, end)
        if at < 0 or field <= last:
            return 0, 0
        if field > LAST_FIELD:
            break  # `take_tagged_gtid` has checked that a reader need not understand this field and later ones.
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
            # The lowest bit is the sign. A negative number becomes 0, which is not valid.
            number = (value >> 1) * (1 - (value & 1))
        # If the event has the commit time on the original server, this time replaces the commit time on the replica.
        if field in (TIME_FIELD, ORIGINAL_TIME_FIELD):
            time_us = value
        seen |= 1 << field
        last = field
    return (number, time_us) if seen & NEEDED_FIELDS == NEEDED_FIELDS else (0, 0)


@kernel
def _varlen(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Reads an integer of variable length. Returns (integer, offset after the integer). The returned offset is -1 if the integer is
    truncated or `at` is negative.

    In the first byte, the number of 1 bits below the lowest 0 bit is the number of bytes that follow. The integer consists of all bits
    above this 0 bit, in little-endian order.
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
    """Reads a uuid into SOURCE_NEW. Each of its 16 bytes is encoded as an integer of variable length. Returns the offset after the uuid, or
    -1 if the uuid is invalid.
    """
    state[SOURCE_NEW] = state[SOURCE_NEW + 1] = 0
    for index in range(16):
        value, at = _varlen(buffer, at, end)
        if at < 0 or not 0 <= value <= 0xFF:
            return -1
        state[SOURCE_NEW + (index >> 3)] |= value << (8 * (index & 7))
    return at


@kernel
def _tag(buffer: Bytes, at: Integer, end: Integer, state: Int64s) -> Integer:
    """Reads a tag (a length, then letters, digits and underscores) into SOURCE_NEW. Returns the offset after the tag, or -1 if the tag is
    invalid.
    """
    length, at = _varlen(buffer, at, end)
    if at < 0 or not 0 <= length <= TAG_BYTES_MAX or at + length > end:
        return -1
    for row in range(2, SOURCE_ROWS):
        state[SOURCE_NEW + row] = 0
    for index in range(length):
        value = np.int64(buffer[at + index])
        may_begin = 97 <= value <= 122 or value == 95
        if not may_begin and (index == 0 or not 48 <= value <= 57):
            return -1
        state[SOURCE_NEW + 2 + (index >> 3)] |= value << (8 * (index & 7))
    return at + length
