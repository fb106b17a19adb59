"""Reads what a server has purged from an archive of its binlog files, up to the first file that the server still has. Used by
`event_parser`.

A file is compared with the server before any row of it counts: its server id, its creation time and, if the server keeps GTIDs, what was
executed before it. A file of another server is refused by name, and so is an archive that lacks a file in between.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Generator, Iterator
from typing import IO

import numpy as np

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.binlog.events.control import parse_format_description
from sluice.cdc_engine.binlog.scan.scanner import Scanner, StreamForm
from sluice.cdc_engine.binlog.scan.state import ScanStatus
from sluice.cdc_engine.contracts import Block, Bytes
from sluice.cdc_engine.errors import BinlogFormatError, PositionLostError
from sluice.cdc_engine.parser.file_creation import creation_of
from sluice.cdc_engine.parser.renumbering import base
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import FIRST_OFFSET, RESNAPSHOT, Lost
from sluice.cdc_engine.parser.stream.dump import Captured
from sluice.cdc_engine.ports import PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source

MAGIC, ENCRYPTED = b"\xfebin", b"\xfdbin"
POSITION_BYTES = 8  # A ROTATE has these bytes before the name of the next file.
LAST_BYTES = 1024  # A file's last bytes; they contain the event that closes the file.


def files_between(
    cursor: Position, archived: tuple[str, ...], facts: ServerFacts, location: str
) -> tuple[str, ...] | Lost:
    """Returns the archived files from the cursor's file up to the server's first one, without a gap. Pure."""
    first = facts.logs[0].file if facts.logs else ""
    kin = {file_number(each): each for each in archived if base(each) == base(cursor.file)}
    wanted = (
        range(file_number(cursor.file), file_number(first)) if first and base(first) == base(cursor.file) else range(0)
    )
    lacking = [number for number in wanted if number not in kin]
    if not wanted or lacking:
        what = (
            f"number {lacking[0]} of {base(cursor.file)}"
            if lacking
            else f"what comes between {cursor.file} and {first or 'nothing'}"
        )
        return Lost(
            reason=f"the server has purged what comes after {cursor}, and the archive {location} lacks {what}",
            options=("put the missing binlog files into the archive", RESNAPSHOT),
        )
    return tuple(kin[number] for number in wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The beginning of a binlog file: its format description as bytes, its creation time, and the server that wrote it."""

    description: bytes
    created: int
    server_id: int


def read_header(stream: IO[bytes], file: str) -> Header:
    """Reads the beginning of a binlog file. Raises PositionLostError if it is not a readable binlog file."""
    magic = _exactly(stream, len(MAGIC), file)
    if magic == ENCRYPTED:
        raise PositionLostError(
            f"the archived {file} is encrypted: only its server can read it; archive it with `mysqlbinlog --read-from-remote-server --raw`"
        )
    start = _exactly(stream, types.HEADER_BYTES, file) if magic == MAGIC else b""
    if not start or start[types.TYPE_AT] != types.FORMAT_DESCRIPTION:
        raise PositionLostError(f"the archived {file} is not a binlog file: its first bytes are not those of one")
    created, _, server_id, length = struct.unpack_from("<IBII", start)
    return Header(
        description=start + _exactly(stream, length - types.HEADER_BYTES, file), created=created, server_id=server_id
    )


def foreign(header: Header, file: str, known_created: int, facts: ServerFacts) -> str:
    """Returns a sentence why an archived file is not the server's file of that name, or an empty text if it is. `known_created`: 0 if
    unknown. Pure.
    """
    server_id = facts.variables.get("server_id", "none")
    if str(header.server_id) != server_id:
        return f"the archived {file} was written by the server id {header.server_id}, this server has {server_id}"
    if known_created and header.created != known_created:
        return f"the archived {file} was created at {header.created}, the one that was read at {known_created} (seconds since 1970)"
    return ""


class ArchivedInterval:
    """The interval from a cursor to the first file that the server has. `handed_over`: the position there, once everything is read."""

    def __init__(self, archive: Archive, source: Source, cursor: Position, facts: ServerFacts) -> None:
        """-"""
        found = files_between(cursor, archive.files(), facts, archive.location)
        if isinstance(found, Lost):
            raise PositionLostError(str(found))
        self.files, self._archive, self._cursor, self._facts = found, archive, cursor, facts
        self._source = source

    def scanner(
        self,
        history: SchemaHistory,
        captured: Captured,
        prepared: PreparedTransactions,
        *,
        executed_known: bool,
        rows_queries: bool = False,
    ) -> Scanner:
        """Returns a scanner from the cursor on for events as files contain them: without packets, and with checksums as each file
        defines.
        """
        return Scanner(
            start=self._cursor,
            history=history,
            captured=captured,
            checksum=False,
            executed_known=executed_known,
            form=StreamForm(packets=False, rows_queries=rows_queries),
            prepared=prepared,
        )

    def blocks(self, scanner: Scanner) -> Iterator[Block]:
        """Yields the blocks of the interval. Raises PositionLostError for a file of another server, and the errors of the scan."""
        newest, checksum = 0, False
        for file in self.files:
            known = self._cursor.file_created if file == self._cursor.file else 0
            with self._archive.open(file) as stream:
                header = read_header(stream, file)
                why = foreign(header, file, known, self._facts)
                if not why and header.created < newest:
                    why = f"the archived {file} was created before the file that precedes it"
                if why:
                    raise PositionLostError(
                        f"{why}: the file is of another server, or from before RESET MASTER. Safe options: put the source's own file into "
                        f"the archive and start the engine again; {RESNAPSHOT}"
                    )
                newest = header.created
                yield from _fed(scanner, rotate_to(file, checksum=checksum))
                ended = yield from self._of_one(scanner, file, header, stream)
                checksum = parse_format_description(header.description).checksum
                self._require_whole(file, ended)

    def _require_whole(self, file: str, ended: bytes) -> None:
        """Raises PositionLostError if a file's end is missing, because the file was copied while the server wrote it. On MySQL the next
        file's GTIDs prove it, otherwise the file's last event.
        """
        following = (*self.files, self._facts.logs[0].file)[self.files.index(file) + 1]
        proven = bool(self._cursor.gtid_set) and not self._facts.mariadb
        if not proven and not is_closed(ended, following):
            raise PositionLostError(
                f"the archived {file} does not end with a ROTATE to {following} or a STOP: it was copied before the server closed it, or "
                f"it is truncated. Safe options: put a whole copy into the archive; or {RESNAPSHOT}"
            )

    def _of_one(self, scanner: Scanner, file: str, header: Header, stream: IO[bytes]) -> Generator[Block, None, bytes]:
        """Yields the blocks of one file. Returns its last bytes."""
        end = FIRST_OFFSET + len(header.description)
        scanner.go_on_at(FIRST_OFFSET)
        yield from _fed(scanner, header.description)
        if file == self._cursor.file and self._cursor.offset > end:
            _pass_over(stream, self._cursor.offset - end, file)
            scanner.go_on_at(self._cursor.offset)
        return (yield from _streamed(scanner, stream, file))

    def handed_over(self, position: Position) -> Position:
        """Returns the position where the server continues: the beginning of its first file, if it still has that file."""
        file = self._facts.logs[0].file
        return dataclasses.replace(
            position, file=file, offset=FIRST_OFFSET, file_created=creation_of(self._source, file)
        )


def rotate_to(file: str, *, checksum: bool) -> bytes:
    """Returns the event by which a server announces the next file; no file contains this event. `checksum`: whether it has one, like the
    events before it.
    """
    body = struct.pack("<Q", FIRST_OFFSET) + file.encode()
    length = types.HEADER_BYTES + len(body) + (types.CHECKSUM_BYTES if checksum else 0)
    event = struct.pack("<IBIIIH", 0, types.ROTATE, 0, length, 0, types.FLAG_ARTIFICIAL) + body
    return event + (struct.pack("<I", zlib.crc32(event)) if checksum else b"")


def _fed(scanner: Scanner, event: bytes) -> Iterator[Block]:
    buffer: Bytes = np.frombuffer(event, np.uint8).copy()
    yield from scanner.feed(buffer, 0, len(buffer))


def is_closed(ended: bytes, following: str) -> bool:
    """Returns whether the last event of a file names `following` as the next file, or records that the server stopped. `ended`: the file's
    last bytes.
    """
    for length, begins in (
        (types.HEADER_BYTES + POSITION_BYTES + len(following), types.ROTATE),
        (types.HEADER_BYTES, types.STOP),
    ):
        for whole in (length, length + types.CHECKSUM_BYTES):
            event = ended[-whole:]
            named = event[types.HEADER_BYTES + POSITION_BYTES :][: len(following)] == following.encode()
            if len(event) == whole and event[types.TYPE_AT] == begins and _length(event) == whole:
                return named or begins == types.STOP
    return False


def _length(event: bytes) -> int:
    return int.from_bytes(event[types.LENGTH_AT : types.LENGTH_AT + 4], "little")


def _streamed(scanner: Scanner, stream: IO[bytes], file: str) -> Generator[Block, None, bytes]:
    """Yields the blocks of the rest of a file, buffer by buffer; an event that is larger than a buffer gets a larger one. Returns the
    file's last bytes.
    """
    tail: Bytes = np.empty(0, np.uint8)
    ended = b""
    room = limits.READ_BUFFER_BYTES
    while True:
        buffer: Bytes = np.empty(len(tail) + room, np.uint8)
        buffer[: len(tail)] = tail
        end = len(tail) + _fill(stream, memoryview(buffer)[len(tail) :])  # type: ignore[arg-type]  # numpy's stubs before Python 3.12
        if end == len(tail):
            break
        ended = buffer[max(0, end - LAST_BYTES) : end].tobytes()
        yield from scanner.feed(buffer, 0, end)
        tail = buffer[scanner.consumed : end]
        if scanner.last_verdict == ScanStatus.NOT_AN_EVENT:
            break
    if len(tail):
        raise BinlogFormatError("the archived file ends within an event: put the whole file into the archive", file)
    return ended


def _fill(stream: IO[bytes], room: memoryview) -> int:
    """Reads until the buffer is full or the file ends. Returns the number of bytes read."""
    count = 0
    while count < len(room) and (piece := stream.read(len(room) - count)):
        room[count : count + len(piece)] = piece
        count += len(piece)
    return count


def _exactly(stream: IO[bytes], count: int, file: str) -> bytes:
    found = bytearray(count)
    if _fill(stream, memoryview(found)) < count:
        raise PositionLostError(
            f"the archived {file} ends before the requested position: put the whole file into the archive"
        )
    return bytes(found)


def _pass_over(stream: IO[bytes], count: int, file: str) -> None:
    while count > 0:
        count -= len(_exactly(stream, min(count, limits.READ_BUFFER_BYTES), file))
