"""The states of an engine and of a table, as values, and what may follow what. Pure; docs/operations.md has a line for each.

`Engine` asks `engine_follows` before it takes a state that it is told; the ledger asks `table_follows` before it gives a stop another
name; the console asks `acts_on` what an operator can do. Spark's jobs name the states of the lake by the same words.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class EngineState(enum.StrEnum):
    """What an engine does, or why it does nothing. Those that end the reading bear the `code` of the error that ended it."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECONNECTING = "RECONNECTING"
    STOPPED = "STOPPED"
    STANDBY = "STANDBY"  #: of a host whose destination another one reads
    STALE = "STALE"  #: as the console sees it: the lease is held, and nobody writes the status
    LEASE_LOST = "LEASE_LOST"
    POSITION_LOST = "POSITION_LOST"
    LEDGER_LOST = "LEDGER_LOST"
    SOURCE_CHECK = "SOURCE_CHECK"
    REPLICA_CLASH = "REPLICA_CLASH"
    #: it could not be started, for the source does not answer; the next tick tries again
    SOURCE_CONNECTION = "SOURCE_CONNECTION"
    UNKNOWN_EVENT = "UNKNOWN_EVENT"
    BINLOG_FORMAT = "BINLOG_FORMAT"
    CHECKSUM = "CHECKSUM"
    CONFIGURATION = "CONFIGURATION"
    NOT_CONTINUOUS = "NOT_CONTINUOUS"
    META = "META"
    STAGING = "STAGING"
    STORE_FULL = "STORE_FULL"
    STORE_DAMAGED = "STORE_DAMAGED"
    STORE_UNFIT = "STORE_UNFIT"
    HANDLER_FAILED = "HANDLER_FAILED"
    ERROR = "ERROR"  #: a defect of Sluice; its log has the trace


_READING = frozenset({EngineState.STARTING, EngineState.RUNNING, EngineState.RECONNECTING})
_FROM_OUTSIDE = frozenset({EngineState.STANDBY, EngineState.STALE})  # never told by the engine itself
ENDED = frozenset(EngineState) - _READING - _FROM_OUTSIDE - {EngineState.STOPPED}
"""Nothing is read until an operator, or the engine itself after a full disk, begins anew."""

_TOLD = frozenset(EngineState) - _FROM_OUTSIDE
ENGINE_TRANSITIONS: Mapping[EngineState, frozenset[EngineState]] = {
    EngineState.STOPPED: _TOLD - {EngineState.RUNNING, EngineState.RECONNECTING},
    EngineState.STARTING: _TOLD,
    EngineState.RUNNING: _TOLD,
    EngineState.RECONNECTING: _TOLD - {EngineState.RUNNING},
    **dict.fromkeys(ENDED, frozenset({EngineState.STARTING, EngineState.STOPPED, EngineState.LEASE_LOST})),
    EngineState.LEASE_LOST: frozenset(),  # another engine takes its place
    EngineState.STANDBY: frozenset({EngineState.STARTING}),
    EngineState.STALE: frozenset({EngineState.RUNNING, EngineState.STOPPED}),
}


def engine_follows(before: EngineState, told: EngineState) -> bool:
    """Whether an engine that is told a state takes it: one that lost its lease keeps saying so, one that ended keeps saying why."""
    return told in ENGINE_TRANSITIONS[before]


def engine_state(word: str) -> EngineState:
    """The state of that name; of an error whose code is none, ERROR."""
    return EngineState.__members__.get(word, EngineState.ERROR)


def ended(state: str) -> bool:
    """Whether an engine in this state reads nothing until its cause is gone. False where another process has the destination."""
    return state in ENDED - {EngineState.LEASE_LOST}


class TableState(enum.StrEnum):
    """Whether a table is followed, or why not."""

    FLOWING = "FLOWING"
    MERGE_FAILED = "MERGE_FAILED"
    TABLE_OWNED = "TABLE_OWNED"
    TABLE_UNOWNED = "TABLE_UNOWNED"
    TABLE_MISSING = "TABLE_MISSING"
    TABLE_RESTORED = "TABLE_RESTORED"
    TABLE_REPLACED = "TABLE_REPLACED"
    TABLE_AHEAD = "TABLE_AHEAD"
    DDL_HELD = "DDL_HELD"
    DDL_REFUSED = "DDL_REFUSED"  #: conf/ says stop
    DDL_UNSUPPORTED = "DDL_UNSUPPORTED"
    ROWS_ELSEWHERE = "ROWS_ELSEWHERE"
    STATEMENT_FORMAT = "STATEMENT_FORMAT"
    NEWLY_INCLUDED = "NEWLY_INCLUDED"
    FAILED_OVER_BY_TIME = "FAILED_OVER_BY_TIME"
    RESUME_LOST = "RESUME_LOST"
    SCHEMA_UNKNOWN = "SCHEMA_UNKNOWN"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    TYPE_UNSUPPORTED = "TYPE_UNSUPPORTED"
    CASCADE = "CASCADE"
    CASCADE_UNSEEN = "CASCADE_UNSEEN"
    KEY_NULL = "KEY_NULL"
    IMAGE_NOT_FULL = "IMAGE_NOT_FULL"
    SNAPSHOT_CANCELED = "SNAPSHOT_CANCELED"
    ROWS_RULE = "ROWS_RULE"  #: its filter or a mask of conf/ does not fit it
    RULES_CHANGED = "RULES_CHANGED"  #: rows that were merged are of another filter, or of other masks


class Act(enum.StrEnum):
    """What an operator can do for a table that stopped; the words of the commands."""

    RESUME = "schema resume"  #: read again from the stop
    APPROVE = "schema approve"  #: a plan for the change that is held
    RESOLVE = "schema resolve"  #: what the table looks like
    ACCEPT = "lake accept"  #: the Delta table as it is


_OF_THE_LAKE = frozenset(
    {
        TableState.TABLE_OWNED,
        TableState.TABLE_UNOWNED,
        TableState.TABLE_MISSING,
        TableState.TABLE_RESTORED,
        TableState.TABLE_REPLACED,
        TableState.TABLE_AHEAD,
    }
)
RESOLVABLE = frozenset({TableState.SCHEMA_UNKNOWN, TableState.SCHEMA_MISMATCH})
# What such a table lacks is in its rows: once they are read anew it goes on. Of other stops the rows would meet the same obstacle again, or
# an operator's word ended the table.
HEALED_BY_ROWS = RESOLVABLE | {
    TableState.DDL_UNSUPPORTED,
    TableState.STATEMENT_FORMAT,
    TableState.CASCADE_UNSEEN,
    TableState.RESUME_LOST,
    TableState.FAILED_OVER_BY_TIME,
    TableState.RULES_CHANGED,
}
_STOPS = frozenset(TableState) - {TableState.FLOWING}
# What such a table lacks is not in the stream after its place: it is not met again there, and waits for an operator.
UNTIL_ASKED = frozenset(
    {
        TableState.NEWLY_INCLUDED,
        TableState.RULES_CHANGED,
        TableState.SNAPSHOT_CANCELED,
        TableState.FAILED_OVER_BY_TIME,
    }
)
TABLE_TRANSITIONS: Mapping[TableState, frozenset[TableState]] = {
    TableState.FLOWING: _STOPS - {TableState.RESUME_LOST},
    # A stop keeps its first reason; taken up again it flows, or what it needs is no longer on the source, or the lake has it by other
    # rules than those that conf/ says by now.
    **dict.fromkeys(_STOPS, frozenset({TableState.FLOWING, TableState.RESUME_LOST, TableState.RULES_CHANGED})),
}


def table_follows(before: TableState, after: TableState) -> bool:
    """Whether a table in one state can be in the other next."""
    return after in TABLE_TRANSITIONS[before]


def acts_on(state: TableState) -> tuple[Act, ...]:
    """What an operator can do about a table in a state, in the order in which it is done; all end with taking it up again."""
    if state == TableState.FLOWING:
        return ()
    if state == TableState.DDL_HELD:
        return (Act.APPROVE, Act.RESUME)
    if state in RESOLVABLE:
        return (Act.RESOLVE, Act.RESUME)
    return (Act.ACCEPT, Act.RESUME) if state in _OF_THE_LAKE else (Act.RESUME,)


def way_out(state: str, destination: str, table: str) -> str:
    """The commands that let a stopped "database.table" go on, as the end of a sentence; empty for what is no stop."""
    acts = acts_on(TableState(state)) if state in TableState.__members__ else ()
    if not acts:
        return ""
    ways = ", then ".join(f"`sluice {act} {destination} {table}`" for act in acts)
    if state in HEALED_BY_ROWS:
        return f"to take its rows anew: `sluice snapshot start {destination} --tables {table}`; when its cause is gone: {ways}"
    return f"to go on when its cause is gone: {ways}"


class SnapshotState(enum.StrEnum):
    """How far the snapshot of a table is. While it is open, changes of the table are held and not merged."""

    WANTED = "WANTED"  #: asked for; nothing is read yet
    READING = "READING"
    READ = "READ"  #: all chunks are whole; the stream has to come past where the source was then
    PUBLISHED = "PUBLISHED"
    FAILED = "FAILED"  #: it does not go on by itself
    CANCELED = "CANCELED"

    @property
    def is_open(self) -> bool:
        return self not in {SnapshotState.PUBLISHED, SnapshotState.CANCELED}


SNAPSHOT_TRANSITIONS: Mapping[SnapshotState, frozenset[SnapshotState]] = {
    SnapshotState.WANTED: frozenset(
        {SnapshotState.WANTED, SnapshotState.READING, SnapshotState.FAILED, SnapshotState.CANCELED}
    ),
    SnapshotState.READING: frozenset(
        {SnapshotState.WANTED, SnapshotState.READ, SnapshotState.FAILED, SnapshotState.CANCELED}
    ),
    SnapshotState.READ: frozenset(
        {SnapshotState.WANTED, SnapshotState.PUBLISHED, SnapshotState.FAILED, SnapshotState.CANCELED}
    ),
    SnapshotState.FAILED: frozenset({SnapshotState.WANTED, SnapshotState.FAILED, SnapshotState.CANCELED}),
    SnapshotState.PUBLISHED: frozenset(),
    SnapshotState.CANCELED: frozenset(),
}


def snapshot_follows(before: SnapshotState, after: SnapshotState) -> bool:
    """Whether a snapshot in one state can be in the other next."""
    return after in SNAPSHOT_TRANSITIONS[before]
