"""Numba kernel that scans the received bytes in one pass: it separates packets, verifies checksums and finds row events.

The kernel handles the frequent events itself. For other events, such as a new table map or a DDL statement, the kernel returns to Python.
The kernel reads only bytes that have arrived, so invalid bytes lead to a status and never to a read outside the buffer. The module `state`
describes the arrays. Layouts of events: https://dev.mysql.com/doc/dev/mysql-server/latest/group__group__cs__replication.html
https://mariadb.com/kb/en/replication-protocol/
"""

from __future__ import annotations

import numba as nb
import numpy as np

from sluice.cdc_engine.binlog.compiled import kernel
from sluice.cdc_engine.binlog.events.event_types import (
    ANONYMOUS_GTID,
    DELETE_ROWS_V1,
    FLAG_ARTIFICIAL,
    FORMAT_DESCRIPTION,
    GTID,
    GTID_TAGGED,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    INTVAR,
    MARIADB_ANNOTATE_ROWS,
    MARIADB_BINLOG_CHECKPOINT,
    MARIADB_GTID,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    RAND,
    ROWS_QUERY,
    STOP,
    TABLE_MAP,
    USER_VAR,
    WRITE_ROWS,
    WRITE_ROWS_V1,
    XID,
)
from sluice.cdc_engine.binlog.events.event_types import DELETE_ROWS as DELETE_ROWS_V2
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int64s
from sluice.cdc_engine.parser.scan.checksum import crc32
from sluice.cdc_engine.parser.scan.gtid_kernel import is_unfinished, take_gtid, take_mariadb_gtid, take_tagged_gtid
from sluice.cdc_engine.parser.scan.state import (
    ALL_EVENTS,
    AT,
    BEGAN,
    BEGAN_AT,
    BEGIN_AT,
    BEGIN_LENGTH,
    BEGIN_SECONDS,
    BEGIN_THREAD,
    CHECKSUM,
    CHECKSUMS,
    COMMITTED,
    CONTIGUOUS,
    DROPPED,
    ELSEWHERE,
    END_COUNT,
    END_EVENTS,
    END_FRAME,
    END_NUMBER,
    END_POSITION,
    END_SOURCE,
    END_TIME,
    EVENT,
    EVENT_COUNT,
    EVENT_LENGTH,
    FILE_END,
    GENERATION,
    HEARTBEATS,
    IGNORED,
    IN_XA,
    INNER_BEGIN,
    INNER_DONE,
    INNER_END,
    INNER_SIZE,
    KIND,
    LENGTH,
    LIMIT,
    MAPPED_IN,
    NO_QUERY,
    NUMBER,
    OFFSET,
    OPEN,
    OPEN_ROWS,
    OVERHEAD,
    POOL_BEGIN,
    POOL_LENGTH,
    POSITION,
    QUERIES,
    QUERY_AT,
    QUERY_BEGAN,
    QUERY_BYTES,
    QUERY_COUNT,
    QUERY_EVENT,
    QUERY_LENGTH,
    QUERY_OFFSET,
    QUERY_POSITION,
    REFERENCE,
    SEQUENCE,
    SOURCE,
    TABLE,
    TABLE_ID,
    TIME,
    TIME_US,
    TRANSACTION_OFFSET,
    VERSION,
    ScanStatus,
)

BEGIN = np.frombuffer(b"BEGIN", np.uint8)
COMMIT = np.frombuffer(b"COMMIT", np.uint8)
# The length of a QUERY event's post-header: thread (4 bytes), seconds (4), length of the database's name (1), error (2), length of the
# status variables (2).
QUERY_POST_HEADER = 13
# A row event with one of these table ids has no rows, and only marks the end of a statement.
DUMMY_TABLES = (0xFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFF)
PACKET_GOES_ON = 0xFFFFFF
# End positions in event headers have only the low 32 bits, so the kernel computes end position minus expected end position, modulo 4 GiB.
# If the result is at least REWOUND, the event ends too early: an error. A smaller result is the size in bytes of events that were not sent.
REWOUND = 1 << 31


@kernel
def scan(  # noqa: PLR0917  numba has no keyword-only arguments
    buffer: Bytes,
    state: Int64s,
    events: Int64s,
    ends: Int64s,
    tables: Int64s,
    pool: Bytes,
    sources: Int64s,
    queries: Int64s,
) -> ScanStatus:
    """Scans the events from state[AT] to state[LIMIT], and returns why the scan stopped. Afterwards, state[AT] is after the last event that
    was scanned or handed over to Python. `buffer` has the received bytes. The module `state` describes the other arrays.
    """
    if state[AT] < 0 or state[LIMIT] > buffer.shape[0]:
        return ScanStatus.BAD_LENGTH
    while True:
        if state[EVENT_COUNT] >= events.shape[1] or state[END_COUNT] >= ends.shape[1]:
            return ScanStatus.FULL
        verdict = _frame(buffer, state)
        if verdict != ScanStatus.GO_ON:
            return verdict
        verdict = _check(buffer, state)
        if verdict != ScanStatus.GO_ON:
            return verdict
        verdict = _take(buffer, state, events, ends, tables, pool, sources, queries)
        if verdict != ScanStatus.GO_ON:
            return verdict


@kernel
def _frame(buffer: Bytes, state: Int64s) -> ScanStatus:  # noqa: PLR0911
    """Finds the next complete event. A packet begins with length (3 bytes), number (1) and status (1), which is 0 before an event."""
    at, limit = state[AT], state[LIMIT]
    if state[OVERHEAD] == 0:
        if at + HEADER_BYTES > limit:
            return ScanStatus.INCOMPLETE
        event, length = at, little_endian(buffer, at + 9, 4)
        if length < HEADER_BYTES:
            return ScanStatus.BAD_LENGTH
        if event + length > limit:
            return ScanStatus.INCOMPLETE
    else:
        if at + 4 > limit:
            return ScanStatus.INCOMPLETE
        payload = little_endian(buffer, at, 3)
        if payload == PACKET_GOES_ON:
            return ScanStatus.LARGE
        if at + 4 + payload > limit:
            return ScanStatus.INCOMPLETE
        if payload == 0 or buffer[at + 4] != 0:
            return ScanStatus.NOT_AN_EVENT
        event, length = at + 5, payload - 1
        if length < HEADER_BYTES or little_endian(buffer, event + 9, 4) != length:
            return ScanStatus.BAD_LENGTH
    state[EVENT], state[EVENT_LENGTH] = event, length
    if state[ELSEWHERE] == 1 and state[INNER_END] == 0:
        noted = state[QUERIES] == 1 and _is_rows_query(buffer[event + 4])
        if noted or _is_rows(buffer[event + 4]):
            return ScanStatus.SWITCH
    return ScanStatus.GO_ON


@nb.njit(inline="always")
def _is_rows(event_type: int) -> bool:
    plain = WRITE_ROWS <= event_type <= DELETE_ROWS_V2 or WRITE_ROWS_V1 <= event_type <= DELETE_ROWS_V1
    return plain or event_type == PARTIAL_UPDATE_ROWS


@nb.njit(inline="always")
def _is_rows_query(event_type: int) -> bool:
    return event_type in (ROWS_QUERY, MARIADB_ANNOTATE_ROWS)


@kernel
def _check(buffer: Bytes, state: Int64s) -> ScanStatus:
    """Verifies the checksum and the end position of the current event, and moves AT after it. Python verifies format descriptions."""
    event, length = state[EVENT], state[EVENT_LENGTH]
    event_type = buffer[event + 4]
    if state[CHECKSUM] > 0 and event_type != FORMAT_DESCRIPTION:
        if length < HEADER_BYTES + 4:
            return ScanStatus.BAD_LENGTH
        if crc32(buffer, event, event + length - 4) != little_endian(buffer, event + length - 4, 4):
            return ScanStatus.BAD_CHECKSUM
        state[CHECKSUMS] += 1
    if state[INNER_END] > 0:
        verdict = _step_inside(state, length)
        if verdict != ScanStatus.GO_ON:
            return verdict
    else:
        state[BEGAN] = state[FILE_END]
        in_file = buffer[event + 17] & FLAG_ARTIFICIAL == 0 and event_type not in (HEARTBEAT, HEARTBEAT_V2)
        if in_file and not _step(state, little_endian(buffer, event + 13, 4), length, event_type):
            return ScanStatus.BAD_POSITION
    state[AT] = event + length
    state[ALL_EVENTS] += 1
    return ScanStatus.GO_ON


@nb.njit(inline="always")
def _step(state: Int64s, end: int, length: int, event_type: int) -> bool:
    """Moves FILE_END to the end of the current event. `end` is the end position in the event's header (32 bits). Returns False if the event
    cannot end at `end`.

    MariaDB 11 writes the end position 0 within a transaction. FILE_END then moves by the length of the event. If a dump begins in the
    middle of a file, the server first repeats the format description with the end position 0, which does not move FILE_END.
    """
    expected = state[FILE_END] + length
    if end == 0:
        state[FILE_END] = state[FILE_END] if event_type == FORMAT_DESCRIPTION else expected
        return True
    ahead = (end - expected) & 0xFFFFFFFF
    if ahead >= REWOUND or (ahead > 0 and state[CONTIGUOUS] == 1):
        return False
    state[FILE_END] = expected + ahead
    state[BEGAN] += ahead
    return True


@nb.njit(inline="always")
def _step_inside(state: Int64s, length: int) -> ScanStatus:
    """Sets BEGAN and FILE_END for an event inside a compressed event, which has no offset of its own in the file. FILE_END is the end of
    the compressed event if the event is the last one in it, and otherwise the beginning of the compressed event.
    """
    done = state[INNER_DONE] + length
    if done > state[INNER_SIZE]:
        return ScanStatus.INNER_LENGTH
    if state[INNER_DONE] > 0 and state[OPEN] == 0:
        return ScanStatus.INNER_GOES_ON
    state[INNER_DONE] = done
    state[BEGAN] = state[INNER_BEGIN]
    state[FILE_END] = state[INNER_END] if done == state[INNER_SIZE] else state[INNER_BEGIN]
    return ScanStatus.GO_ON


@kernel
def _take(  # noqa: PLR0911, PLR0917
    buffer: Bytes,
    state: Int64s,
    events: Int64s,
    ends: Int64s,
    tables: Int64s,
    pool: Bytes,
    sources: Int64s,
    queries: Int64s,
) -> ScanStatus:
    event = state[EVENT]
    event_type = buffer[event + 4]
    body_end = event + state[EVENT_LENGTH] - state[CHECKSUM]
    if WRITE_ROWS <= event_type <= DELETE_ROWS_V2:
        return _take_rows(buffer, state, events, tables, queries, event_type - WRITE_ROWS + 1, 2, body_end)
    if WRITE_ROWS_V1 <= event_type <= DELETE_ROWS_V1:
        return _take_rows(buffer, state, events, tables, queries, event_type - WRITE_ROWS_V1 + 1, 1, body_end)
    if event_type == TABLE_MAP:
        return _take_table_map(buffer, state, tables, pool, body_end)
    if event_type == QUERY:
        return _take_query(buffer, state, ends, body_end)
    if event_type == XID:
        if state[IN_XA] == 1:
            return ScanStatus.HAND_OVER
        _end_transaction(buffer, state, ends)
        return ScanStatus.GO_ON
    if event_type in (GTID, ANONYMOUS_GTID):
        return take_gtid(buffer, state, sources, body_end)
    if event_type == MARIADB_GTID:
        return take_mariadb_gtid(buffer, state, sources, body_end)
    if event_type == GTID_TAGGED:
        return take_tagged_gtid(buffer, state, sources, body_end)
    if event_type == PARTIAL_UPDATE_ROWS:
        return _take_rows(buffer, state, events, tables, queries, 2, 3, body_end)
    if state[QUERIES] == 1 and _is_rows_query(event_type):
        return _take_rows_query(state, event_type, body_end)
    return _take_harmless(event_type, state)


@nb.njit(inline="always")
def _take_harmless(event_type: int, state: Int64s) -> ScanStatus:
    """Skips types of events that need no handling, and returns HAND_OVER for all other types. (INTVAR, RAND and USER_VAR only set values
    for the QUERY event that follows.)
    """
    if event_type in (HEARTBEAT, HEARTBEAT_V2):
        state[HEARTBEATS] += 1
        return ScanStatus.GO_ON
    if event_type in (STOP, ROWS_QUERY, MARIADB_ANNOTATE_ROWS, MARIADB_BINLOG_CHECKPOINT, INTVAR, RAND, USER_VAR):
        state[IGNORED] += 1
        return ScanStatus.GO_ON
    return ScanStatus.HAND_OVER


@nb.njit(inline="always")
def _header_time_us(buffer: Bytes, event: int) -> int:
    seconds: int = little_endian(buffer, event, 4)
    return seconds * 1_000_000


@kernel
def _take_rows(  # noqa: PLR0917
    buffer: Bytes,
    state: Int64s,
    events: Int64s,
    tables: Int64s,
    queries: Int64s,
    kind: int,
    version: int,
    body_end: int,
) -> ScanStatus:
    """Adds a row event of a captured table to `events`. Layout: table id (6 bytes), flags (2); in version 2 also length (2), extra data."""
    event = state[EVENT]
    body = event + HEADER_BYTES
    if body + 8 > body_end:
        return ScanStatus.BAD_BODY
    if version >= 2 and (
        body + 10 > body_end
        or little_endian(buffer, body + 8, 2) < 2
        or body + 8 + little_endian(buffer, body + 8, 2) > body_end
    ):
        return ScanStatus.BAD_BODY
    table_id = little_endian(buffer, body, 6)
    if state[IN_XA] == 1 and table_id not in DUMMY_TABLES:
        return ScanStatus.HAND_OVER
    slot = _find(tables, table_id)
    if slot < 0 or tables[MAPPED_IN, slot] != state[GENERATION]:
        if table_id in DUMMY_TABLES:
            state[IGNORED] += 1
            return ScanStatus.GO_ON
        return ScanStatus.NO_TABLE_MAP
    if state[OPEN] == 0:
        return ScanStatus.OUTSIDE_TRANSACTION
    if tables[REFERENCE, slot] < 0:
        state[DROPPED] += 1
        return ScanStatus.GO_ON
    count = state[EVENT_COUNT]
    events[OFFSET, count] = event
    events[LENGTH, count] = body_end - event
    events[KIND, count] = kind
    events[VERSION, count] = version
    events[TABLE, count] = tables[REFERENCE, slot]
    events[POSITION, count] = state[BEGAN]
    events[BEGAN_AT, count] = state[TRANSACTION_OFFSET]
    events[TIME, count] = state[TIME_US] if state[TIME_US] > 0 else _header_time_us(buffer, event)
    if state[QUERY_AT] != NO_QUERY:
        query = state[QUERY_COUNT]
        queries[QUERY_EVENT, query] = count
        queries[QUERY_OFFSET, query] = state[QUERY_AT]
        queries[QUERY_BYTES, query] = state[QUERY_LENGTH]
        queries[QUERY_BEGAN, query] = state[QUERY_POSITION]
        state[QUERY_COUNT] = query + 1
        state[QUERY_AT] = NO_QUERY
    state[EVENT_COUNT] = count + 1
    state[OPEN_ROWS] += 1
    return ScanStatus.GO_ON


@nb.njit(inline="always")
def _take_rows_query(state: Int64s, event_type: int, body_end: int) -> ScanStatus:
    """Records a rows query event: the SQL text of the statement whose row events follow (in MySQL, after a length byte)."""
    if state[EVENT] + HEADER_BYTES + (event_type == ROWS_QUERY) > body_end:
        return ScanStatus.BAD_BODY
    state[IGNORED] += 1
    state[QUERY_AT], state[QUERY_LENGTH] = state[EVENT], body_end - state[EVENT]
    state[QUERY_POSITION] = state[BEGAN]
    return ScanStatus.GO_ON


@kernel
def _find(tables: Int64s, table_id: int) -> int:
    """Returns the slot of a table id, or -1 if `tables` lacks the id. Searches in the same order as `state.free_or_same`."""
    mask = tables.shape[1] - 1
    slot: int = table_id & mask
    for _ in range(tables.shape[1]):
        if tables[TABLE_ID, slot] == table_id:
            return slot
        if tables[TABLE_ID, slot] < 0:
            return -1
        slot = (slot + 1) & mask
    return -1


@kernel
def _take_table_map(buffer: Bytes, state: Int64s, tables: Int64s, pool: Bytes, body_end: int) -> ScanStatus:
    """Handles a table map that repeats the last one with the same table id. Otherwise, or in an XA transaction, lets Python handle it."""
    body = state[EVENT] + HEADER_BYTES
    if body + 8 > body_end:
        return ScanStatus.BAD_BODY
    if state[OPEN] == 0:
        return ScanStatus.OUTSIDE_TRANSACTION
    slot = _find(tables, little_endian(buffer, body, 6))
    if state[IN_XA] == 1 or slot < 0 or tables[POOL_LENGTH, slot] != body_end - body:
        return ScanStatus.HAND_OVER
    if not _same(buffer, body, pool, tables[POOL_BEGIN, slot], body_end - body):
        return ScanStatus.HAND_OVER
    tables[MAPPED_IN, slot] = state[GENERATION]
    return ScanStatus.GO_ON


@nb.njit(inline="always")
def _same(left: Bytes, left_at: int, right: Bytes, right_at: int, count: int) -> bool:
    for index in range(count):  # noqa: SIM110  numba compiles no generator
        if left[left_at + index] != right[right_at + index]:
            return False
    return True


@kernel
def _take_query(buffer: Bytes, state: Int64s, ends: Int64s, body_end: int) -> ScanStatus:
    """Handles a QUERY event whose text is BEGIN or COMMIT. Returns HAND_OVER for other texts, and for COMMIT in an XA transaction."""
    body = state[EVENT] + HEADER_BYTES
    if body + QUERY_POST_HEADER > body_end:
        return ScanStatus.BAD_BODY
    text = body + QUERY_POST_HEADER + little_endian(buffer, body + 11, 2) + np.int64(buffer[body + 8]) + 1
    if text > body_end:
        return ScanStatus.BAD_BODY
    if body_end - text == len(BEGIN) and _same(buffer, text, BEGIN, 0, len(BEGIN)):
        if is_unfinished(state):
            return ScanStatus.UNFINISHED
        state[OPEN] = 1
        if state[TRANSACTION_OFFSET] == 0:
            state[TRANSACTION_OFFSET] = state[FILE_END]
        state[OPEN_ROWS] = state[IN_XA] = 0
        state[GENERATION] += 1
        state[BEGIN_AT], state[BEGIN_LENGTH] = state[BEGAN], event_length(state)
        state[BEGIN_SECONDS], state[BEGIN_THREAD] = (
            little_endian(buffer, state[EVENT], 4),
            little_endian(buffer, body, 4),
        )
        return ScanStatus.GO_ON
    if state[IN_XA] == 0 and body_end - text == len(COMMIT) and _same(buffer, text, COMMIT, 0, len(COMMIT)):
        _end_transaction(buffer, state, ends)
        return ScanStatus.GO_ON
    return ScanStatus.HAND_OVER


@nb.njit(inline="always")
def event_length(state: Int64s) -> int:
    """Returns the length of the current event in the file. An event in a compressed event has the length of the compressed event."""
    length: int = state[EVENT_LENGTH] if state[INNER_END] == 0 else state[INNER_END] - state[INNER_BEGIN]
    return length


@kernel
def _end_transaction(buffer: Bytes, state: Int64s, ends: Int64s) -> None:
    count = state[END_COUNT]
    ends[END_EVENTS, count] = state[EVENT_COUNT]
    ends[END_POSITION, count] = state[FILE_END]
    ends[END_TIME, count] = state[TIME_US] if state[TIME_US] > 0 else _header_time_us(buffer, state[EVENT])
    ends[END_SOURCE, count] = state[SOURCE]
    ends[END_NUMBER, count] = state[NUMBER]
    end_frame(buffer, state, ends, count)
    state[END_COUNT] = count + 1
    state[OPEN] = 0
    state[OPEN_ROWS] = 0
    state[GENERATION] += 1
    state[TIME_US] = 0
    state[SOURCE] = -1
    state[NUMBER] = 0
    state[TRANSACTION_OFFSET] = 0
    state[QUERY_AT] = NO_QUERY


@kernel
def end_frame(buffer: Bytes, state: Int64s, ends: Int64s, count: int) -> None:
    """Writes the frame (`contracts.FRAME`: first event, last event, logical clock) of the transaction that the current event ends."""
    event = state[EVENT]
    is_xid = buffer[event + 4] == XID and event + HEADER_BYTES + 8 <= buffer.shape[0]
    ends[END_FRAME, count] = state[BEGIN_AT]
    ends[END_FRAME + 1, count] = state[BEGIN_LENGTH]
    ends[END_FRAME + 2, count] = state[BEGIN_SECONDS]
    ends[END_FRAME + 3, count] = state[BEGIN_THREAD]
    ends[END_FRAME + 4, count] = state[BEGAN]
    ends[END_FRAME + 5, count] = event_length(state)
    ends[END_FRAME + 6, count] = little_endian(buffer, event, 4)
    ends[END_FRAME + 7, count] = little_endian(buffer, event + HEADER_BYTES, 8) if is_xid else -1
    ends[END_FRAME + 8, count] = little_endian(buffer, event + 5, 4)
    ends[END_FRAME + 9, count], ends[END_FRAME + 10, count] = state[COMMITTED], state[SEQUENCE]
    state[BEGIN_AT] = state[COMMITTED] = state[SEQUENCE] = -1
