"""Reads binlog files from an archive without a connection to the server, up to the last complete transaction of the newest file. Backfills
with `--archive` use it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Generator

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.gtid import has_executed
from sluice.cdc_engine.parser.positions.binlog_files import archived_before
from sluice.cdc_engine.parser.positions.time_search import last_end_up_to
from sluice.cdc_engine.parser.renumbering import base
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import FIRST_OFFSET, DumpStart, StartChoice
from sluice.cdc_engine.parser.stream.archived import ArchivedInterval
from sluice.cdc_engine.parser.stream.archived_file import file_named, foreign, read_header
from sluice.cdc_engine.parser.stream.dump import Captured
from sluice.cdc_engine.ports import PreparedTransactions, SchemaHistory
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.source.archive import Archive


class ArchiveAlone:
    """The binlog files of an archive, which are read without a server (implements `ReadableFiles`). `logs` are the newest file and the
    files directly before it, up to the first gap, with their sizes in the archive.

    If the newest file was copied while the server wrote it, the copy may end within a transaction. The blocks then end before that
    transaction.
    """

    def __init__(self, archive: Archive, facts: ServerFacts, lacks: str) -> None:
        """Uses the files `facts.logs` of an archive. If the archive also has older files, `lacks` is the name of the missing file directly
        before `facts.logs`. Otherwise, `lacks` is empty.
        """
        self._archive, self._lacks = archive, lacks
        self.facts, self.logs = facts, facts.logs
        self.bytes_read = 0

    @property
    def origin(self) -> str:
        return f"the archive {self._archive.location}" + (f" (which lacks {self._lacks})" if self._lacks else "")

    @property
    def nothing_purged(self) -> bool:
        """Whether no earlier file of this binlog was purged. This is true if the oldest file has the number 1."""
        return file_number(self.logs[0].file) == 1

    def bound(self, epoch: int) -> Position:
        """Returns the end of the last complete transaction. The newest file may end with a part of another transaction."""
        return Position(epoch=epoch, file=self.facts.file, offset=self.facts.offset)

    def created(self, file: str) -> int:
        """Returns the creation time of a file in seconds since 1970. Raises PositionLostError if the file was written by another server."""
        with self._archive.open(file) as stream:
            header = read_header(stream, file)
        if why := foreign(header, file, 0, self.facts):
            raise PositionLostError(f"{why}: remove this file from the archive {self._archive.location}")
        return header.created

    def reach(self, is_enough: Callable[[str], bool]) -> None:
        """Does nothing, because there is no server whose older files could be fetched."""

    def blocks(
        self, start: DumpStart, history: SchemaHistory, captured: Captured, prepared: PreparedTransactions
    ) -> Generator[Block]:
        """Yields the blocks from `start` to the end of the archive. Raises PositionLostError if the archive lacks the file of `start`, and
        BinlogFormatError if the files cannot be parsed.
        """
        names = [log.file for log in self.logs]
        if start.position.file not in names:
            raise PositionLostError(
                f"{self.origin} does not have the binlog file {start.position.file}: copy the file into the archive"
            )
        files = tuple(names[names.index(start.position.file) :])
        interval = ArchivedInterval(self._archive, start.position, self.facts, files)
        scanner = interval.scanner(history, captured, prepared, executed_known=start.executed_known)
        for block in interval.blocks(scanner):
            self.bytes_read += block.byte_count
            yield block


def archive_alone(archive: Archive, cursor: Position) -> ArchiveAlone:
    """Returns the files of an archive that belong to the binlog of `cursor`. Reads the newest file to find the end of its last transaction.

    Raises PositionLostError if the archive has no such files, or if its files belong to another binlog. The creation time of the cursor's
    file proves to which binlog the files belong. If the archive lacks that file, or the time is unknown, the creation times of other files
    and GTIDs prove it.
    """
    sizes = {file: size for file, size in archive.sizes().items() if base(file) == base(cursor.file)}
    if not sizes:
        raise PositionLostError(
            f"the archive {archive.location} has no file {base(cursor.file)}.NNNNNN: correct the archive's location in conf/"
        )
    ordered = [BinaryLog(file=file, size_bytes=sizes[file]) for file in sorted(sizes, key=file_number)]
    newest = ordered[-1]
    logs = (*archived_before(ordered, newest.file), newest)
    oldest = logs[0].file
    lacks = file_named(oldest, file_number(oldest) - 1) if len(logs) < len(ordered) else ""
    with archive.open(newest.file) as stream:
        header = read_header(stream, newest.file)
    mariadb = "mariadb" in header.version.lower()
    facts = ServerFacts(
        version=header.version,
        mariadb=mariadb,
        server_uuid=f"mariadb-{header.server_id}" if mariadb else cursor.server_uuid,
        gtid_enabled=False,
        file=newest.file,
        logs=logs,
        variables={"server_id": str(header.server_id)},
    )
    is_comparable = cursor.file in sizes and bool(cursor.file_created)
    if is_comparable:
        with archive.open(cursor.file) as stream:
            why = foreign(read_header(stream, cursor.file), cursor.file, cursor.file_created, facts)
        if why:
            raise _other_binlog(archive, why)
    elif why := created_out_of_order(newest.file, header.created, cursor):
        raise _other_binlog(archive, why)
    end = _end_of(ArchiveAlone(archive, facts, lacks))
    if not is_comparable and (why := executed_elsewhere(newest.file, header.created, end.executed, cursor)):
        raise _other_binlog(archive, why)
    return ArchiveAlone(
        archive, dataclasses.replace(facts, file=end.file, offset=end.offset, executed=end.executed), lacks
    )


def _end_of(files: ArchiveAlone) -> StartChoice:
    """Returns the end of the last complete transaction in the newest file, with the executed set. If the newest file has no complete
    transaction, returns the beginning of this file, with the executed set at the end of the earlier files.
    """
    newest = files.facts.file
    end = last_end_up_to(files, newest, sys.maxsize)
    for log in reversed(files.logs[:-1]):
        if end.executed or end.offset > FIRST_OFFSET:
            break
        end = last_end_up_to(files, log.file, sys.maxsize)
    return end if end.file == newest else StartChoice(file=newest, offset=FIRST_OFFSET, executed=end.executed)


def created_out_of_order(file: str, created: int, cursor: Position) -> str:
    """Returns a sentence that explains why a file with the creation time `created` cannot belong to the cursor's binlog, or "" if it can.
    `created` is in seconds since 1970.
    """
    earlier = file_number(file) < file_number(cursor.file)
    if cursor.file_created and (created > cursor.file_created if earlier else created < cursor.file_created):
        order = "after" if earlier else "before"
        return f"{file} was created {order} {cursor.file}, in which the lake's position is"
    return ""


def executed_elsewhere(file: str, created: int, executed: str, cursor: Position) -> str:
    """Returns a sentence that explains why the newest file of an archive may belong to another binlog than the cursor. Returns "" if the
    file and the cursor belong to the same binlog. `executed` is the executed set at the end of the file.

    GTIDs decide if they are known: in one binlog, the executed set at a later position contains the executed set at an earlier position.
    Without GTIDs, it is sufficient that the creation times of the file and of the cursor's file are known, because `created_out_of_order`
    has compared these times.
    """
    both = (executed, cursor.gtid_set) if file_number(file) < file_number(cursor.file) else (cursor.gtid_set, executed)
    if all(both):
        earlier, later = both
        return (
            ""
            if has_executed(later, earlier)
            else f"the GTIDs up to the end of {file} contradict the lake's position {cursor}"
        )
    if created and cursor.file_created:
        return ""
    return (
        "Sluice cannot verify that the archive is of this server, because neither GTIDs nor creation times show whether "
        f"{file} and {cursor.file} belong to the same binlog"
    )


def _other_binlog(archive: Archive, why: str) -> PositionLostError:
    return PositionLostError(
        f"{why}: {archive.location} may be the archive of another server, or from before RESET MASTER. If the "
        "archive is of this server, copy the file of the lake's position into the archive"
    )
