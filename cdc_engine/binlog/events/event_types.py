"""Numbers of binlog event types, and the layout of the 19-byte event header, as MySQL and MariaDB document them.

https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html,
https://mariadb.com/kb/en/2-binlog-event-header/.
"""

from __future__ import annotations

# Header: timestamp 4, type 1, server id 4, event length 4, end position 4 (low 32 bits), flags 2; little-endian.
HEADER_BYTES = 19
TYPE_AT, SERVER_ID_AT, LENGTH_AT, END_AT, FLAGS_AT = 4, 5, 9, 13, 17
CHECKSUM_BYTES = 4
# Set if a statement depends on its session, because the statement uses a temporary table, CONNECTION_ID() or GET_LOCK.
FLAG_THREAD_SPECIFIC = 0x04
# Set in a format description while the server still writes the file. The event's checksum does not include this flag.
FLAG_IN_USE = 0x01
FLAG_ARTIFICIAL = 0x20  # The server's dump thread created the event; the binlog file does not contain it.
FLAG_IGNORABLE = 0x80  # A replica that does not know the type may ignore the event.

QUERY = 2
STOP = 3
ROTATE = 4
INTVAR = 5
APPEND_BLOCK = 9
DELETE_FILE = 11
RAND = 13
USER_VAR = 14
FORMAT_DESCRIPTION = 15
XID = 16
BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY = 17, 18
TABLE_MAP = 19
WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1 = 23, 24, 25
INCIDENT = 26
HEARTBEAT = 27
IGNORABLE = 28
ROWS_QUERY = 29
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 30, 31, 32
GTID = 33
ANONYMOUS_GTID = 34
PREVIOUS_GTIDS = 35
TRANSACTION_CONTEXT = 36
VIEW_CHANGE = 37
XA_PREPARE = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD = 40
HEARTBEAT_V2 = 41
GTID_TAGGED = 42
MARIADB_ANNOTATE_ROWS = 160
MARIADB_BINLOG_CHECKPOINT = 161
MARIADB_GTID = 162
MARIADB_GTID_LIST = 163
MARIADB_START_ENCRYPTION = 164
MARIADB_QUERY_COMPRESSED = 165
MARIADB_ROWS_COMPRESSED_V1 = (166, 167, 168)  # write, update, delete
MARIADB_ROWS_COMPRESSED = (169, 170, 171)

NAMES = {
    0: "UNKNOWN",
    1: "START_V3",
    2: "QUERY",
    3: "STOP",
    4: "ROTATE",
    5: "INTVAR",
    6: "LOAD",
    8: "CREATE_FILE",
    9: "APPEND_BLOCK",
    10: "EXEC_LOAD",
    11: "DELETE_FILE",
    12: "NEW_LOAD",
    13: "RAND",
    14: "USER_VAR",
    15: "FORMAT_DESCRIPTION",
    16: "XID",
    17: "BEGIN_LOAD_QUERY",
    18: "EXECUTE_LOAD_QUERY",
    19: "TABLE_MAP",
    20: "PRE_GA_WRITE_ROWS",
    21: "PRE_GA_UPDATE_ROWS",
    22: "PRE_GA_DELETE_ROWS",
    23: "WRITE_ROWS_V1",
    24: "UPDATE_ROWS_V1",
    25: "DELETE_ROWS_V1",
    26: "INCIDENT",
    27: "HEARTBEAT",
    28: "IGNORABLE",
    29: "ROWS_QUERY",
    30: "WRITE_ROWS",
    31: "UPDATE_ROWS",
    32: "DELETE_ROWS",
    33: "GTID",
    34: "ANONYMOUS_GTID",
    35: "PREVIOUS_GTIDS",
    36: "TRANSACTION_CONTEXT",
    37: "VIEW_CHANGE",
    38: "XA_PREPARE",
    39: "PARTIAL_UPDATE_ROWS",
    40: "TRANSACTION_PAYLOAD",
    41: "HEARTBEAT_V2",
    42: "GTID_TAGGED",
    160: "ANNOTATE_ROWS",
    161: "BINLOG_CHECKPOINT",
    162: "MARIADB_GTID",
    163: "GTID_LIST",
    164: "START_ENCRYPTION",
    165: "QUERY_COMPRESSED",
    166: "WRITE_ROWS_COMPRESSED_V1",
    167: "UPDATE_ROWS_COMPRESSED_V1",
    168: "DELETE_ROWS_COMPRESSED_V1",
    169: "WRITE_ROWS_COMPRESSED",
    170: "UPDATE_ROWS_COMPRESSED",
    171: "DELETE_ROWS_COMPRESSED",
}


def event_name(event_type: int) -> str:
    """Returns the name of an event type for messages: `TABLE_MAP (19)`, or `type 77` if the type is unknown."""
    name = NAMES.get(event_type)
    return f"{name} ({event_type})" if name else f"type {event_type}"
