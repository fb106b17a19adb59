"""Numbers of Canal's protocol (EntryProtocol.proto): entry types, event types, java.sql.Types, and keys of protobuf fields."""

from __future__ import annotations

import enum
from typing import Final


class EntryType(enum.IntEnum):
    TRANSACTIONBEGIN = 1
    ROWDATA = 2
    TRANSACTIONEND = 3


class EventType(enum.IntEnum):
    INSERT = 1
    UPDATE = 2
    DELETE = 3
    CREATE = 4
    ALTER = 5
    ERASE = 6
    QUERY = 7
    TRUNCATE = 8
    RENAME = 9
    CINDEX = 10
    DINDEX = 11


class SqlType(enum.IntEnum):
    """The values of java.sql.Types that entries use."""

    BIT = -7
    TINYINT = -6
    BIGINT = -5
    CHAR = 1
    DECIMAL = 3
    INTEGER = 4
    SMALLINT = 5
    REAL = 7
    DOUBLE = 8
    VARCHAR = 12
    DATE = 91
    TIME = 92
    TIMESTAMP = 93
    OTHER = 1111
    BLOB = 2004
    CLOB = 2005


SOURCE_MYSQL: Final = 2
BYTES = 2


def tag(field: int, wire: int) -> int:
    """Returns the key of a protobuf field. `wire`: its wire type. The key is one byte for field numbers up to 15."""
    return field << 3 | wire
