"""Checks whether reads of a server show every transaction that is in the server's binlog, for servers without MySQL's GTIDs.

A transaction is in the binlog, and is sent to replicas, before the storage engine commits it. Until the commit, reads do not show the
transaction. With semi-sync AFTER_SYNC, the commit waits until a replica acknowledges the transaction.
"""

from __future__ import annotations

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError, SourceConnectionError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.snapshot.exact_position import CONSISTENT_READ, lock, position_of_read, unlock
from sluice.cdc_engine.snapshot.reader import RowReader

# LOCK TABLES fails if active writers do not end within this many seconds. No server accepts a smaller value. New writers wait while LOCK
# TABLES waits, so the value must be small.
LOCK_TRY_SECONDS = 1
LOCK_WAIT_TIMEOUT = "(error 1205)"


def view_contains(reader: RowReader, position: Position) -> bool:
    """Begins a consistent read of MariaDB, and returns whether the read shows every commit up to a position. After the call, the connection
    is still in this read.

    If the read's position in the binlog is before `position`, compares the GTIDs instead, because events without a commit can move
    `position` beyond the server's last commit.
    """
    reader.texts(CONSISTENT_READ)
    seen = position_of_read(reader)
    if position.file and (file_number(seen.file), seen.offset) >= (file_number(position.file), position.offset):
        return True
    if not position.gtid_set:
        return False
    file = f"CONVERT(x'{seen.file.encode().hex()}' USING utf8mb4)"
    ((answer,),) = reader.texts(f"SELECT BINLOG_GTID_POS({file}, {seen.offset})")
    return has_executed(answer or "", position.gtid_set)


def waits_for_replicas(reader: RowReader) -> bool:
    """Returns True if a commit on the server waits for the acknowledgement of a semi-sync replica now."""
    answer = reader.texts("SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%\\_wait\\_sessions'")
    return any(int(row[1] or 0) for row in answer)


def writers_have_committed(reader: RowReader, table: TableVersion) -> bool:
    """Returns True if all transactions that wrote to the table before this call are committed. Returns False if one of them does not commit
    within LOCK_TRY_SECONDS, or if the account may not lock tables.

    To find out, locks the table and releases the lock at once. The lock waits for active writers, because a writer keeps its own lock of
    the table until its commit is complete.
    """
    try:
        lock(reader, table, LOCK_TRY_SECONDS)
    except ConfigurationError:
        return False
    except SourceConnectionError as error:
        if LOCK_WAIT_TIMEOUT in str(error):
            return False
        raise
    unlock(reader)
    return True
