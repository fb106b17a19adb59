"""Finds the position of a commit time in the source's binlog, by the rules of `time_position`. Also finds the last end of a transaction up
to an offset, and the statements and XA commits of an interval.

First finds the file in which to search, or takes the file that the caller names. Then reads the binlog from there on, over a separate
connection, without decoding rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable

import numpy as np

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.contracts import Block, LoggedStatement
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.limits import COMMITS_DISORDER_SECONDS
from sluice.cdc_engine.parser.positions.binlog_files import ReadableFiles
from sluice.cdc_engine.parser.positions.time_position import (
    CreationTimeRequest,
    Gone,
    Within,
    file_of_time,
    first_at_or_after,
)
from sluice.cdc_engine.parser.start_position import FIRST_EPOCH, FIRST_OFFSET, DumpStart, StartChoice
from sluice.cdc_engine.parser.stream.dump import NoHistory, UnwantedRows, no_table
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.time_text import SECOND_US

# Transactions that commit at the same time may have another order on another server. So the interval of `interval_of` ends at the last
# commit that is at most this many µs after its `time_us`.
LATE_US = SECOND_US


def choice_at(files: ReadableFiles, time_us: int, file: str = "") -> StartChoice:
    """Returns the position before the first transaction that committed at `time_us` or later, or the end of the binlog if there is no such
    transaction. If `file` is given, only this file is searched.

    Raises PositionLostError if the binlog of this time was purged. The message names the earliest time that can be read. Also raises
    SourceConnectionError, and BinlogFormatError if the binlog cannot be parsed.
    """
    found = Within(file=file) if file else find_file(files, time_us)
    if isinstance(found, Gone):
        raise PositionLostError(f"{files.origin}: {found}")
    return _start_within(files, found.file, functools.partial(_first_of_time, time_us, file))


def last_end_up_to(files: ReadableFiles, file: str, offset: int) -> StartChoice:
    """Returns the end of the last transaction that ends at `offset` of `file` or before. Returns the beginning of the file if no
    transaction in it ends there or before.
    """

    def first_after(block: Block) -> int:
        if block.file != file:
            return 0
        after = block.transaction_end > offset
        return int(np.argmax(after)) if after.any() else -1

    return _start_within(files, file, first_after)


@dataclasses.dataclass(kw_only=True)
class SearchedInterval:
    """The statements and XA commits in the binlog from a position up to a time. `reached` tells whether the binlog has a commit at that
    time or later. `statements` are the DDL statements. `commits` are the names of the XA transactions that were committed in the interval
    but prepared before the interval.
    """

    reached: bool = False
    statements: list[LoggedStatement] = dataclasses.field(default_factory=list)
    commits: list[str] = dataclasses.field(default_factory=list)


def read_again(files: ReadableFiles, begin: StartChoice, time_us: int) -> SearchedInterval:
    """Returns the statements and XA commits in the binlog from `begin` up to `time_us`. Called before a stream without GTIDs continues on
    another server. The stream would read this interval twice, so the caller checks whether the interval can be applied twice.

    The search ends only at a block whose commits are all more than COMMITS_DISORDER_SECONDS after `time_us`, because commit times in the
    binlog are not in exact order.
    """
    prepared = _PreparedBefore()
    return interval_of(blocks_without_rows(files, begin.file, begin.offset, prepared), prepared.commits, time_us)


def interval_of(blocks: Iterable[Block], commits: list[str], time_us: int) -> SearchedInterval:
    """Returns the DDL statements and XA commits of `blocks` up to the block with the last commit whose time is at most `time_us` plus
    LATE_US. Only their order in the binlog counts, because a statement may have a later time than a commit that follows it.

    `commits` is the list `_PreparedBefore.commits`. The scan of a block appends to this list the names of XA transactions that were
    committed in the block, and prepared before the first block. After each block, this function empties the list.
    """
    interval, later = SearchedInterval(), SearchedInterval()
    for block in blocks:
        later.statements += [block.statement] if block.statement is not None else []
        later.commits += commits
        commits.clear()
        times = block.transaction_time_us[block.transaction_time_us > 0]
        if not len(times):
            continue
        if times.min() <= time_us + LATE_US:
            interval.statements += later.statements
            interval.commits += later.commits
            later = SearchedInterval()
        interval.reached = interval.reached or first_at_or_after(times, time_us) >= 0
        if times.min() > time_us + COMMITS_DISORDER_SECONDS * SECOND_US:
            break
    return interval


class _PreparedBefore(UnwantedRows):
    """Records the XA transactions whose XA COMMIT is in the interval and whose XA PREPARE is before the interval."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[str] = []

    def commit(self, name: str, order_key: int) -> Content:
        if name not in self._prepared:
            self.commits.append(name)
        return super().commit(name, order_key)


def _first_of_time(time_us: int, only: str, block: Block) -> int:
    """Returns the index of a block's first transaction that committed at `time_us` or later, or -1 if there is none. If `only` names a
    file, returns 0 for a block after this file, so that the search ends there.
    """
    return 0 if only and block.file != only else first_at_or_after(block.transaction_time_us, time_us)


def earliest_on_offer(files: ReadableFiles) -> tuple[int, str]:
    """Returns the earliest time whose binlog can be read, in µs since 1970, and the file that begins at this time. Returns (0, "") if no
    file can be read.
    """
    for log in files.logs:
        if created := files.created(log.file):
            whole = files.nothing_purged and log is files.logs[0]
            found = file_of_time(0, (log.file,), {log.file: created}, nothing_purged=whole)
            return (found.earliest_us, log.file) if isinstance(found, Gone) else (0, log.file)
    return 0, ""


def reach_back(files: ReadableFiles, time_us: int) -> None:
    """Fetches older files into the archive, back to a time, if conf/ has a command that fetches files. Raises SourceConnectionError if the
    command fails.
    """
    files.reach(lambda oldest: (files.created(oldest) + 1) * SECOND_US <= time_us)


def find_file(files: ReadableFiles, time_us: int) -> Within | Gone:
    """Returns the binlog file in which to search for a time, or `Gone` if the binlog of this time was purged or cannot be read. Opens one
    connection for each creation time that it reads from the server. Raises SourceConnectionError if a connection fails, and
    PositionLostError if an archived file is from another server.
    """
    created: dict[str, int] = {}
    names = [log.file for log in files.logs]
    while True:
        found = file_of_time(time_us, names, created, nothing_purged=files.nothing_purged)
        if not isinstance(found, CreationTimeRequest):
            return found
        created[found.file] = files.created(found.file)


def _start_within(files: ReadableFiles, file: str, first_after: Callable[[Block], int]) -> StartChoice:
    """Returns the position before the first transaction that `first_after` selects, or the end of the binlog. `first_after` returns the
    index of the selected transaction in a block, or -1 if the block has none.
    """
    position = StartChoice(file=file, offset=FIRST_OFFSET)
    for block in blocks_without_rows(files, file, FIRST_OFFSET):
        if not block.transaction_count:
            continue
        index = first_after(block)
        if index == 0:
            return StartChoice(
                file=position.file, offset=position.offset, executed=position.executed or block.start_gtid_set
            )
        position = choice_after(block, (index if index > 0 else block.transaction_count) - 1)
        if index > 0:
            return position
    return position


def blocks_without_rows(
    files: ReadableFiles, file: str, offset: int, prepared: UnwantedRows | None = None
) -> Generator[Block]:
    """Yields the blocks from an offset of a file to the end of the binlog, without row events."""
    begin = Position(epoch=FIRST_EPOCH, file=file, offset=offset, server_uuid=files.facts.server_uuid)
    start = DumpStart(position=begin, by_gtid=False, executed_known=False)
    yield from files.blocks(start, NoHistory(), no_table, prepared or UnwantedRows())


def choice_after(block: Block, transaction: int) -> StartChoice:
    """Returns the position at the end of a block's transaction."""
    end = end_position(block, transaction)
    return StartChoice(file=end.file, offset=end.offset, executed=end.gtid_set)
