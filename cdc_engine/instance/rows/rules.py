"""Decides what a backfill or a repair may do. Pure functions: `interval` collects the facts.

A backfill corrects the rows of the keys that changed in the requested interval. Each row gets the values that it has after its last change
in the binlog that was read. A repair corrects the rows of the keys that it is given. Both read the binlog at least up to the lake's
position, except a backfill that builds a past state as a separate table. A backfill or a repair of a table is possible only if the server
still has a row event for every change of the table's rows, and if one schema is valid for all these events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.gtid import GtidSet, named_transactions
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.position import Position, file_number
from sluice.cdc_engine.time_text import time_text

SHOWN_STATEMENTS = 3
SNAPSHOT_WAY = "re-snapshot the table with `sluice snapshot start`"
# Values for estimates, measured on 2 processors: the shortest time of a merge of one table, and the time that each change adds, in seconds.
MERGE_SECONDS_A_TABLE, MERGE_SECONDS_A_CHANGE = 4.0, 30e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestedInterval:
    """The part of the binlog that an operator requests: the interval [from_us, to_us) in µs since 1970, or the transactions of the GTID set
    `gtids`. If `to_us` is None, the interval ends at the end of the binlog. `tables` are "database.table" names; an empty tuple means all
    captured tables.

    With `all_or_none`, the whole request fails if a named table is refused; without `all_or_none`, only the refused table is left out.
    `archive` names binlog files that are read instead of the source. `schemas` is a file with schemas; None means the destination's schema
    history. With `past`, the request builds a separate table with the rows as they were at the interval's end (`--into`). So the interval
    need not reach the lake's position. If the request is for all changes that one run merged, `between` has the positions where these
    changes begin and end. If the binlog files of these positions are gone or belong to another epoch, the times are used instead.
    """

    from_us: int
    to_us: int | None = None
    gtids: str = ""
    tables: tuple[str, ...] = ()
    all_or_none: bool = True
    archive: str = ""
    schemas: Path | None = None
    past: bool = False
    between: tuple[Position, Position] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The facts about a table that decide whether a backfill or repair refuses it. `known` is False if the table's columns at the lake's
    position are unknown. `stop` is the state in which the table stopped, and `snapshot` the state of its open snapshot; both may be empty.
    `follows` is True if foreign keys change the table's rows without row events.

    `statements` are the statements in the interval that concern the table, with their positions. `unread` says why the table's rows cannot
    be decoded. With `partial`, its row images lack columns. With `quarantined`, some of its values cannot be decoded. `unlike` is the
    requested schema file if the table's columns in this file differ from its columns at the lake's position. `raised` is the error that
    occurred when the facts were collected; the other facts are then missing.
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
    current_state: bool = True
    unlike: str = ""
    raised: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusalAdvice:
    """The advice in messages about refused tables. `again` is the advice if the interval has DDL statements, or rows that cannot be
    decoded. `partial` is the advice if row images lack columns; it is empty, or ends with ", or ".
    """

    again: str
    partial: str = ""


BACKFILL_ADVICE = RefusalAdvice(again="take a later --from")
REPAIR_ADVICE = RefusalAdvice(
    again="start the repair again", partial="start the repair again when less is written to the table, or "
)
# (condition, message of the refusal). The first condition that is true for a table gives the message. The fields in braces are filled from
# the table's facts and the advice.
REFUSALS: tuple[tuple[Callable[[TableFacts], object], str], ...] = (
    (lambda table: table.raised, "the schema and settings of the table could not be read ({raised}): {instead}"),
    (lambda table: table.stop, "the table has stopped ({stop}): resume the table first, or {instead}"),
    (
        lambda table: table.snapshot,
        "a snapshot of the table is {snapshot} and reads all rows again: wait until the snapshot ends, or cancel it",
    ),
    (
        lambda table: not table.known,
        (
            "the columns of the table at the lake's position are unknown, because the engine has read no change "
            "of the table yet"
        ),
    ),
    (
        lambda table: not table.current_state,
        (
            "the table has no current-state table whose rows could be corrected, and its change log and "
            "history accept each change only once; {instead}"
        ),
    ),
    (lambda table: not table.key, "the table has no key, so its rows cannot be identified; {instead}"),
    (lambda table: table.follows, "foreign keys change rows of the table without row events; {instead}"),
    (
        lambda table: table.statements,
        (
            "the interval has DDL statements on the table, or changes of rows that the source logged as statements "
            "({shown}): {again}, or {instead}"
        ),
    ),
    (
        lambda table: table.unlike,
        (
            "the columns of the table in {unlike} differ from its columns at the lake's position, and no "
            "statement of the interval changed them: name a newer file in --schemas, or leave out --schemas"
        ),
    ),
    (lambda table: table.unread, "{unread}: {again}, or {instead}"),
    (
        lambda table: table.partial,
        "row images of the table lack columns (binlog_row_image is not FULL): {partial_advice}{instead}",
    ),
    (lambda table: table.quarantined, "values of the table cannot be decoded: {instead}"),
)


def refusal(table: TableFacts, advice: RefusalAdvice = BACKFILL_ADVICE) -> str:
    """Returns why a table is refused and what to do instead, or an empty text if it is not refused."""
    found = next((sentence for is_met, sentence in REFUSALS if is_met(table)), "")
    shown = "; ".join(table.statements[:SHOWN_STATEMENTS]) + (" …" if len(table.statements) > SHOWN_STATEMENTS else "")
    facts = dataclasses.asdict(table)
    return found.format(**facts, shown=shown, again=advice.again, partial_advice=advice.partial, instead=SNAPSHOT_WAY)


def with_other_columns(versions: Mapping[str, TableVersion], known: Mapping[str, TableVersion]) -> frozenset[str]:
    """Returns the tables ("database.table") that are in both `versions` and `known` with different columns."""
    return frozenset(
        name for name, each in versions.items() if name in known and _columns(each) != _columns(known[name])
    )


def _columns(version: TableVersion) -> list[tuple[str, int]]:
    return [(column.name, column.type_code) for column in version.columns if column.generated not in HIDDEN]


def check_request(request: RequestedInterval, now_us: int) -> None:
    """Raises ConfigurationError if the requested interval is empty, or begins after the present time `now_us` (µs since 1970)."""
    if request.to_us is not None and request.to_us <= request.from_us:
        raise ConfigurationError(f"--to {time_text(request.to_us)} is not after --from {time_text(request.from_us)}")
    if request.from_us > now_us:
        raise ConfigurationError(f"--from {time_text(request.from_us)} is in the future")


def transactions_of(request: RequestedInterval, facts: ServerFacts) -> GtidSet:
    """Returns the transactions that a request names by GTID. Raises ConfigurationError if the source has no GTIDs, or if the text is not a
    GTID set.
    """
    # Accepts facts from an archive if they have an executed set. Such facts have no server settings, but the set proves that the source has
    # GTIDs.
    if not (facts.gtid_enabled or facts.executed):
        raise ConfigurationError(
            "--gtids: the source has no GTIDs (gtid_mode is not ON); name times with --from and --to"
        )
    kind = "MariaDB" if facts.mariadb else "MySQL"
    form = "0-1-20,0-1-21" if facts.mariadb else "UUID:5-7:9"
    try:
        found = named_transactions(request.gtids, mariadb=facts.mariadb)
    except ValueError as error:
        raise ConfigurationError(
            f"--gtids: {error}; the source is a {kind} server, whose GTID sets have the form {form}"
        ) from None
    if not found:
        raise ConfigurationError(f"--gtids {request.gtids!r} names no transaction; write GTIDs in the form {form}")
    return found


def chosen(request: RequestedInterval, captured: Sequence[str]) -> tuple[str, ...]:
    """Returns the requested tables, or all captured tables if the request names none. Raises ConfigurationError if a requested table is not
    captured.
    """
    unknown = sorted(set(request.tables) - set(captured))
    if unknown:
        raise ConfigurationError(
            f"the tables {', '.join(unknown)} are not captured; captured tables: {', '.join(captured) or 'none yet'}"
        )
    return request.tables or tuple(captured)


def check_source(destination: str, cursor: Position | None, server_uuid: str) -> Position:
    """Checks that the source, whose uuid is `server_uuid`, is the server of the cursor, and returns the cursor. Raises ActRefusedError if
    the destination has no cursor, or if its cursor belongs to another server.
    """
    if cursor is None:
        raise ActRefusedError(f"{destination} has no position yet: start the engine with `sluice up`, then try again")
    if cursor.server_uuid not in ("", server_uuid):
        raise ActRefusedError(
            f"{destination} is connected to the server {server_uuid}, but the cursor is still in the binlog "
            f"of the server {cursor.server_uuid}: try again when the cursor has reached the new server's "
            "binlog"
        )
    return cursor


def check_reaches(request: RequestedInterval, read_to: Position, lake: Position) -> None:
    """Raises ActRefusedError if the requested archive ends (`read_to`) before the lake's position `lake`, because the corrected rows would
    then lack the changes after the archive's end. Accepts a request that builds a past state, which is a separate table.
    """
    if request.archive and not request.past and read_to.order_key < lake.order_key:
        raise ActRefusedError(
            f"the archive {request.archive} ends at {read_to}, before the position of the lake, {lake}, so the changes "
            "between these positions would be missing: put the later binlog files into the archive, or build a past state as a separate "
            "table with --into"
        )


def files_between(logs: Sequence[BinaryLog], begin: Position, end: Position) -> tuple[list[str], int]:
    """Returns the names of the binlog files from that of `begin` to that of `end`, and the number of bytes between the positions."""
    first, last = file_number(begin.file), file_number(end.file)
    found = [log for log in logs if first <= file_number(log.file) <= last]
    size_bytes = sum(end.offset if log.file == end.file else log.size_bytes for log in found)
    return [log.file for log in found], max(0, size_bytes - (begin.offset if found else 0))


def scaled(count: int, read_bytes: int, all_bytes: int) -> int:
    """Extrapolates a number that was counted in `read_bytes` of the interval to the whole interval of `all_bytes`."""
    return count if read_bytes <= 0 or read_bytes >= all_bytes else round(count * all_bytes / read_bytes)


def seconds_expected(read_bytes: int, read_seconds: float, all_bytes: int, tables: int, changes: int) -> float:
    """Estimates how many seconds a backfill takes: reading the interval of `all_bytes` at the rate of `read_bytes` in `read_seconds`, and
    merging `changes` changes into `tables` tables.
    """
    reading = all_bytes * read_seconds / read_bytes if read_bytes else 0.0
    return reading + tables * MERGE_SECONDS_A_TABLE + changes * MERGE_SECONDS_A_CHANGE
