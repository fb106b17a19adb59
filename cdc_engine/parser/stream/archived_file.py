"""Reads the header and the events of one archived binlog file, and checks whether the file is complete."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Generator, Iterator
from typing import IO

import numpy as np

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.contracts import Block, Bytes
from sluice.cdc_engine.errors import BinlogFormatError, PositionLostError
from sluice.cdc_engine.parser.scan.scanner import Scanner, StreamForm
from sluice.cdc_engine.parser.scan.state import ScanStatus
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import FIRST_EPOCH, FIRST_OFFSET
from sluice.cdc_engine.parser.stream.dump import NoHistory, UnwantedRows, no_table
from sluice.cdc_engine.position import Position, file_number

MAGIC, ENCRYPTED = b"\xfebin", b"\xfdbin"
POSITION_BYTES = 8  # In a ROTATE event, the name of the next file begins after this many bytes of the body.
LAST_BYTES = 1024  # The event that closes a file fits into this many bytes at the file's end.
# The length of the server's version in a format description event. The 2-byte version of the binlog format comes before the server's
# version.
VERSION_BYTES = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The beginning of a binlog file: its format description as bytes, its creation time in seconds since 1970, and the id of the server
    that wrote it.
    """

    description: bytes
    created: int
    server_id: int

    @property
    def version(self) -> str:
        """The version of the server that wrote the file."""
        begin = types.HEADER_BYTES + 2
        return self.description[begin : begin + VERSION_BYTES].rstrip(b"\0").decode("ascii", "replace")


def read_header(stream: IO[bytes], file: str) -> Header:
    """Reads the beginning of a binlog file. Raises PositionLostError if the file is not a readable binlog file."""
    magic = _exactly(stream, len(MAGIC), file)
    if magic == ENCRYPTED:
        raise PositionLostError(
            f"the archived {file} is encrypted, and only its server can read the file; archive binlog files "
            "with `mysqlbinlog --read-from-remote-server --raw`"
        )
    start = _exactly(stream, types.HEADER_BYTES, file) if magic == MAGIC else b""
    if not start or start[types.TYPE_AT] != types.FORMAT_DESCRIPTION:
        raise PositionLostError(
            f"the archived {file} is not a binlog file: the file does not begin with the bytes of a binlog file; put the server's own file "
            "into the archive"
        )
    created, _, server_id, length = struct.unpack_from("<IBII", start)
    return Header(
        description=start + _exactly(stream, length - types.HEADER_BYTES, file), created=created, server_id=server_id
    )


def foreign(header: Header, file: str, known_created: int, facts: ServerFacts) -> str:
    """Returns a sentence that tells why an archived file is not the server's file of that name, or "" if nothing indicates this.
    `known_created` is the creation time of the server's file, or 0 if unknown.
    """
    server_id = facts.variables.get("server_id", "none")
    if str(header.server_id) != server_id:
        return (
            f"the archived {file} was written by a server with the server id {header.server_id}, and the source "
            f"has the server id {server_id}"
        )
    if known_created and header.created != known_created:
        return (
            f"the archived {file} was created at {header.created}, and the file that the engine read was created "
            f"at {known_created} (seconds since 1970)"
        )
    return ""


def file_named(like: str, number: int) -> str:
    """Returns the name of the file with the number `number` in the sequence of the file `like`."""
    stem, _, digits = like.rpartition(".")
    return f"{stem}.{number:0{len(digits)}d}"


def following_file(file: str) -> str:
    """Returns the name of the file that follows `file` in its sequence."""
    return file_named(file, file_number(file) + 1)


def require_whole_file(stream: IO[bytes], file: str, facts: ServerFacts, *, proven: bool) -> None:
    """Reads a whole file and verifies its checksums and its end. With `proven`, does not check whether the last event closes the file,
    because GTIDs in the next file will show whether transactions are missing.

    Raises PositionLostError if the file is not a binlog file, belongs to another server or is not closed. Raises BinlogFormatError if an
    event is damaged or truncated.
    """
    header = read_header(stream, file)
    if why := foreign(header, file, 0, facts):
        raise PositionLostError(why)
    begin = Position(epoch=FIRST_EPOCH, file=file, offset=FIRST_OFFSET)
    scanner = Scanner(
        start=begin,
        history=NoHistory(),
        captured=no_table,
        checksum=False,
        executed_known=False,
        prepared=UnwantedRows(),
        form=StreamForm(packets=False),
    )
    ended = _ended(file_blocks(scanner, header, stream, file, previous_checksum=False))
    if not proven and not is_closed(ended, following_file(file)):
        raise PositionLostError(
            f"the archived {file} does not end with a ROTATE to {following_file(file)} or a STOP: the file was "
            "copied before the server closed it, or the copy is truncated"
        )


def file_blocks(
    scanner: Scanner,
    header: Header,
    stream: IO[bytes],
    file: str,
    *,
    begin: int = 0,
    previous_checksum: bool,
    may_be_truncated: bool = False,
) -> Generator[Block, None, bytes]:
    """Yields the blocks of a file from the offset `begin` on. Returns the last bytes of the file, for `is_closed`.

    `stream` must be positioned after the header. `previous_checksum` tells whether the events of the previous file have checksums. With
    `may_be_truncated`, the file may end within an event.
    """
    end = FIRST_OFFSET + len(header.description)
    yield from _fed(scanner, rotate_to(file, checksum=previous_checksum))
    scanner.go_on_at(FIRST_OFFSET)
    yield from _fed(scanner, header.description)
    if begin > end:
        _pass_over(stream, begin - end, file)
        scanner.go_on_at(begin)
    return (yield from _streamed(scanner, stream, file, may_be_truncated=may_be_truncated))


def _ended(blocks: Generator[Block, None, bytes]) -> bytes:
    """Reads all blocks of a file, and returns the last bytes of the file."""
    while True:
        try:
            next(blocks)
        except StopIteration as end:
            return bytes(end.value)


def rotate_to(file: str, *, checksum: bool) -> bytes:
    """Returns the ROTATE event with which a server announces a file in a dump. Binlog files do not contain this event, so `file_blocks`
    passes it to the scanner before the events of a file. With `checksum`, the event ends with a checksum.
    """
    body = struct.pack("<Q", FIRST_OFFSET) + file.encode()
    length = types.HEADER_BYTES + len(body) + (types.CHECKSUM_BYTES if checksum else 0)
    event = struct.pack("<IBIIIH", 0, types.ROTATE, 0, length, 0, types.FLAG_ARTIFICIAL) + body
    return event + (struct.pack("<I", zlib.crc32(event)) if checksum else b"")


def _fed(scanner: Scanner, event: bytes) -> Iterator[Block]:
    buffer: Bytes = np.frombuffer(event, np.uint8).copy()
    yield from scanner.feed(buffer, 0, len(buffer))


def is_closed(ended: bytes, following: str) -> bool:
    """Returns whether the last event of a file names `following` as the next file, or records that the server stopped. `ended` are the
    last bytes of the file.
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


def _streamed(
    scanner: Scanner, stream: IO[bytes], file: str, *, may_be_truncated: bool = False
) -> Generator[Block, None, bytes]:
    """Yields the blocks from the stream's current offset to the end of a file, buffer by buffer. A buffer is larger than READ_BUFFER_BYTES
    if an event does not fit into that many bytes. Returns the last bytes of the file (at most LAST_BYTES), for `is_closed`.

    With `may_be_truncated`, the file may end within an event, because it was copied while the server wrote it.
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
    if len(tail) and (not may_be_truncated or scanner.last_verdict == ScanStatus.NOT_AN_EVENT):
        raise BinlogFormatError(
            "the archived file ends within an event: put a complete copy of the file into the archive", file
        )
    return ended


def _pass_over(stream: IO[bytes], count: int, file: str) -> None:
    while count > 0:
        count -= len(_exactly(stream, min(count, limits.READ_BUFFER_BYTES), file))


def _exactly(stream: IO[bytes], count: int, file: str) -> bytes:
    found = bytearray(count)
    if _fill(stream, memoryview(found)) < count:
        raise PositionLostError(
            f"the archived {file} ends before the end of its header or before the requested position: put a complete copy of the "
            "file into the archive"
        )
    return bytes(found)


def _fill(stream: IO[bytes], room: memoryview) -> int:
    """Reads until the buffer is full or the file ends. Returns the number of bytes that were read."""
    count = 0
    while count < len(room) and (piece := stream.read(len(room) - count)):
        room[count : count + len(piece)] = piece
        count += len(piece)
    return count
