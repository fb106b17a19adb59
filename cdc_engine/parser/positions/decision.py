"""Decides where a stream begins, from the saved cursor, the requested position and the server's facts. Does no I/O. Called when a
destination starts, and by `sluice position set`.

A requested time, and a requested offset that may be inside a transaction, need a search of the binlog. For these requests, the decision is
a search request, and `finding` executes the search. `start_position` decides all other cases.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import (
    FIRST_OFFSET,
    NO_EPOCHS,
    DumpStart,
    Epochs,
    Lost,
    StartChoice,
    decide_start,
    file_gap,
)
from sluice.cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestedPosition:
    """The start position that conf/ or an operator requests. If no field is set, the latest position is requested.

    - `file` alone: the file's beginning. With `offset`: this offset in the file, which may be inside a transaction.
    - `gtid_set`: the position after the transactions of this set. Ignored if `file` is set.
    - `time_us`: the first commit at this time or later, in all files or only in `file`.
    - `earliest`: the beginning of the oldest existing file.
    """

    file: str = ""
    offset: int | None = None
    gtid_set: str = ""
    time_us: int | None = None
    earliest: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfTime:
    """A request to search for the position before the first transaction that committed at `time_us` or later. If `file` is given, only
    this file is searched.
    """

    time_us: int
    file: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeginOf:
    """A request to search for the end of the last transaction that ends at `offset` or before. If the offset is inside a transaction, the
    result is the beginning of this transaction.
    """

    file: str
    offset: int


Decision = DumpStart | Lost | OfTime | BeginOf


def decide(
    cursor: Position | None, wanted: RequestedPosition, facts: ServerFacts, epochs: Epochs = NO_EPOCHS
) -> Decision:
    """Decides where a stream begins. A cursor takes precedence over `wanted`. Raises ConfigurationError if a GTID set cannot be parsed."""
    if cursor is not None:
        return decide_start(cursor, StartChoice(), facts, epochs)
    if wanted.time_us is not None:
        gap = file_gap(wanted.file, FIRST_OFFSET, facts) if wanted.file else None
        return gap or OfTime(time_us=wanted.time_us, file=wanted.file)
    if wanted.file and (wanted.offset or 0) > FIRST_OFFSET:
        return file_gap(wanted.file, wanted.offset or 0, facts) or BeginOf(file=wanted.file, offset=wanted.offset or 0)
    if wanted.earliest and not facts.logs:
        return Lost(
            reason="the server does not list its binlog files, so the earliest position is unknown",
            options=("check log_bin and the grant REPLICATION CLIENT",),
        )
    return decide_start(None, exact_choice(wanted, facts), facts, epochs)


def exact_choice(wanted: RequestedPosition, facts: ServerFacts) -> StartChoice:
    """Returns the start for a request that needs no search of the binlog. For the latest position, returns a `StartChoice` without values,
    because only the server knows this position.
    """
    if wanted.earliest:
        return StartChoice(file=facts.logs[0].file if facts.logs else "")
    return StartChoice(file=wanted.file, gtid_set="" if wanted.file else wanted.gtid_set)
