"""Defines the arrays that the scan kernel and `scanner.Scanner` share, and names for the indices in these arrays.

The array `state` (int64) has one number per name below. The kernel writes row events to `events`, ends of transactions to `ends`, and rows
queries (SQL texts of statements) to `queries`. These three arrays (int64) have one row per name and one column per entry. `tables` and
`pool` have the table maps that the kernel knows. `sources` (int64) has one GTID source per column. The comment about SOURCE_NEW describes
the rows of such a column.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

import numpy as np

from sluice.cdc_engine.contracts import FRAME_FIELDS, Bytes, Int64s

# Indices in `state`. An offset is an offset in the buffer, unless the comment says otherwise.
AT: Final = 0  # next byte to scan
LIMIT: Final = 1  # end of the received bytes
EVENT: Final = 2  # header of the current event
EVENT_LENGTH: Final = 3  # length of the current event, with checksum
# offset in the file (64 bits) after the last scanned event; does not change with events that are not in the file, such as a format
# description that the server repeats at the beginning of a dump
FILE_END: Final = 4
CONTIGUOUS: Final = 5  # 1: the server sends every event of the file, so a gap is an error
CHECKSUM: Final = 6  # bytes of an event's checksum: 0 or 4
OVERHEAD: Final = 7  # 5: packets with header and status byte; 0: events without packets
OPEN: Final = 8  # 1: inside a transaction
OPEN_ROWS: Final = 9  # row events since the transaction began
# A number that rises with every transaction, because a table map is valid only in its own transaction.
GENERATION: Final = 10
TIME_US: Final = 11  # commit time in the transaction's GTID event; 0: none
SOURCE: Final = 12  # index of the transaction's GTID source; -1: no GTID
NUMBER: Final = 13  # number in the transaction's GTID
EVENT_COUNT: Final = 14  # entries in `events`
END_COUNT: Final = 15  # entries in `ends`
SOURCE_COUNT: Final = 16  # entries in `sources`
ALL_EVENTS: Final = 17  # counter: events of any kind
HEARTBEATS: Final = 18  # counter: heartbeat events
IGNORED: Final = 19  # counter: events without relevant content (STOP, ROWS_QUERY, …)
DROPPED: Final = 20  # counter: row events of tables that are not captured
CHECKSUMS: Final = 21  # counter: events whose CRC32 was verified
BEGAN: Final = 22  # file offset of the current event
INNER_END: Final = 23  # file offset of the end of the compressed event that is being scanned; 0: none
INNER_BEGIN: Final = 24  # file offset of the beginning of the compressed event that is being scanned
INNER_SIZE: Final = 25  # decompressed bytes of the compressed event
INNER_DONE: Final = 26  # number of the decompressed bytes that have been scanned
ELSEWHERE: Final = 27  # 1: the entries of `events` have offsets in another buffer than the buffer of the received bytes
IN_XA: Final = 28  # 1: in an XA transaction, whose table maps and row events Python handles
# file offset that identifies the current transaction: the end of its first event; 0: no transaction
TRANSACTION_OFFSET: Final = 29
# the current GTID source in six numbers (SOURCE_ROWS): MySQL's uuid as two integers, or MariaDB's domain and server id; then the bytes of
# the tag, padded with 0
SOURCE_NEW: Final = 30
SOURCE_ROWS: Final = 6
TAG_BYTES_MAX: Final = 8 * (SOURCE_ROWS - 2)
# BEGIN event of the current transaction: file offset (-1: none), length, seconds since 1970, thread id
BEGIN_AT: Final = 36
BEGIN_LENGTH: Final = 37
BEGIN_SECONDS: Final = 38
BEGIN_THREAD: Final = 39
# logical clock (last committed, sequence number) in the current transaction's GTID event; -1: none
COMMITTED: Final = 40
SEQUENCE: Final = 41
# Rows queries: events with the SQL text of a statement, before its table maps.
QUERIES: Final = 42  # 1: rows queries are recorded
QUERY_COUNT: Final = 43  # entries in `queries`
# offset of the rows query whose row events have not arrived yet; -1 (NO_QUERY): none; -2 (CARRIED): the rows query was in the previous
# buffer, and BlockMaker has a copy
QUERY_AT: Final = 44
QUERY_LENGTH: Final = 45  # length of the rows query at QUERY_AT, without the checksum
QUERY_POSITION: Final = 46  # file offset of the rows query at QUERY_AT
STATE_SIZE: Final = 47
NO_QUERY: Final = -1
CARRIED: Final = -2

# Rows of `events`. OFFSET, LENGTH: where the row event is in the buffer, without its checksum. TABLE: index in `Block.tables`. POSITION:
# file offset of the event. TIME: commit time in µs since 1970. BEGAN_AT: TRANSACTION_OFFSET of the event's transaction.
OFFSET, LENGTH, KIND, VERSION, TABLE, POSITION, TIME, BEGAN_AT = range(8)
EVENT_ROWS: Final = 8

# Rows of `ends`. END_EVENTS: number of row events in `events` up to the end of the transaction. END_POSITION: file offset of the end.
# END_TIME: commit time in µs since 1970. END_SOURCE, END_NUMBER: the GTID's source (a column of `sources`; -1: no GTID) and number.
END_EVENTS, END_POSITION, END_TIME, END_SOURCE, END_NUMBER = range(5)
# The first of the rows that hold a transaction's frame (contracts.FRAME: first event, last event, logical clock).
END_FRAME: Final = 5
END_ROWS: Final = END_FRAME + len(FRAME_FIELDS)

# Rows of `queries`. QUERY_EVENT: index in `events` of the first row event of the statement. QUERY_OFFSET, QUERY_BYTES: where the rows query
# is in the buffer. QUERY_BEGAN: file offset of the rows query.
QUERY_EVENT, QUERY_OFFSET, QUERY_BYTES, QUERY_BEGAN = range(4)
QUERY_ROWS: Final = 4

# Rows of `tables`, an open-addressing hash table by table id, in which a column is a slot. TABLE_ID: -1 in a free slot. REFERENCE: index of
# the table in `Block.tables`, or -1 if the kernel drops its row events. POOL_BEGIN, POOL_LENGTH: where `pool` has the body of the table
# map. MAPPED_IN: GENERATION of the last transaction with this table map.
TABLE_ID, REFERENCE, POOL_BEGIN, POOL_LENGTH, MAPPED_IN = range(5)
TABLE_ROWS: Final = 5

# A block has at most this many row events, and at most this many transactions. A read buffer of 4 MiB normally has fewer. If a buffer has
# more, the scan makes several blocks of it.
ENTRIES_MAX: Final = 1 << 17
# The maximum number of GTID sources in a stream. With more sources, the scan raises an error.
SOURCES_MAX: Final = 1 << 12
SLOTS_FIRST: Final = 1 << 10
# If table maps of this many table ids are stored, only those of the open transaction stay. Without a limit, the memory would grow forever,
# because a server with a small table cache always assigns new ids.
TABLES_MAX: Final = 1 << 16
POOL_BYTES_FIRST: Final = 1 << 18
POOL_BYTES_MAX: Final = 1 << 25


class ScanStatus(enum.IntEnum):
    """Why the scan kernel returned. `Scanner` raises an error for BAD_LENGTH and all higher values, except SWITCH. In numba, the members
    are integers.
    """

    GO_ON = 0  #: The event was scanned. `scan` itself never returns this value.
    INCOMPLETE = 1  #: The received bytes end inside a packet.
    LARGE = 2  #: The packet has 0xFFFFFF bytes, so its event continues in the next packet.
    FULL = 3  #: `events` or `ends` is full.
    HAND_OVER = 4  #: Python must handle the current event.
    NOT_AN_EVENT = 5  #: The packet is an error, the end of the stream, or an empty packet.
    BAD_LENGTH = 6
    BAD_CHECKSUM = 7
    BAD_POSITION = 8  #: The event's end does not match the stream's position.
    BAD_BODY = 9  #: The event is too short for its type.
    NO_TABLE_MAP = 10  #: The transaction has no table map for the table of a row event.
    OUTSIDE_TRANSACTION = 11  #: A table map or a row event is outside any transaction.
    UNFINISHED = 12  #: A transaction begins while another one with rows is open.
    SOURCES_FULL = 13
    #: The next event is a row event, but `events` has entries with offsets in another buffer. Python must first make a block of these
    #: entries.
    SWITCH = 14
    INNER_LENGTH = 15  #: The events in a compressed event have more bytes than the compressed event states.
    INNER_GOES_ON = 16  #: In a compressed event, another event follows the end of the transaction.


@dataclasses.dataclass
class ScanMemory:
    """All arrays of a scan. Only `remember_table` enlarges `tables` and `pool`."""

    state: Int64s
    events: Int64s
    ends: Int64s
    tables: Int64s
    pool: Bytes
    sources: Int64s
    queries: Int64s
    table_count: int = 0
    pool_used: int = 0

    @classmethod
    def make(cls) -> ScanMemory:
        memory = cls(
            state=np.zeros(STATE_SIZE, np.int64),
            events=np.empty((EVENT_ROWS, ENTRIES_MAX), np.int64),
            ends=np.empty((END_ROWS, ENTRIES_MAX), np.int64),
            tables=_free_slots(SLOTS_FIRST),
            pool=np.empty(POOL_BYTES_FIRST, np.uint8),
            sources=np.zeros((SOURCE_ROWS, SOURCES_MAX), np.int64),
            queries=np.empty((QUERY_ROWS, ENTRIES_MAX), np.int64),
        )
        memory.state[[SOURCE, BEGIN_AT, COMMITTED, SEQUENCE, QUERY_AT]] = -1
        return memory

    def forget_tables(self) -> None:
        """Removes all table maps after a DDL statement, so that Python checks each table map again."""
        self.tables = _free_slots(SLOTS_FIRST)
        self.table_count = self.pool_used = 0

    def remember_table(self, body: Bytes, reference: int) -> None:
        """Stores a table map that is in the open transaction. `body` is the body of the table map event, which begins with the table id.
        `reference` is the index of the table in `Block.tables`, or -1 if the kernel is to drop the row events of the table.
        """
        if self.table_count >= TABLES_MAX or self.pool_used + len(body) > POOL_BYTES_MAX:
            self._forget_all_but_this_transaction()
        if (self.table_count + 1) * 2 > self.tables.shape[1]:
            self._grow_slots()
        self._put(body, reference)

    def _put(self, body: Bytes, reference: int) -> None:
        self._reserve(len(body))
        table_id = int.from_bytes(body[:6].tobytes(), "little")
        slot, is_new = free_or_same(self.tables, table_id)
        self.pool[self.pool_used : self.pool_used + len(body)] = body
        self.tables[:, slot] = (table_id, reference, self.pool_used, len(body), self.state[GENERATION])
        self.pool_used += len(body)
        self.table_count += is_new

    def _forget_all_but_this_transaction(self) -> None:
        kept = self.tables[:, self.tables[MAPPED_IN] == self.state[GENERATION]].T
        bodies = [self.pool[column[POOL_BEGIN] : column[POOL_BEGIN] + column[POOL_LENGTH]].copy() for column in kept]
        self.forget_tables()
        self.tables = _free_slots(max(SLOTS_FIRST, 4 << len(bodies).bit_length()))
        for column, body in zip(kept, bodies, strict=True):
            self._put(body, int(column[REFERENCE]))

    def _grow_slots(self) -> None:
        before = self.tables[:, self.tables[TABLE_ID] >= 0]
        self.tables = _free_slots(self.tables.shape[1] * 2)
        for column in before.T:
            slot, _ = free_or_same(self.tables, int(column[TABLE_ID]))
            self.tables[:, slot] = column

    def _reserve(self, byte_count: int) -> None:
        if self.pool_used + byte_count <= len(self.pool):
            return
        pool = np.empty(max(2 * len(self.pool), self.pool_used + byte_count), np.uint8)
        pool[: self.pool_used] = self.pool[: self.pool_used]
        self.pool = pool


def _free_slots(count: int) -> Int64s:
    return np.full((TABLE_ROWS, count), -1, np.int64)


def slot_of(table_id: int, slot_count: int) -> int:
    """Returns the slot at which the search for a table id begins. A server assigns ascending table ids, so the searches for different ids
    begin at different slots. `_find` in `kernel` must use the same formula.
    """
    return table_id & (slot_count - 1)


def free_or_same(tables: Int64s, table_id: int) -> tuple[int, bool]:
    """Returns (the slot that has a table id, or a free slot for the id; whether the slot is free). The search always ends, because at most
    half of the slots in `tables` are used.
    """
    slot = slot_of(table_id, tables.shape[1])
    while tables[TABLE_ID, slot] >= 0 and tables[TABLE_ID, slot] != table_id:
        slot = slot_of(slot + 1, tables.shape[1])
    return slot, bool(tables[TABLE_ID, slot] < 0)
