"""Reads the rows of a table without a key at an exactly known position of the stream. Without a key, a buffered change cannot be matched
with its row, so Sluice must know whether the rows already contain the change.

MariaDB reports its binlog position at the beginning of a consistent read. MySQL does not, so Sluice blocks writers of the table with LOCK
TABLES … READ until the read has begun. If the table's storage engine has no transactions, Sluice keeps the lock until the read ends.

If the account may not lock tables, Sluice reads the table without a lock, which needs MySQL with GTIDs. It uses two positions of the
binlog. Everything up to the first position is committed before the read begins, as `gtid_executed` shows. The second position is the end of
the binlog directly after the read began. If a transaction between the two positions may have changed the table, Sluice begins the read
again.

Before MySQL 8.0, the lock of a child table does not block changes that InnoDB makes in the child table for foreign keys. On such a server,
Sluice locks the parent tables too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceConnectionError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.reader import RowReader
from sluice.cdc_engine.snapshot.record import SourceEnd
from sluice.cdc_engine.snapshot.statements import quoted
from sluice.cdc_engine.source.reader import one_line

CONSISTENT_READ = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
# A LOCK TABLES fails if active writers do not end within this many seconds. The time is short, because new writers wait behind LOCK TABLES.
LOCK_SECONDS_MAX = 10
TRANSACTIONAL = {"INNODB", "ROCKSDB"}
LOCKS_WITH_PARENTS = 8  # The first version of MySQL whose table lock also blocks changes by foreign keys.
UNLOCKED_TRIES = 100  # After this many attempts to read a table without a lock, the reading fails.
POLL_SECONDS = 0.1
pause = time.sleep  # The function that waits between two attempts. Tests replace it.

# The type of `positions.logged_after`, which reads the binlog from a position to its end. The function returns this end, and whether one of
# the given tables may have changed. The arguments are: the position; the tables (database, name); the end (file, offset) of the part that
# is searched for changes, or None to search nothing; and a GTID set whose transactions are ignored in the search.
Logged = Callable[[Position, Collection[tuple[str, str]], tuple[str, int] | None, str], tuple[Position, bool]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unlocked:
    """The values that a read without a lock needs. `begin` is a position in the server's binlog before the read, with the executed set.
    `logged` reads the binlog from a position to its end, first from `begin`, and finds changes of the table in it.
    """

    begin: Position
    logged: Logged


@contextlib.contextmanager
def rows_at_a_position(
    connect: Callable[[], RowReader], table: TableVersion, unlocked: Unlocked | None = None
) -> Iterator[tuple[RowReader, SourceEnd]]:
    """Yields a connection and a binlog position: reads over the connection show the table as it was at this position. If the account may
    not lock the table, finds such a position without a lock, with the help of `unlocked`. Raises SluiceError.
    """
    with contextlib.closing(connect()) as reader:
        if reader.mariadb and _is_transactional(reader, table):
            reader.texts(CONSISTENT_READ)
            yield reader, position_of_read(reader)
            return
        with contextlib.closing(connect()) as locking:
            try:
                end = _locked(locking, table)
            except ConfigurationError as refused:
                if unlocked is None or not reads_unlocked(locking, table):
                    raise
                with _between_positions(connect, table, unlocked, refused) as found:
                    yield found
                return
            if _is_transactional(reader, table):
                reader.texts(CONSISTENT_READ)
                unlock(locking)
            yield reader, end


@contextlib.contextmanager
def _between_positions(
    connect: Callable[[], RowReader], table: TableVersion, unlocked: Unlocked, refused: ConfigurationError
) -> Iterator[tuple[RowReader, SourceEnd]]:
    """Yields a connection and a binlog position, without a lock: reads over the connection show the table as it was at this position. If
    the table is changed during every attempt, raises ConfigurationError with the text of `refused`, which names the missing GRANT.
    """
    with contextlib.closing(connect()) as reader:
        tables = {(table.database, table.table), *_parents(reader, (table.database, table.table))}
        end, _ = unlocked.logged(unlocked.begin, tables, None, "")
        for _ in range(UNLOCKED_TRIES):
            executed = _wait_until_committed(reader, end)
            reader.texts(CONSISTENT_READ)
            after = binlog_end(reader)
            end, changed = unlocked.logged(end, tables, after, executed)
            if not changed:
                yield reader, SourceEnd(file=after[0], offset=after[1])
                return
            reader.texts("ROLLBACK")
            pause(POLL_SECONDS)
    raise ConfigurationError(
        f"{table.database}.{table.table} was changed during each of {UNLOCKED_TRIES} attempts to read it without a lock: {refused}"
    ) from refused


def _wait_until_committed(reader: RowReader, end: Position) -> str:
    """Waits until reads of the server show every transaction that is in the server's binlog before the position `end`. Returns the GTID set
    of the transactions that reads show. Raises SourceConnectionError after LOCK_SECONDS_MAX.
    """
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        ((answer,),) = reader.texts("SELECT @@GLOBAL.gtid_executed")
        executed = one_line(answer)
        if has_executed(executed, end.gtid_set):
            return executed
        if time.monotonic() >= deadline:
            raise SourceConnectionError(
                f"{reader.source.address} has a transaction before {end} in its binlog, but has not committed the "
                f"transaction after {LOCK_SECONDS_MAX} s: the commit may wait for a semi-sync replica. Sluice tries "
                "again"
            )
        pause(POLL_SECONDS)


def reads_unlocked(reader: RowReader, table: TableVersion) -> bool:
    """Returns whether the table can be read without a lock. This needs MySQL with GTIDs, because its executed set shows which transactions
    are committed. It also needs a storage engine with transactions, because only such an engine has consistent reads.
    """
    if reader.mariadb or not _is_transactional(reader, table):
        return False
    answer = reader.texts("SHOW GLOBAL VARIABLES LIKE 'gtid_mode'")
    return bool(answer) and str(answer[0][1]).upper() == "ON"


def binlog_end(reader: RowReader) -> tuple[str, int]:
    """Returns the file and the offset of the current end of the binlog. Raises SluiceError."""
    refused: SluiceError | None = None
    for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS"):
        try:
            rows = reader.texts(statement)
        except SluiceError as error:  # Tries the next statement, because the server's version does not know this one.
            refused = refused or error
            continue
        if rows:
            return str(rows[0][0]), int(rows[0][1] or 0)
    raise refused or SourceConnectionError(f"{reader.source.address} has no binlog: set log_bin on that server")


def require_lock(reader: RowReader, table: TableVersion) -> None:
    """Checks, by locking the table for a moment, whether the account may lock the table. Does nothing on MariaDB if the table's storage
    engine has transactions, because the table is then read without a lock. Raises ConfigurationError with the GRANT that the account lacks.
    """
    if reader.mariadb and _is_transactional(reader, table):
        return
    _lock(reader, table, 1)
    unlock(reader)


def lock(reader: RowReader, table: TableVersion, seconds_max: int) -> None:
    """Locks the table, so that neither writers nor foreign keys change it. First waits, for at most `seconds_max`, until all transactions
    that changed the table have committed. New writers wait behind the lock. Raises SourceConnectionError after `seconds_max`, and
    ConfigurationError if the account may not lock tables.
    """
    reader.texts(f"SET lock_wait_timeout = {seconds_max}")
    locked = ((table.database, table.table), *_tables_above(reader, (table.database, table.table)))
    names = ", ".join(f"{quoted(database)}.{quoted(name)} READ" for database, name in locked)
    reader.texts(f"LOCK TABLES {names}")


def unlock(reader: RowReader) -> None:
    """Releases the lock that `lock` acquired over this connection."""
    reader.texts("UNLOCK TABLES")


def _tables_above(reader: RowReader, table: tuple[str, str]) -> list[tuple[str, str]]:
    """Returns the parent tables that must be locked together with the child `table`, so that foreign keys do not change its rows. Empty if
    the server's lock of the child table also blocks such changes.
    """
    ((version,),) = reader.texts("SELECT VERSION()")
    if reader.mariadb or int((version or "0").split(".")[0]) >= LOCKS_WITH_PARENTS:
        return []
    return _parents(reader, table)


def _parents(reader: RowReader, table: tuple[str, str]) -> list[tuple[str, str]]:
    """Returns, as (database, name), all tables from which foreign keys pass changes on to this table, directly or through other tables."""
    found = [table]
    for database, name in found:
        rows = reader.texts(
            "SELECT DISTINCT UNIQUE_CONSTRAINT_SCHEMA, REFERENCED_TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS "
            f"WHERE CONSTRAINT_SCHEMA = {_literal(database)} AND TABLE_NAME = {_literal(name)} "
            "AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))"
        )
        found += [each for each in ((str(row[0]), str(row[1])) for row in rows) if each not in found]
    return found[1:]


def _lock(reader: RowReader, table: TableVersion, seconds_max: int) -> None:
    """Locks the table, or raises ConfigurationError with the GRANT that the account lacks. A comparison of the binlog's end before
    and after the read could not replace the lock, because a transaction is in the binlog before reads show its changes.
    """
    try:
        lock(reader, table, seconds_max)
    except ConfigurationError as error:
        user = reader.source.user
        raise ConfigurationError(
            f"{user}@{reader.source.address} may not lock {table.database}.{table.table}, which has no key, so its rows cannot be read "
            f"at an exact position. GRANT LOCK TABLES ON {quoted(table.database)}.* TO '{user}'@'%' (or the account's host), then "
            "`sluice snapshot resume`; or declare a key for the table in conf/. On MySQL 5.7 the account also needs SELECT and LOCK "
            f"TABLES for the tables that the table's foreign keys refer to. The server reports: {error}"
        ) from error


def _locked(locking: RowReader, table: TableVersion) -> SourceEnd:
    _lock(locking, table, LOCK_SECONDS_MAX)
    file, offset = binlog_end(locking)
    return SourceEnd(file=file, offset=offset)


def position_of_read(reader: RowReader) -> SourceEnd:
    answer = reader.texts("SHOW STATUS LIKE 'binlog_snapshot_%'")
    by_name = {str(row[0]).lower(): str(row[1] or "") for row in answer}
    file, offset = by_name.get("binlog_snapshot_file", ""), by_name.get("binlog_snapshot_position", "")
    if not file or not offset.isdigit():
        raise SourceConnectionError(
            f"{reader.source.address} reports no position of its binlog: set log_bin on that server"
        )
    return SourceEnd(file=file, offset=int(offset))


def _is_transactional(reader: RowReader, table: TableVersion) -> bool:
    database, name = _literal(table.database), _literal(table.table)
    rows = reader.texts(
        f"SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {database} AND TABLE_NAME = {name}"
    )
    return bool(rows) and str(rows[0][0]).upper() in TRANSACTIONAL


def _literal(text: str) -> str:
    return f"CONVERT(x'{text.encode().hex()}' USING utf8mb4)"
