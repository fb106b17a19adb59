"""Where a stream begins, every branch of it: one pure decision over the saved cursor, what is wanted, and what the server says.

`start_position` knows what a cursor or an exact place means on a server. Here is what comes before that: a place that must be looked for
in the binlog first. `finding` looks; asked by `wiring` when a destination begins, and by `sluice position set`.
"""

from __future__ import annotations

import dataclasses

from cdc_engine.parser.server_facts import ServerFacts
from cdc_engine.parser.start_position import (
    FIRST_OFFSET,
    NO_EPOCHS,
    DumpStart,
    Epochs,
    Lost,
    StartChoice,
    decide_start,
    file_gap,
)
from cdc_engine.position import Position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What conf/ or an operator says of a place; all empty: the latest.

    `file` alone: its begin. `offset`: in it, also inside a transaction. `time_us`: of all files, or of `file` alone. `earliest`: the oldest
    file there is.
    """

    file: str = ""
    offset: int | None = None
    gtid_set: str = ""
    time_us: int | None = None
    earliest: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfTime:
    """Look for the place before the first transaction that committed then or later; `file`: in this one alone."""

    time_us: int
    file: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeginOf:
    """Look for the end of the last transaction up to an offset: whoever names a place inside one gets its begin."""

    file: str
    offset: int


Decision = DumpStart | Lost | OfTime | BeginOf


def decide(cursor: Position | None, wanted: Wanted, facts: ServerFacts, epochs: Epochs = NO_EPOCHS) -> Decision:
    """A cursor counts, whatever is wanted. Raises ConfigurationError where a GTID set cannot be read."""
    if cursor is not None:
        return decide_start(cursor, StartChoice(), facts, epochs)
    if wanted.time_us is not None:
        gap = file_gap(wanted.file, FIRST_OFFSET, facts) if wanted.file else None
        return gap or OfTime(time_us=wanted.time_us, file=wanted.file)
    if wanted.file and (wanted.offset or 0) > FIRST_OFFSET:
        return file_gap(wanted.file, wanted.offset or 0, facts) or BeginOf(file=wanted.file, offset=wanted.offset or 0)
    if wanted.earliest and not facts.logs:
        return Lost(
            reason="the server does not list its binlog files, so nobody knows the earliest place",
            options=("check log_bin and the grant REPLICATION CLIENT",),
        )
    return decide_start(None, exact_choice(wanted, facts), facts, epochs)


def exact_choice(wanted: Wanted, facts: ServerFacts) -> StartChoice:
    """Of what needs no search; empty for the latest place, which is another a moment later."""
    if wanted.earliest:
        return StartChoice(file=facts.logs[0].file if facts.logs else "")
    return StartChoice(file=wanted.file, gtid_set="" if wanted.file else wanted.gtid_set)
