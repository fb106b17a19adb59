"""Reads binlog files of a source over a separate connection: first the files that only the archive has, then the server's files.

Used by searches for a position, by scans for DDL statements and by backfills, because all of them may need a file that the server has
purged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Protocol

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.file_creation import creation_of
from sluice.cdc_engine.parser.renumbering import base
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import DumpStart
from sluice.cdc_engine.parser.stream.archived import ArchivedInterval, fetch, first_of_server
from sluice.cdc_engine.parser.stream.archived_file import file_named, foreign, read_header
from sluice.cdc_engine.parser.stream.dump import Captured, begin_independent_dump, blocks_to_end
from sluice.cdc_engine.ports import PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source


def _never() -> bool:
    return False


def archived_before(archived: Iterable[BinaryLog], first: str) -> tuple[BinaryLog, ...]:
    """Returns the archived files that directly precede the file `first`, oldest first and without a gap."""
    if not first:
        return ()
    kin = {file_number(each.file): each for each in archived if base(each.file) == base(first)}
    number, found = file_number(first), []
    while (number := number - 1) in kin:
        found.append(kin[number])
    return tuple(reversed(found))


class ReadableFiles(Protocol):
    """Binlog files of a source or of an archive that can be read without affecting the running stream. `logs` are the files, oldest first.
    `origin` names the source or the archive in messages. `bytes_read` counts the bytes that `blocks` has read.
    """

    facts: ServerFacts
    logs: tuple[BinaryLog, ...]
    bytes_read: int

    @property
    def origin(self) -> str: ...
    @property
    def nothing_purged(self) -> bool: ...
    def bound(self, epoch: int) -> Position | None:
        """Returns up to where a reader may use the files, as a position in `epoch`: the end of the last complete transaction. Returns None,
        which means no limit, if the files always end with a complete transaction.
        """

    def created(self, file: str) -> int:
        """Returns the creation time of a file in seconds since 1970; 0 if the file does not exist."""

    def reach(self, is_enough: Callable[[str], bool]) -> None:
        """Fetches older files one by one with the command in conf/, until `is_enough` is True for the oldest file or the oldest file has
        the number 1. Does nothing if conf/ has no such command.
        """

    def blocks(
        self, start: DumpStart, history: SchemaHistory, captured: Captured, prepared: PreparedTransactions
    ) -> Generator[Block]:
        """Yields the blocks from `start`, which is in one of the files, to the end of the files."""


class BinlogFiles:
    """The binlog files of a source and of its archive (implements `ReadableFiles`). For a compressed archived file, `logs` has the
    compressed size.

    `given_up` is called repeatedly while a file is fetched. If it returns True, the fetch is canceled. Methods raise
    SourceConnectionError, or ConfigurationError if the archive cannot be read.
    """

    def __init__(
        self,
        source: Source,
        facts: ServerFacts,
        archive: Archive | None = None,
        *,
        given_up: Callable[[], bool] = _never,
    ) -> None:
        self.source, self.facts, self._archive, self._given_up = source, facts, archive, given_up
        self.bytes_read = 0
        self._look()

    def _look(self) -> None:
        first = self.facts.logs[0].file if self.facts.logs else ""
        older = archived_before(_logs_of(self._archive), first) if self._archive else ()
        self._archived = frozenset(each.file for each in older)
        self.logs = (*older, *self.facts.logs)

    @property
    def origin(self) -> str:
        return self.source.address

    def bound(self, epoch: int) -> None:
        """Returns None, because the binlog of a server ends with a complete transaction."""

    def reach(self, is_enough: Callable[[str], bool]) -> None:
        """Fetches older files into the archive one by one until `is_enough` is True for the oldest file. Raises SourceConnectionError if
        the command in conf/ fails, and InterruptedError if `given_up` canceled the command.
        """
        if self._archive is None or not self._archive.can_fetch or not self.logs:
            return
        while (number := file_number(self.logs[0].file)) > 1 and not is_enough(self.logs[0].file):
            fetch(self._archive, file_named(self.logs[0].file, number - 1), self.facts, self._given_up)
            self._look()

    @property
    def reachable(self) -> ServerFacts:
        """Returns the server's facts with the archived files added to `logs`. Their sizes are `sys.maxsize`, because the uncompressed size
        of an archived file is unknown until it is read.
        """
        older = tuple(
            BinaryLog(file=each.file, size_bytes=sys.maxsize) for each in self.logs if self.is_archived(each.file)
        )
        return dataclasses.replace(self.facts, logs=(*older, *self.facts.logs))

    def is_archived(self, file: str) -> bool:
        """Returns whether the file is in the archive and no longer on the server. If True, the archive also has all files between this file
        and the server's first file.
        """
        return file in self._archived

    def archived_bytes(self, file: str) -> int:
        """Returns the uncompressed size of an archived file in bytes. Reads the whole file."""
        if self._archive is None:
            raise ValueError(f"{file} is in no archive")
        with self._archive.open(file) as stream:
            return sum(map(len, iter(functools.partial(stream.read, limits.READ_BUFFER_BYTES), b"")))

    @property
    def nothing_purged(self) -> bool:
        """Whether the server has purged no transaction since its binlog began. False if that is unknown, because the server has
        no GTIDs.
        """
        return self.facts.gtid_enabled and not self.facts.purged

    def created(self, file: str) -> int:
        """Returns the creation time of a file in seconds since 1970, or 0 if neither server nor archive has the file. Raises
        PositionLostError if the archived file was written by another server.
        """
        if self._archive is None or file not in self._archived:
            return creation_of(self.source, file)
        with self._archive.open(file) as stream:
            header = read_header(stream, file)
        if why := foreign(header, file, 0, self.facts):
            raise PositionLostError(
                f"{why}: remove this file from the archive {self._archive.location}, and copy the source's "
                "own file into the archive"
            )
        return header.created

    def blocks(
        self, start: DumpStart, history: SchemaHistory, captured: Captured, prepared: PreparedTransactions
    ) -> Generator[Block]:
        """Yields the blocks from `start`, which is in one of the files, to the current end of the binlog.

        Raises SourceConnectionError, PositionLostError, or BinlogFormatError if the binlog cannot be parsed.
        """
        if self._archive is not None and start.position.file in self._archived:
            start = yield from self._from_archive(self._archive, start, history, captured, prepared)
        before = self.bytes_read
        with contextlib.closing(SourceConnection(self.source)) as connection:
            framer = begin_independent_dump(connection, start, history, captured, prepared)
            for block in blocks_to_end(connection, framer):
                self.bytes_read = before + framer.bytes_received
                yield block

    def _from_archive(
        self,
        archive: Archive,
        start: DumpStart,
        history: SchemaHistory,
        captured: Captured,
        prepared: PreparedTransactions,
    ) -> Generator[Block, None, DumpStart]:
        """Yields the blocks of the archived files. Returns the position at which to continue in the server's files."""
        position = start.position
        interval = ArchivedInterval.before_server(archive, position, self.facts, self._given_up)
        scanner = interval.scanner(history, captured, prepared, executed_known=start.executed_known)
        for block in interval.blocks(scanner):
            self.bytes_read += block.byte_count
            if block.transaction_count:
                position = end_position(block, block.transaction_count - 1)
            yield block
        position = first_of_server(self.source, self.facts, position)
        return DumpStart(position=position, by_gtid=False, executed_known=bool(position.gtid_set))


def _logs_of(archive: Archive) -> list[BinaryLog]:
    return [BinaryLog(file=file, size_bytes=size) for file, size in archive.sizes().items()]
