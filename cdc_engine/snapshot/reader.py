"""Reads rows over a connection to the source: the results of short queries as text, and the rows of one SELECT at a time in the binary
protocol. `open_reader` opens the connection.

The session's time zone is UTC. Texts, bytes and invalid dates arrive as they are stored, and the server sets no time limit for a SELECT.
Each SELECT is a separate read-only transaction.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

import pymysql
from pymysql.constants import COMMAND
from pymysql.cursors import Cursor

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.result_rows.result_reader import ResultReader, ServerRefusedError
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceConnectionError, TableChangedError
from sluice.cdc_engine.source.reader import IDENTITY
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.session import SourceSession, error_code, open_session, session_error

# Offsets in the answer to a PREPARE: after a status byte, the statement's id (4 bytes) and the number of columns (2 bytes).
STATEMENT_AT, COLUMNS_AT = 1, 5
NO_CURSOR, ONCE = 0, 1
SETTINGS = (
    "SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES', net_write_timeout = 7200, wait_timeout = 2147483",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
)
# Whether the server is MariaDB → the statement that removes the time limit of a SELECT.
NO_LIMITS = {False: "SET max_execution_time = 0", True: "SET max_statement_time = 0"}
RAW_TEXT = "SET character_set_results = NULL"
# The server's error codes if a table, column, index or database does not exist, or if a table's definition has changed.
TABLE_CHANGED = frozenset({1049, 1051, 1054, 1109, 1146, 1176, 1412})
NOT_GRANTED = frozenset({1142, 1143, 1370})
NOT_SQL = frozenset({1064, 1111, 1305, 1582})  # The server's errors if `rows` in conf/ or --where is not valid SQL.
ROW_TOO_LARGE = 1153


class RowReader:
    """One connection to the source. An error within a SELECT closes the connection. Methods raise only subclasses of SluiceError
    (`_translated`).
    """

    def __init__(self, source: Source, session: SourceSession) -> None:
        self.source, self._session = source, session
        self.closed = False

    @property
    def mariadb(self) -> bool:
        return "mariadb" in str(self._session.get_server_info()).lower()  # type: ignore[no-untyped-call]

    def server(self) -> str:
        """Returns the identity of the server that answers: its uuid, or "mariadb-<server id>" on MariaDB."""
        ((found,),) = self.texts(IDENTITY[self.mariadb])
        return f"mariadb-{found}" if self.mariadb else str(found)

    @property
    def thread_id(self) -> int:
        """The connection's id, for KILL."""
        return int(self._session.thread_id())  # type: ignore[no-untyped-call]

    def texts(self, sql: str) -> list[tuple[str | None, ...]]:
        """Returns the rows of a query as the server prints their values, which must be ASCII or UTF-8. NULL is None."""
        with self._translated(), self._session.cursor(Cursor) as cursor:
            cursor.execute(sql)
            return [tuple(_text(value) for value in row) for row in cursor.fetchall()]

    def threads_running(self) -> int:
        """Returns the source's Threads_running, which counts this query. `ReadPace` has a separate connection for this query."""
        ((_, count),) = self.texts("SHOW GLOBAL STATUS LIKE 'Threads_running'")
        return int(count or 0)

    @contextlib.contextmanager
    def selecting(self, sql: str) -> Iterator[ResultReader]:
        """Yields a reader for the rows of one SELECT. The body of the `with` statement must read all rows. An error in the body closes the
        connection.
        """
        try:
            with self._translated():
                statement = self._prepare(sql)
                self._session.command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement, NO_CURSOR, ONCE))
                # Sets the time-out for reads, because PyMySQL leaves the time-out for writes on the socket after it has sent a command.
                self._session.silent_for(limits.SNAPSHOT_SILENCE_SECONDS_MAX)
                yield ResultReader(self._session.take_socket().recv_into)
                self._session.command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection at once, even if rows of a SELECT are still arriving: the server stops when it notices that the connection
        is closed.
        """
        self.closed = True
        with contextlib.suppress(Exception):
            self._session.drop()

    def _prepare(self, sql: str) -> int:
        self._session.command(COMMAND.COM_STMT_PREPARE, sql.encode())
        answer = self._session.answer()
        (statement,) = struct.unpack_from("<I", answer, STATEMENT_AT)
        (columns,) = struct.unpack_from("<H", answer, COLUMNS_AT)
        # Skips the packets that describe the columns, because the server sends them again when it executes the statement.
        for _ in range(columns + 1 if columns else 0):
            self._session.answer()
        return int(statement)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates errors of the connection in the body of the `with` statement to Sluice's errors. Raises TableChangedError if the
        server's table differs from the schema. Raises ConfigurationError if a grant is missing, or if a setting of the server or the
        condition for the rows (`rows` in conf/, or --where) must be corrected. Otherwise raises SourceConnectionError.
        """
        try:
            yield
        except ServerRefusedError as error:
            raise _error(self.source, error.code, error.text) from error
        except pymysql.err.MySQLError as error:
            text = str(error.args[-1] if error.args else error)
            raise _error(self.source, error_code(error), text) from error
        except OSError as error:
            raise SourceConnectionError(f"the connection to {self.source.address} failed: {error}") from error


def open_reader(source: Source) -> RowReader:
    """Opens a connection to the source, with the session settings that a snapshot needs. Raises SourceConnectionError,
    ConfigurationError.
    """
    try:
        reader = RowReader(source, open_session(source, limits.SNAPSHOT_SILENCE_SECONDS_MAX))
    except pymysql.err.MySQLError as error:
        raise _error(source, error_code(error), str(error.args[-1] if error.args else error)) from error
    except OSError as error:
        raise SourceConnectionError(f"the connection to {source.address} failed: {error}") from error
    try:
        for setting in (*SETTINGS, NO_LIMITS[reader.mariadb], RAW_TEXT):
            reader.texts(setting)
        return reader
    except BaseException:
        reader.close()
        raise


def _text(value: object) -> str | None:
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def _error(source: Source, code: int, text: str) -> SluiceError:
    if code in TABLE_CHANGED:
        return TableChangedError(
            f"{source.address} no longer has the table or a column that Sluice must read: {text} (error {code})"
        )
    if code in NOT_GRANTED:
        return ConfigurationError(
            f"{source.address} refused the user {source.user}: {text} (error {code}); grant SELECT"
        )
    if code in NOT_SQL:
        return ConfigurationError(
            f"{source.address} cannot evaluate the condition of the rows (`rows` in conf/, or --where): "
            f"{text} (error {code}); correct the condition"
        )
    if code == ROW_TOO_LARGE:
        where = f"{source.address} cannot send a row: {text} (error {code})"
        return ConfigurationError(f"{where}; set max_allowed_packet of the server above the size of the largest row")
    return session_error(source, code, text)
