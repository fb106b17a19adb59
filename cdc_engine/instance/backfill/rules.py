"""What of a backfill may be done: rules only. `plan` finds out what they want to know.

A backfill reads the binlog from a time on to what the lake has, and gives each key that changed in the interval what its last change says.
So it may be done where every change of the table's rows is in row events that this server has, and one schema holds for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cdc_engine.errors import ActRefusedError, ConfigurationError
from cdc_engine.parser.server_facts import BinaryLog
from cdc_engine.position import Position, file_number
from cdc_engine.time_words import time_text

SHOWN_STATEMENTS = 3
SNAPSHOT_WAY = "take its rows anew with `sluice snapshot start`"
# Rough, of 2 cores, for an estimate alone: a table's merge whatever its size, and what each of its changes adds.
MERGE_SECONDS_A_TABLE, MERGE_SECONDS_A_CHANGE = 4.0, 30e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """[from_us, to_us), µs since 1970; `to_us` None: up to the end. `tables`: "database.table", all that are captured if empty.

    `all_or_none`: a table that was named and is refused fails all; else it is left out.
    """

    from_us: int
    to_us: int | None = None
    tables: tuple[str, ...] = ()
    all_or_none: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What is known of a table. `stop`, `snapshot`: the state it is in, empty where none. `follows`: its rows change with others'.

    `statements`: those of the interval that concern it, each with its place. `unread`: why its rows cannot be decoded. `partial`: images
    lack columns. `quarantined`: values of it could not be decoded. `mirror`: whether the lake has a table with its rows.
    """

    name: str
    key: tuple[str, ...] = ()
    known: bool = True
    stop: str = ""
    snapshot: str = ""
    follows: bool = False
    statements: tuple[str, ...] = ()
    unread: str = ""
    partial: bool = False
    quarantined: bool = False
    mirror: bool = True


Refusals = tuple[tuple[Callable[[TableFacts], object], str], ...]
# The first that is met is told, with what is in braces of the table.
REFUSALS: Refusals = (
    (lambda table: table.stop, "it has stopped ({stop}): resume it first, or {instead}"),
    (
        lambda table: table.snapshot,
        "a snapshot of it is {snapshot}, which takes its rows anew: wait for its end, or cancel it",
    ),
    (lambda table: not table.known, "its columns are not known where the lake is: the engine has not met it yet"),
    (
        lambda table: not table.mirror,
        "it has no mirror, and its log and history take each change once, as it comes; {instead}",
    ),
    (lambda table: not table.key, "it has no key, so nobody can tell whose rows its changes were; {instead}"),
    (lambda table: table.follows, "foreign keys change its rows without row events; {instead}"),
    (
        lambda table: table.statements,
        "statements of the interval concern it ({shown}): take a later --from, or {instead}",
    ),
    (lambda table: table.unread, "{unread}: take a later --from, or {instead}"),
    (lambda table: table.partial, "its row images lack columns (binlog_row_image is not FULL): {instead}"),
    (lambda table: table.quarantined, "values of it cannot be decoded: {instead}"),
)


def refusal(table: TableFacts, refusals: Refusals = REFUSALS) -> str:
    """Why a table cannot be backfilled, and what to do instead; empty where it can."""
    found = next((sentence for is_met, sentence in refusals if is_met(table)), "")
    shown = "; ".join(table.statements[:SHOWN_STATEMENTS]) + (" …" if len(table.statements) > SHOWN_STATEMENTS else "")
    return found.format(**dataclasses.asdict(table), shown=shown, instead=SNAPSHOT_WAY)


def check_asked(asked: Asked, now_us: int) -> None:
    """Raises ConfigurationError for an interval that holds nothing."""
    if asked.to_us is not None and asked.to_us <= asked.from_us:
        raise ConfigurationError(f"--to {time_text(asked.to_us)} is not after --from {time_text(asked.from_us)}")
    if asked.from_us > now_us:
        raise ConfigurationError(f"--from {time_text(asked.from_us)} is in the future")


def chosen(asked: Asked, captured: Sequence[str]) -> tuple[str, ...]:
    """The tables that are meant. Raises ConfigurationError for one that is not captured."""
    unknown = sorted(set(asked.tables) - set(captured))
    if unknown:
        raise ConfigurationError(
            f"{', '.join(unknown)}: not captured; captured are {', '.join(captured) or 'none yet'}"
        )
    return asked.tables or tuple(captured)


def check_source(destination: str, cursor: Position | None, server_uuid: str) -> Position:
    """The cursor, where the binlog of the server is the one that it is of. Raises ActRefusedError."""
    if cursor is None:
        raise ActRefusedError(f"{destination} has not begun yet: `sluice up` starts it, then ask again")
    if cursor.server_uuid not in ("", server_uuid):
        raise ActRefusedError(
            f"{destination} is connected to the server {server_uuid} and stands in the binlog of {cursor.server_uuid}: ask again when "
            "the stream has gone over to the new one"
        )
    return cursor


def files_between(logs: Sequence[BinaryLog], begin: Position, end: Position) -> tuple[list[str], int]:
    """The binlog files from one place to another, and how many bytes lie between the two."""
    first, last = file_number(begin.file), file_number(end.file)
    found = [log for log in logs if first <= file_number(log.file) <= last]
    size_bytes = sum(end.offset if log.file == end.file else log.size_bytes for log in found)
    return [log.file for log in found], max(0, size_bytes - (begin.offset if found else 0))


def scaled(count: int, read_bytes: int, all_bytes: int) -> int:
    """What is expected of all, by what was counted in a part."""
    return count if read_bytes <= 0 or read_bytes >= all_bytes else round(count * all_bytes / read_bytes)


def seconds_expected(read_bytes: int, read_seconds: float, all_bytes: int, tables: int, changes: int) -> float:
    """Reading, at the rate that was measured, and merging."""
    reading = all_bytes * read_seconds / read_bytes if read_bytes else 0.0
    return reading + tables * MERGE_SECONDS_A_TABLE + changes * MERGE_SECONDS_A_CHANGE
