"""Reads archived binlog files: the files that a server has purged or, if there is no connection to the server, all files of an archive.

Before the rows of a file are used, these values of the file are compared with the server: the server id, the creation time and, with GTIDs,
the executed set before the file. If a file belongs to another server, or is missing and conf/ has no command that fetches it, an error
names this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from sluice.cdc_engine.binlog.events.control import parse_format_description
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.parser.file_creation import creation_of
from sluice.cdc_engine.parser.renumbering import base
from sluice.cdc_engine.parser.scan.scanner import Scanner, StreamForm
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import FIRST_OFFSET, RESNAPSHOT, Lost
from sluice.cdc_engine.parser.stream.archived_file import (
    file_blocks,
    file_named,
    foreign,
    is_closed,
    read_header,
    require_whole_file,
)
from sluice.cdc_engine.parser.stream.dump import Captured
from sluice.cdc_engine.ports import PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source


def files_between(
    cursor: Position, archived: tuple[str, ...], facts: ServerFacts, location: str, *, can_fetch: bool = False
) -> tuple[str, ...] | Lost:
    """Returns the archived files from the cursor's file up to the file before the server's first one. Returns `Lost` if one of these files
    is missing, or if the server's first file is not a later file of the same binlog. With `can_fetch`, missing files are returned too,
    because they can be fetched.
    """
    first = facts.logs[0].file if facts.logs else ""
    kin = {file_number(each): each for each in archived if base(each) == base(cursor.file)}
    wanted = (
        range(file_number(cursor.file), file_number(first)) if first and base(first) == base(cursor.file) else range(0)
    )
    if can_fetch:
        kin = {number: file_named(first, number) for number in wanted} | kin
    lacking = [number for number in wanted if number not in kin]
    if not wanted or lacking:
        what = (
            f"the file with number {lacking[0]} of {base(cursor.file)}"
            if lacking
            else f"the files between {cursor.file} and {first or 'the first file of the server'}"
        )
        return Lost(
            reason=f"the server has purged the binlog after {cursor}, and the archive {location} lacks {what}",
            options=("copy the missing binlog files into the archive", RESNAPSHOT),
        )
    return tuple(kin[number] for number in wanted)


def _never() -> bool:
    return False


def fetch(archive: Archive, file: str, facts: ServerFacts, given_up: Callable[[], bool] = _never) -> None:
    """Fetches a file that the archive lacks, with the command in conf/. Stores the file in the archive if the file is complete and belongs
    to this server.

    Raises SourceConnectionError if the command fails or the file is refused, and InterruptedError if `given_up` canceled the command.
    """
    proven = facts.gtid_enabled and not facts.mariadb
    archive.fetch(file, lambda stream: require_whole_file(stream, file, facts, proven=proven), given_up)


class ArchivedInterval:
    """The part of a binlog from a cursor to the end of some archived files. `files` are oldest first, without a gap. `following` is the
    name of the file after the last file, by which the end of the last file is checked. If the last file may have been copied while the
    server wrote it, `following` is empty.
    """

    def __init__(
        self,
        archive: Archive,
        cursor: Position,
        facts: ServerFacts,
        files: tuple[str, ...],
        *,
        following: str = "",
        given_up: Callable[[], bool] = _never,
    ) -> None:
        self.files, self._archive, self._cursor, self._facts = files, archive, cursor, facts
        self._following, self._given_up = following, given_up

    @classmethod
    def before_server(
        cls, archive: Archive, cursor: Position, facts: ServerFacts, given_up: Callable[[], bool] = _never
    ) -> ArchivedInterval:
        """Returns the archived interval between a cursor and the server's first file. Raises PositionLostError if a file between them is
        missing.
        """
        found = files_between(cursor, archive.files(), facts, archive.location, can_fetch=archive.can_fetch)
        if isinstance(found, Lost):
            raise PositionLostError(str(found))
        return cls(archive, cursor, facts, found, following=facts.logs[0].file, given_up=given_up)

    def scanner(
        self,
        history: SchemaHistory,
        captured: Captured,
        prepared: PreparedTransactions,
        *,
        executed_known: bool,
        rows_queries: bool = False,
    ) -> Scanner:
        """Returns a scanner that begins at the cursor and expects events as binlog files contain them, without packet headers."""
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
        """Yields the blocks of the archived files, from the cursor on. Fetches the files that the archive lacks. Raises PositionLostError
        for an incomplete file or a file of another server, BinlogFormatError if a file cannot be parsed, SourceConnectionError if a file
        cannot be fetched or read, and InterruptedError if `given_up` canceled a fetch.
        """
        newest, checksum = 0, False
        for file in self.files:
            of_cursor = file == self._cursor.file
            if not self._archive.has(file):
                fetch(self._archive, file, self._facts, self._given_up)
            with self._archive.open(file) as stream:
                header = read_header(stream, file)
                why = foreign(header, file, self._cursor.file_created if of_cursor else 0, self._facts)
                if not why and header.created < newest:
                    why = f"the archived {file} was created before the file that precedes it"
                if why:
                    raise PositionLostError(
                        f"{why}: the file is of another server, or from before RESET MASTER. Safe options: "
                        f"copy the source's own file into the archive and start again; {RESNAPSHOT}"
                    )
                newest = header.created
                following = self._after(file)
                ended = yield from file_blocks(
                    scanner,
                    header,
                    stream,
                    file,
                    begin=self._cursor.offset if of_cursor else 0,
                    previous_checksum=checksum,
                    may_be_truncated=not following,
                )
                checksum = parse_format_description(header.description).checksum
                self._require_closed(file, ended, following)

    def _after(self, file: str) -> str:
        return (*self.files, self._following)[self.files.index(file) + 1]

    def _require_closed(self, file: str, ended: bytes, following: str) -> None:
        """Raises PositionLostError if a file does not end with the event with which a server closes a file (ROTATE or STOP). Without this
        event, the file was copied before the server closed it, or the copy is truncated. Nothing is checked if `following` is empty,
        because the file may then be the one that the server was writing. Nothing is checked either on MySQL with GTIDs, because the GTIDs
        of the next file would show a gap.
        """
        proven = bool(self._cursor.gtid_set) and not self._facts.mariadb
        if following and not proven and not is_closed(ended, following):
            raise PositionLostError(
                f"the archived {file} does not end with a ROTATE to {following} or a STOP: the file was "
                "copied before the server closed it, or the copy is truncated. Safe options: put a complete "
                f"copy into the archive; or {RESNAPSHOT}"
            )


def first_of_server(source: Source, facts: ServerFacts, position: Position) -> Position:
    """Returns the position at the beginning of the server's first file, where the server's files continue the archive. All other values,
    such as the executed set, are copied from `position`.
    """
    file = facts.logs[0].file
    return dataclasses.replace(position, file=file, offset=FIRST_OFFSET, file_created=creation_of(source, file))
