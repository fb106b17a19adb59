"""Reads the rows of a table without a key at an exactly known position of the stream. Without a key, nothing shows whether the rows contain
a change.

MariaDB reports its binlog position at the beginning of a consistent read. MySQL does not: LOCK TABLES … READ keeps writers out of the
table for the moment in which the read begins. The read itself holds no lock, except for a table whose engine has no transactions.

Before MySQL 8.0 the lock of a table does not keep out foreign keys, which change a child inside InnoDB. There the tables above the child
are locked with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceConnectionError
from sluice.cdc_engine.snapshot.reader import RowReader
from sluice.cdc_engine.snapshot.record import SourceEnd
from sluice.cdc_engine.snapshot.statements import quoted

CONSISTENT_READ = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
LOCK_SECONDS_MAX = 10  # How long the lock waits for active writers; other writers wait behind it.
TRANSACTIONAL = {"INNODB", "ROCKSDB"}
LOCKS_WITH_PARENTS = 8  # MySQL's first version whose table lock also blocks changes by foreign keys.


@contextlib.contextmanager
def rows_at_a_position(connect: Callable[[], RowReader], table: TableVersion) -> Iterator[tuple[RowReader, SourceEnd]]:
    """Yields a connection that sees the table as it was at a binlog position, and that position. Raises SluiceError."""
    with contextlib.closing(connect()) as reader:
        if reader.mariadb and _is_transactional(reader, table):
            reader.texts(CONSISTENT_READ)
            yield reader, position_of_read(reader)
            return
        with contextlib.closing(connect()) as locking:
            end = _locked(locking, table)
            if _is_transactional(reader, table):
                reader.texts(CONSISTENT_READ)
                unlock(locking)
            yield reader, end


def binlog_end(reader: RowReader) -> tuple[str, int]:
    """Returns file and offset of the current end of the binlog. Raises SluiceError."""
    refused: SluiceError | None = None
    for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS"):
        try:
            rows = reader.texts(statement)
        except SluiceError as error:  # The server is of another version and does not know the statement.
            refused = refused or error
            continue
        if rows:
            return str(rows[0][0]), int(rows[0][1] or 0)
    raise refused or SourceConnectionError(f"{reader.source.address} has no binlog: set log_bin there")


def require_lock(reader: RowReader, table: TableVersion) -> None:
    """Locks the table for a moment if `rows_at_a_position` needs the lock. Raises ConfigurationError with the GRANT that the account
    lacks.
    """
    if reader.mariadb and _is_transactional(reader, table):
        return
    _lock(reader, table, 1)
    unlock(reader)


def lock(reader: RowReader, table: TableVersion, seconds_max: int) -> None:
    """Keeps writers and foreign keys from changing the table, after all transactions that changed it have committed. `seconds_max`: the
    longest wait; new writers wait behind it. Raises SourceConnectionError after that, ConfigurationError if the account may not lock
    tables.
    """
    reader.texts(f"SET lock_wait_timeout = {seconds_max}")
    locked = ((table.database, table.table), *_tables_above(reader, (table.database, table.table)))
    names = ", ".join(f"{quoted(database)}.{quoted(name)} READ" for database, name in locked)
    reader.texts(f"LOCK TABLES {names}")


def unlock(reader: RowReader) -> None:
    """Releases the lock of `lock`."""
    reader.texts("UNLOCK TABLES")


def _tables_above(reader: RowReader, table: tuple[str, str]) -> list[tuple[str, str]]:
    """Returns the (database, name) of all tables from which foreign keys pass changes on to this one, if the server does not lock them with
    it.
    """
    ((version,),) = reader.texts("SELECT VERSION()")
    if reader.mariadb or int((version or "0").split(".")[0]) >= LOCKS_WITH_PARENTS:
        return []
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
    """Locks the table for reading. Nothing else gives an exact position on MySQL: a commit is in the binlog before it is visible, and two
    equal ends prove nothing.
    """
    try:
        lock(reader, table, seconds_max)
    except ConfigurationError as error:
        user = reader.source.user
        raise ConfigurationError(
            f"{user}@{reader.source.address} may not lock {table.database}.{table.table}, which has no key, so its rows cannot be read "
            f"at an exact position. GRANT LOCK TABLES ON {quoted(table.database)}.* TO '{user}'@'%' (or its host), then "
            "`sluice snapshot resume`; or declare a key for the table in conf/. On MySQL 5.7 the account also needs SELECT and LOCK "
            f"TABLES for the tables that its foreign keys refer to. The server reports: {error}"
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
        raise SourceConnectionError(f"{reader.source.address} reports no position of its binlog: set log_bin there")
    return SourceEnd(file=file, offset=int(offset))


def _is_transactional(reader: RowReader, table: TableVersion) -> bool:
    database, name = _literal(table.database), _literal(table.table)
    rows = reader.texts(
        f"SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {database} AND TABLE_NAME = {name}"
    )
    return bool(rows) and str(rows[0][0]).upper() in TRANSACTIONAL


def _literal(text: str) -> str:
    return f"CONVERT(x'{text.encode().hex()}' USING utf8mb4)"
