"""Reads a table's schema from the server, and decides whether the table already had this schema at a position near the end of the binlog.

The table had this schema if the binlog has no statement about the table after the position. The server lists the events after the position
(SHOW BINLOG EVENTS). If there are too many events, or if the position is not in the last binlog file, the result is unknown.
"""

from __future__ import annotations

import re
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from sluice.cdc_engine.table_meta.ddl.reader import read_statement
from sluice.cdc_engine.table_meta.ddl.statement import Nothing
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot, read_snapshot
from sluice.cdc_engine.table_meta.schema import TableSchema

# If more events than this follow the position, `schema_now` returns None, because SHOW BINLOG EVENTS takes too long for more events.
EVENTS_BEHIND_MAX = 5000
_DEFAULT_DATABASE = re.compile(r"use `(?:[^`]|``)*`; ")


def schema_now(session: Connection[Any], database: str, table: str, position: str) -> TableSchema | None:
    """Returns the schema that a table had after the statement whose event ends at `position` (a Position as text), or None if that is
    unknown. Raises pymysql.MySQLError if a query fails.
    """
    position_file, _, rest = position.rpartition(":")
    offset = int(rest.partition("@")[0])
    with session.cursor(Cursor) as cursor:
        before = _of_table(session, database, table)
        file, end = _end(cursor)
        after = _of_table(session, database, table)
        if before != after or len(after.tables) != 1 or file != position_file or end < offset:
            return None
        if end > offset and not _untouched(cursor, file, offset, table, after.server.flavour):
            return None
    return after.tables[0]


def is_no_table(session: Connection[Any], database: str, table: str) -> bool:
    """Returns whether the server currently has a view or a sequence with the name `database`.`table`. Raises pymysql.MySQLError if the
    query fails.
    """
    with session.cursor(Cursor) as cursor:
        cursor.execute(
            "SELECT 1 FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s AND table_type IN ('VIEW', 'SEQUENCE')",
            (database, table),
        )
        return bool(cursor.fetchall())


def _of_table(session: Connection[Any], database: str, table: str) -> SchemaSnapshot:
    return read_snapshot(session, lambda *name: name == (database, table))


def _end(cursor: Cursor) -> tuple[str, int]:
    try:
        cursor.execute("SHOW BINARY LOG STATUS")
    except pymysql.MySQLError:
        cursor.execute("SHOW MASTER STATUS")
    file, offset, *_ = cursor.fetchall()[0]
    return str(file), int(offset)


def _untouched(cursor: Cursor, file: str, offset: int, table: str, flavour: str) -> bool:
    """Returns whether the table is certainly unchanged since the position of `file` and `offset`. A later statement may change the table if
    its text contains the table's name, unless the parsed statement changes no table. Returns False if more than EVENTS_BEHIND_MAX events
    follow, because not all of them are read.
    """
    cursor.execute("SHOW BINLOG EVENTS IN %s FROM %s LIMIT %s", (file, offset, EVENTS_BEHIND_MAX + 1))
    events = cursor.fetchall()
    texts = [_DEFAULT_DATABASE.sub("", str(event[5]), count=1) for event in events if "query" in str(event[2]).lower()]
    named = re.compile(rf"(?<![\w$]){re.escape(table)}(?![\w$])", re.IGNORECASE)
    concerned = (named.search(text) and not isinstance(read_statement(text, flavour), Nothing) for text in texts)
    return len(events) <= EVENTS_BEHIND_MAX and not any(concerned)
