"""Runs queries and binlog dumps over a connection to the source. PyMySQL logs in, runs the queries and sends the command that starts a
dump.

After that command, `receive_into` copies the dump's bytes from the socket into the caller's buffer, unparsed. The commands are described at
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication.html and https://mariadb.com/kb/en/replication-protocol/.
"""

from __future__ import annotations

import contextlib
import select
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import (
    BinlogFormatError,
    PositionLostError,
    ReplicaClashError,
    SluiceError,
    SourceConnectionError,
)
from sluice.cdc_engine.gtid import GtidSet
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.session import error_code, open_session, session_error

COM_BINLOG_DUMP_GTID = 0x1E
THROUGH_GTID = 0x04  # Flag of COM_BINLOG_DUMP_GTID: the command contains a GTID set.
# Flag of a dump (BINLOG_DUMP_NON_BLOCK): the server ends the dump at the end of the binlog and does not wait for new events.
NON_BLOCKING = 0x01
# Flag of a dump (BINLOG_SEND_ANNOTATE_ROWS_EVENT): with this flag, MariaDB also sends the SQL text of statements. MySQL sends the text with
# or without this flag.
ANNOTATED = 0x02
# The highest offset that a COM_BINLOG_DUMP can request: its field for the offset has four bytes.
DUMP_OFFSET_MAX = 0xFFFFFFFF
FIRST_OFFSET = 4  # The offset of the first event of a binlog file. The file begins with four magic bytes.
GATHER_SECONDS = 0.002  # How long `receive_into` waits for more bytes after the first bytes, so that it returns fewer, larger pieces.
CLOSED = -1
GATHER_BYTES = 2 << 20  # `receive_into` returns at once when it has received this many bytes.
# Error numbers with which a server refuses SQL that its version does not support, for example an unknown table, variable or procedure.
NOT_UNDERSTOOD = frozenset({1064, 1146, 1193, 1289, 1305})
NOT_PERMITTED = frozenset({1044, 1142, 1143, 1227, 1370, 1381, 3530})
# The server's error ER_MASTER_FATAL_ERROR_READING_BINLOG. The causes: the requested binlog is purged, belongs to another server or is
# unreadable, or another replica has the engine's server id.
DUMP_REFUSED = 1236
DISPLACED_SENTENCES = ("same server_uuid/server_id", "same server_id")
POSITION_SENTENCES = (
    "could not find",
    "purged",
    "gtid",
    "impossible position",
    "position > file size",
    "not in the master",
)
SERVER_ERROR = b"\xff"  # The first byte of an error packet. The packet that ends a dump has another first byte.
ERROR_TEXT_AT = 9


class SourceConnection:
    """One connection to the source, which runs queries. After a call of one of the methods `dump_*`, the connection can only receive bytes
    (`receive_into`).

    Methods raise SourceConnectionError for errors that may disappear when the caller connects again, and ConfigurationError for wrong
    credentials or TLS settings. They raise PositionLostError if the server no longer has the requested position, and ReplicaClashError if
    another replica has the engine's server id.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        with _translated(source):
            self._connection = open_session(source)
        self.thread_id = int(self._connection.thread_id())  # type: ignore[no-untyped-call]
        self._socket: Any = None

    @property
    def server_version(self) -> str:
        return str(self._connection.get_server_info())  # type: ignore[no-untyped-call]

    @property
    def mariadb(self) -> bool:
        return "mariadb" in self.server_version.lower()

    @property
    def encrypted(self) -> bool:
        return isinstance(self._connection.take_socket(), ssl.SSLSocket)

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Returns the rows of one query, one dict per row."""
        with _translated(self.source), self._connection.cursor() as cursor:
            # With None instead of an empty tuple, PyMySQL does not treat `%` in a name as a placeholder.
            cursor.execute(sql, tuple(arguments) or None)
            rows: Any = cursor.fetchall()
            return list(rows)

    def query(self, function: Callable[[Any], Any]) -> Any:
        """Calls `function` with the PyMySQL connection, and returns the function's result. Errors of PyMySQL become errors of Sluice, as in
        all other methods.
        """
        with _translated(self.source):
            return function(self._connection)

    def first_of(self, *statements: str) -> list[dict[str, Any]]:
        """Returns the rows of the first statement that this server supports and allows this account to run. Returns no rows if the server
        refuses all statements as unknown (NOT_UNDERSTOOD) or not permitted (NOT_PERMITTED). Any other error is raised.
        """
        for sql in statements:
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute(sql)
                    rows: Any = cursor.fetchall()
                    return list(rows)
            except pymysql.err.MySQLError as error:
                if error_code(error) not in NOT_UNDERSTOOD | NOT_PERMITTED:
                    raise translated_error(self.source, error_code(error), str(error)) from error
        return []

    def prepare_dump(self) -> bool:
        """Sets the session variables that a replica sets, and registers as a replica. Returns whether the events of a dump will end with a
        checksum.
        """
        source = self.source
        settings: list[tuple[str, tuple[Any, ...]]] = [
            ("SET @master_heartbeat_period = %s", (limits.HEARTBEAT_SECONDS * 1_000_000_000,)),
            ("SET @source_heartbeat_period = %s", (limits.HEARTBEAT_SECONDS * 1_000_000_000,)),
            ("SET @master_binlog_checksum = @@global.binlog_checksum", ()),
            ("SET @source_binlog_checksum = @@global.binlog_checksum", ()),
            ("SET @slave_uuid = %s, @replica_uuid = %s", (source.replica_uuid, source.replica_uuid)),
            ("SET @mariadb_slave_capability = 4", ()),
            ("SET wait_timeout = 2147483", ()),
            ("SET net_write_timeout = 7200", ()),
        ]
        for sql, arguments in settings:
            self.rows(sql, arguments)
        checksum = self.rows("SELECT @@global.binlog_checksum AS checksum")[0]["checksum"]
        host = source.replica_host.encode()
        registration = struct.pack(f"<IB{len(host)}sBBHII", source.replica_id, len(host), host, 0, 0, 0, 0, 0)
        with _translated(source):
            self._connection.command(COMMAND.COM_REGISTER_SLAVE, registration)
            self._connection.answer()
        return str(checksum).upper() not in ("NONE", "")

    def dump_flags(self, *, to_end: bool = False, rows_queries: bool = False) -> int:
        """Returns the flags for a dump. With `to_end`, the dump ends at the current end of the binlog. With `rows_queries`, a dump of
        MariaDB includes the SQL text of statements that change rows. A dump of MySQL includes this text without a flag.
        """
        return (NON_BLOCKING if to_end else 0) | (ANNOTATED if rows_queries and self.mariadb else 0)

    def dump_from_file(self, file: str, offset: int, flags: int = 0) -> bool:
        """Requests the binlog from `offset` of `file` on, with all later files. Returns False if the server will send the whole file
        instead, because the offset is too large for the command (DUMP_OFFSET_MAX).

        The server sends new events as they are written. If `flags` contains NON_BLOCKING, the dump ends at the current end of the binlog.
        The last packet is then the server's end-of-file packet.
        """
        within = offset <= DUMP_OFFSET_MAX
        begin = offset if within else FIRST_OFFSET
        self._dump(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", begin, flags, self.source.replica_id) + file.encode())
        return within

    def dump_beginning(self, file: str) -> None:
        """Requests the binlog from the first event of a file to the current end of the binlog. Other dumps of this replica continue,
        because this dump has no server id.
        """
        self.prepare_independent_dump()
        self.dump_independently(file, FIRST_OFFSET)

    def prepare_independent_dump(self) -> bool:
        """Sets the session variables of a client that reads the binlog without registering as a replica. Returns whether the events of a
        dump will end with a checksum.
        """
        for name in ("master", "source"):
            self.rows(f"SET @{name}_binlog_checksum = @@global.binlog_checksum")
        self.rows("SET @mariadb_slave_capability = 4")
        self.rows("SET net_write_timeout = 7200")
        checksum = self.rows("SELECT @@global.binlog_checksum AS checksum")[0]["checksum"]
        return str(checksum).upper() not in ("NONE", "")

    def dump_independently(self, file: str, offset: int) -> bool:
        """Requests the binlog from `offset` of `file` to the current end of the binlog, without a server id, as `mysqlbinlog` does. So the
        server does not end a dump that another connection of the same replica requested.

        Returns False if the server will send the whole file instead, because the offset is too large for the command (DUMP_OFFSET_MAX).
        """
        within = offset <= DUMP_OFFSET_MAX
        begin = offset if within else FIRST_OFFSET
        self._dump(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", begin, NON_BLOCKING, 0) + file.encode())
        return within

    def dump_after_gtids(self, executed: str, flags: int = 0) -> None:
        """Requests all transactions that are not in a GTID set (MySQL), or that follow a GTID position (MariaDB). If `flags` contains
        NON_BLOCKING, the dump ends at the current end of the binlog.
        """
        if self.mariadb:
            for name, value in (("state", executed), ("strict", 1), ("duplicates", 0)):
                self.rows(_MARIADB_START[name], (value,))
            self._dump(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", FIRST_OFFSET, flags, self.source.replica_id))
            return
        encoded = GtidSet.parse(executed).encoded()
        head = struct.pack("<HIIQI", THROUGH_GTID | flags, self.source.replica_id, 0, FIRST_OFFSET, len(encoded))
        self._dump(COM_BINLOG_DUMP_GTID, head + encoded)

    def begin_query(self, sql: str) -> None:
        """Sends a query without reading its result. The caller reads the bytes of the result with `receive_into`, and calls `end_query`
        after the last byte.
        """
        self._dump(COMMAND.COM_QUERY, sql.encode())

    def end_query(self) -> None:
        """Makes the connection usable for other queries after the caller has read the last byte of the result of `begin_query`."""
        self._socket.setblocking(True)
        self._socket.settimeout(limits.READ_TIMEOUT_SECONDS)

    def answer_error(self, answer: bytes) -> SluiceError:
        return answer_error(self.source, answer)

    def _dump(self, command: int, payload: bytes) -> None:
        with _translated(self.source):
            self._connection.command(command, payload)
        self._socket = self._connection.take_socket()
        self._socket.setblocking(False)

    def receive_into(self, space: memoryview, seconds: float) -> int:
        """Receives bytes of the dump into `space` and returns their number, or 0 if none arrived within `seconds`. After the first bytes,
        waits up to GATHER_SECONDS for more, so that a fast stream arrives in large pieces.

        Raises SourceConnectionError if the server closed the connection. Bytes that the server sent before it closed, for example an error
        packet, are returned first.
        """
        with _translated(self.source):
            count = self._receive(space, seconds)
            if count == CLOSED:
                raise SourceConnectionError(f"{self.source.address} closed the connection")
            while 0 < count < min(GATHER_BYTES, len(space)):
                more = self._receive(space[count:], GATHER_SECONDS)
                if more <= 0:
                    break
                count += more
        return count

    def _receive(self, space: memoryview, seconds: float) -> int:
        """Receives bytes and returns their number, or 0 if none arrived in time, or CLOSED. Reads from the socket before it polls, because
        an SSL socket may have buffered bytes that poll does not report.
        """
        deadline = time.monotonic() + seconds
        while True:
            wait_for = select.POLLIN
            try:
                return self._socket.recv_into(space) or CLOSED
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except ssl.SSLWantWriteError:
                wait_for = select.POLLOUT
            poll = select.poll()
            poll.register(self._socket, wait_for)
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return 0

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.drop()

    def end_dump(self) -> None:
        """Closes the connection and kills its session on the server. Without the kill, the server would end the dump only when it next
        writes to the connection. Ignores errors.
        """
        self.close()
        with contextlib.suppress(SluiceError):
            killer = SourceConnection(self.source)
            try:
                killer.rows("KILL CONNECTION %s", (self.thread_id,))
            finally:
                killer.close()


_MARIADB_START = {
    "state": "SET @slave_connect_state = %s",
    "strict": "SET @slave_gtid_strict_mode = %s",
    "duplicates": "SET @slave_gtid_ignore_duplicates = %s",
}


@contextlib.contextmanager
def _translated(source: Source) -> Iterator[None]:
    """Translates errors of PyMySQL and of the socket to Sluice's errors, whose texts contain no password."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translated_error(source, error_code(error), str(error.args[-1] if error.args else error)) from error
    except OSError as error:
        raise SourceConnectionError(f"the connection to {source.address} failed: {error}") from error


def answer_error(source: Source, answer: bytes) -> SluiceError:
    """Returns the error for a packet that the server sent instead of an event. The packet is the server's error (byte 0xFF, code in 2
    bytes, '#', SQL state in 5 bytes, text), or the end of the dump (byte 0xFE).
    """
    if answer[:1] != SERVER_ERROR or len(answer) < ERROR_TEXT_AT:
        return SourceConnectionError(f"{source.address} ended the dump")
    text = answer[ERROR_TEXT_AT:].decode("utf-8", errors="replace")
    return translated_error(source, int.from_bytes(answer[1:3], "little"), text)


def translated_error(source: Source, code: int, text: str) -> SluiceError:
    """Converts an error of the server to Sluice's error, by the error number `code`. If the number has several meanings, `text` decides."""
    # MySQL and MariaDB use different error numbers if another replica with the same server id ended the dump. So this error is recognized
    # by its text.
    if any(sentence in text.lower() for sentence in DISPLACED_SENTENCES):
        return ReplicaClashError(
            f"{source.address} ended the dump, because another replica with the same server id "
            f"({source.replica_id}) or uuid connected: {text}; {source.clash_remedy}"
        )
    return _dump_refused(source, text) if code == DUMP_REFUSED else session_error(source, code, text)


def _dump_refused(source: Source, text: str) -> SluiceError:
    message = text.lower()
    if any(sentence in message for sentence in POSITION_SENTENCES):
        return PositionLostError(f"{source.address} cannot continue from the requested position: {text}")
    return BinlogFormatError(f"{source.address} cannot read its own binlog: {text}")
