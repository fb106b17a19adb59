"""Parses control events: ROTATE names the next file, FORMAT_DESCRIPTION describes the format of a file, and QUERY contains a statement.
`parser.scan` calls this module.

The library mysql-replication parses ROTATE and FORMAT_DESCRIPTION. This file parses QUERY itself, for two reasons: the library fails at an
unknown status variable, and the library decodes every statement as UTF-8. Sluice decodes a statement in the client's charset
(`charsets.statement_text`).
"""

from __future__ import annotations

import dataclasses
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from pymysqlreplication.event import FormatDescriptionEvent, RotateEvent

from sluice.cdc_engine.binlog.charsets.collations import charset_of_id
from sluice.cdc_engine.binlog.charsets.statement_text import statement_text
from sluice.cdc_engine.binlog.events.event_types import (
    CHECKSUM_BYTES,
    DELETE_ROWS,
    DELETE_ROWS_V1,
    FLAG_IN_USE,
    FLAG_THREAD_SPECIFIC,
    FLAGS_AT,
    HEADER_BYTES,
    PARTIAL_UPDATE_ROWS,
    TABLE_MAP,
    TYPE_AT,
    WRITE_ROWS,
    WRITE_ROWS_V1,
)
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.position import file_number, order_key

CHECKSUM_CRC32 = 1
# Matches the statements that the server composes itself. They are in UTF-8, whatever the client's charset is.
_IN_UTF8 = re.compile(rb"SAVEPOINT |ROLLBACK TO ")
# The codes of the status variables of a QUERY event that this module uses.
# https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Query__event.html, sql/log_event.h of MariaDB
_SQL_MODE, _CATALOG_Z, _CHARSET, _TIME_ZONE, _INVOKER, _DATABASES = 1, 2, 4, 5, 11, 12
_MICROSECONDS, _EXPLICIT_TIMESTAMPS, _MARIADB_MICROSECONDS, _MARIADB_PHASE, _MARIADB_COLLATIONS = 13, 16, 128, 130, 131
# The code of the status variable that contains flags, and the flag for explicit_defaults_for_timestamp. Only MariaDB sets this flag.
_FLAGS, _FLAG_EXPLICIT_TIMESTAMPS = 0, 1 << 24
# Code of a status variable of a fixed size → number of bytes of its value.
_SIZES = {
    _FLAGS: 4,
    _SQL_MODE: 8,
    3: 4,  # auto_increment
    _CHARSET: 6,
    7: 2,  # lc_time_names
    8: 2,  # character set of the database
    9: 8,  # tables of a multi-table update
    10: 4,  # length in the source's binlog
    _MICROSECONDS: 3,
    _EXPLICIT_TIMESTAMPS: 1,
    17: 8,  # transaction id of DDL
    18: 2,  # default collation of utf8mb4
    19: 1,  # sql_require_primary_key
    20: 1,  # default_table_encryption
    _MARIADB_MICROSECONDS: 3,
    129: 8,  # MariaDB's transaction id
}
_TEXTS = {_CATALOG_Z: 1, _TIME_ZONE: 0, 6: 0}  # Code of a variable with a length byte → number of bytes after its text.
# If a statement changes too many databases, the server writes this number instead of their number, and no names.
_MANY_DATABASES = 254
# With binlog_alter_two_phase, MariaDB logs one event when an ALTER begins, and another event when the ALTER commits or rolls back. A flag
# says which of these an event is: _ALTER_STARTS, _ALTER_COMMITS or _ALTER_ROLLS_BACK. In the second event, _STARTED_AS_BYTES bytes after
# the flags identify the first event.
_ALTER_STARTS, _ALTER_COMMITS, _ALTER_ROLLS_BACK = 2, 4, 8
_STARTED_AS_BYTES = 8
# Minor version of MariaDB 10 → first patch version that logs explicit_defaults_for_timestamp in the flags. All versions from 10.10 on log
# it.
_LOGS_TIMESTAMPS = {5: 17, 6: 9, 7: 5, 8: 4, 9: 2}
_QUERY_HEADER_BYTES, _LOAD_HEADER_BYTES = 13, 13
_COLLATION_PAIR_BYTES = 4  # The bytes of a pair in MariaDB's character_set_collations: two collation ids of two bytes.


@dataclasses.dataclass(frozen=True)
class Rotation:
    file: str
    offset: int


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """The format of a binlog file. `checksum`: whether its events end with a CRC32. `created`: creation time in seconds since 1970."""

    server_version: str
    checksum: bool
    created: int

    @property
    def logs_timestamps(self) -> bool:
        """Whether this server logs a session's explicit_defaults_for_timestamp in the flags of QUERY events."""
        version, mariadb, _ = self.server_version.lower().removeprefix("5.5.5-").partition("-mariadb")
        numbers = [int(digits) for digits in version.split(".")[:3] if digits.isdecimal()]
        if not mariadb or len(numbers) < 3:
            return False
        major, minor, patch = numbers
        return (major, minor) >= (10, 10) or (
            major == 10 and minor in _LOGS_TIMESTAMPS and patch >= _LOGS_TIMESTAMPS[minor]
        )


@dataclasses.dataclass(frozen=True)
class QueryStatement:
    """The statement of a QUERY event. `error_code`: the error with which the statement ended on the source, or 0. `takes_effect`: False if
    the event logs the begin or the failure of an ALTER (MariaDB's binlog_alter_two_phase).
    """

    text: str
    database: str
    error_code: int
    session: StatementSession = NO_SESSION
    takes_effect: bool = True


class _Packet:
    """A substitute for mysql-replication's packet class, with only the members that its event classes use."""

    def __init__(self, event: bytes, body: bytes) -> None:
        self.timestamp, self.event_type = struct.unpack_from("<IB", event)
        self._body = body
        self.read_bytes = 0

    def read(self, size: int) -> bytes:
        part = self._body[self.read_bytes : self.read_bytes + size]
        if len(part) < size:
            raise ValueError("the event is too short")
        self.read_bytes += size
        return part

    def advance(self, size: int) -> None:
        self.read(size)

    def read_uint8(self) -> int:
        return self.read(1)[0]


class _NoConnection:
    """A substitute for mysql-replication's connection. The library's event classes call only `_get_dbms`."""

    @staticmethod
    def _get_dbms() -> str:
        return "mysql"


def _parse(event_class: Any, event: bytes, body: bytes) -> Any:
    try:
        return event_class(_Packet(event, body), len(body), {}, _NoConnection)
    except Exception as error:  # The library raises errors of any type.
        raise BinlogFormatError(f"a {event_class.__name__} cannot be read: {error}") from error


def parse_rotate(event: bytes, checksum_bytes: int) -> Rotation:
    """Parses a ROTATE event. `event`: the whole event with header and checksum, as in all functions of this file."""
    rotate = _parse(RotateEvent, event, event[HEADER_BYTES : len(event) - checksum_bytes])
    rotation = Rotation(rotate.next_binlog.rstrip("\0"), int(rotate.position))
    # The result is not used. The call raises an error if file and offset cannot form an order key.
    order_key(0, file_number(rotation.file), rotation.offset)
    return rotation


def parse_format_description(event: bytes) -> FileFormat:
    """Parses a FORMAT_DESCRIPTION event. Raises BinlogFormatError if the event's checksum is wrong, if the checksum algorithm is unknown,
    or if the headers of row events do not have the sizes that the scan kernel expects.
    """
    parsed = _parse(FormatDescriptionEvent, event, event[HEADER_BYTES:])
    checksum = parsed.checksum_algorithm == CHECKSUM_CRC32
    if checksum:
        closed = bytearray(event[:-CHECKSUM_BYTES])
        closed[FLAGS_AT] &= ~FLAG_IN_USE & 0xFF
        if zlib.crc32(closed) != int.from_bytes(event[-CHECKSUM_BYTES:], "little"):
            raise BinlogFormatError("the checksum of a format description does not match")
    elif parsed.checksum_algorithm not in (None, 0):
        raise BinlogFormatError(f"the binlog uses the unknown checksum algorithm {parsed.checksum_algorithm}")
    _require_header_sizes(parsed.post_header_len, parsed.mysql_version_str)
    return FileFormat(parsed.mysql_version_str, checksum, struct.unpack_from("<I", event)[0])


def _require_header_sizes(sizes: tuple[int, ...], version: str) -> None:
    wanted = {
        TABLE_MAP: 8,
        WRITE_ROWS_V1: 8,
        DELETE_ROWS_V1: 8,
        WRITE_ROWS: 10,
        DELETE_ROWS: 10,
        PARTIAL_UPDATE_ROWS: 10,
    }
    for event_type, size in wanted.items():
        if event_type <= len(sizes) and sizes[event_type - 1] not in (0, size):
            raise BinlogFormatError(
                f"a server of version {version} writes headers of row events that Sluice cannot read"
            )


def parse_query(event: bytes, checksum_bytes: int, *, logs_timestamps: bool = False) -> QueryStatement:
    """Parses the text, the default database and the session variables of a QUERY event. The scan kernel must have checked that the lengths
    in the event are valid.

    `logs_timestamps`: whether the server logs a session's explicit_defaults_for_timestamp in the flags of QUERY events.
    """
    body = event[HEADER_BYTES : len(event) - checksum_bytes]
    database_length, error_code, status_length = struct.unpack_from("<BHH", body, 8)
    status = body[13 : 13 + status_length]
    database_at = 13 + status_length
    text = body[database_at + database_length + 1 :]
    database = body[database_at : database_at + database_length]
    variables = dict(_status_variables(status))
    flags = struct.unpack_from("<H", event, FLAGS_AT)[0]
    session = dataclasses.replace(
        _session(struct.unpack_from("<I", event)[0], variables, logs_timestamps=logs_timestamps),
        thread_specific=bool(flags & FLAG_THREAD_SPECIFIC),
    )
    return QueryStatement(
        statement_text(text, "utf8mb4" if _IN_UTF8.match(text) else session.client),
        database.decode("utf-8", errors="backslashreplace"),
        error_code,
        session,
        takes_effect=not variables.get(_MARIADB_PHASE, b"\0")[0] & (_ALTER_STARTS | _ALTER_ROLLS_BACK),
    )


def parse_load(event: bytes, checksum_bytes: int) -> QueryStatement:
    """Parses an EXECUTE_LOAD_QUERY event (LOAD DATA in statement format). The event has the layout of a QUERY event with an additional
    header before the status variables.
    """
    begin = HEADER_BYTES + _QUERY_HEADER_BYTES
    rest = begin + _LOAD_HEADER_BYTES
    if len(event) < rest + checksum_bytes:
        raise BinlogFormatError("an EXECUTE_LOAD_QUERY event is too short")
    return parse_query(event[:begin] + event[rest:], checksum_bytes)


def _session(started_seconds: int, variables: dict[int, bytes], *, logs_timestamps: bool) -> StatementSession:
    microseconds = variables.get(_MICROSECONDS, variables.get(_MARIADB_MICROSECONDS))
    client, connection, server = _charsets(variables.get(_CHARSET, b""))
    return StatementSession(
        sql_mode=int.from_bytes(variables.get(_SQL_MODE, b""), "little"),
        started_us=started_seconds * 1_000_000 + int.from_bytes(microseconds or b"", "little"),
        fraction=microseconds is not None,
        time_zone=variables.get(_TIME_ZONE, b"").decode("ascii", errors="backslashreplace"),
        explicit_timestamps=_explicit_timestamps(variables, logs_timestamps=logs_timestamps),
        client=client,
        connection=connection,
        server=server,
    )


def _explicit_timestamps(variables: dict[int, bytes], *, logs_timestamps: bool) -> bool | None:
    if logs_timestamps and _FLAGS in variables:
        return bool(int.from_bytes(variables[_FLAGS], "little") & _FLAG_EXPLICIT_TIMESTAMPS)
    explicit = variables.get(_EXPLICIT_TIMESTAMPS)
    return None if explicit is None else explicit != b"\0"


def _charsets(collations: bytes) -> tuple[str, str, str]:
    """Returns the charsets of client, connection and server. A charset is empty if the event does not have it, or if its collation id is
    unknown.
    """
    ids = struct.unpack("<HHH", collations) if collations else (0, 0, 0)
    client, connection, server = (charset_of_id(number) for number in ids)
    return client.name if client else "", connection.name if connection else "", server.name if server else ""


def _status_variables(status: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (code, value) of each status variable. Stops at the first variable that is unknown or truncated."""
    at = 0
    while at < len(status):
        code, begin = status[at], at + 1
        if code in _SIZES:
            end = begin + _SIZES[code]
        elif code in _TEXTS and begin < len(status):
            begin, end = begin + 1, begin + 1 + status[begin] + _TEXTS[code]
        elif code == _MARIADB_PHASE and begin < len(status):
            ends = status[begin] & (_ALTER_COMMITS | _ALTER_ROLLS_BACK)
            end = begin + 1 + (_STARTED_AS_BYTES if ends else 0)
        elif code == _MARIADB_COLLATIONS and begin < len(status):
            end = begin + 1 + _COLLATION_PAIR_BYTES * status[begin]
        else:
            end = _end_of_names(status, begin) if code in (_INVOKER, _DATABASES) else 0
        if not begin <= end <= len(status):
            return
        yield code, status[begin:end]
        at = end


def _end_of_names(status: bytes, at: int) -> int:
    """Returns the offset after the value of the status variable _INVOKER (user and host) or _DATABASES (names of changed databases). The
    value begins at `at`. If the value is truncated, returns 0 or an offset after the end of `status`.
    """
    if status[at - 1] == _INVOKER:
        for _ in range(2):
            at += 1 + (status[at] if at < len(status) else 0)
        return at
    count = status[at] if at < len(status) else 0
    at += 1
    for _ in range(count if count != _MANY_DATABASES else 0):
        at = status.find(b"\0", at) + 1
        if not at:
            return 0
    return at


def event_type_of(event: bytes) -> int:
    return event[TYPE_AT]
