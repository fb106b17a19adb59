"""Defines the states of an engine, a table and a snapshot, and which state can follow which. docs/reference/states.md describes each
state. Pure.

`Engine` checks with `engine_follows` whether it accepts a reported state. The ledger checks with `table_follows` before it changes the
state of a table. The console calls `acts_on` to name the commands with which an operator can resolve a state. Spark jobs use the same names
for the states of lake tables.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Mapping


class EngineState(enum.StrEnum):
    """What an engine does, or why it does not read the binlog. After an error that ended reading, the state is the `code` of the error."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECONNECTING = "RECONNECTING"
    STOPPED = "STOPPED"
    STANDBY = "STANDBY"  #: Another host runs this destination's engine.
    STALE = "STALE"  #: The console reports this state if a process holds the lease but does not write its status.
    LEASE_LOST = "LEASE_LOST"
    POSITION_LOST = "POSITION_LOST"
    LEDGER_LOST = "LEDGER_LOST"
    SOURCE_CHECK = "SOURCE_CHECK"
    REPLICA_CLASH = "REPLICA_CLASH"
    #: The engine could not be started, because the source does not answer. Dagster's next tick starts the engine again.
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
    ERROR = "ERROR"  #: A defect of Sluice. The log has the stack trace.


_READING = frozenset({EngineState.STARTING, EngineState.RUNNING, EngineState.RECONNECTING})
# Only the console reports these states. An engine never reports them.
_NOT_REPORTED = frozenset({EngineState.STANDBY, EngineState.STALE})
ENDED = frozenset(EngineState) - _READING - _NOT_REPORTED - {EngineState.STOPPED}
"""The states in which the engine reads nothing until its parser is started again. After errors that may pass, such as a full disk, the
engine itself starts its parser again (`instance.health.revive_seconds`). After other errors, it waits for a restart.
"""

_REPORTED = frozenset(EngineState) - _NOT_REPORTED
ENGINE_TRANSITIONS: Mapping[EngineState, frozenset[EngineState]] = {
    EngineState.STOPPED: _REPORTED - {EngineState.RUNNING, EngineState.RECONNECTING},
    EngineState.STARTING: _REPORTED,
    EngineState.RUNNING: _REPORTED,
    EngineState.RECONNECTING: _REPORTED - {EngineState.RUNNING},
    **dict.fromkeys(ENDED, frozenset({EngineState.STARTING, EngineState.STOPPED, EngineState.LEASE_LOST})),
    EngineState.LEASE_LOST: frozenset(),  # Final: an engine that lost its lease is replaced by another engine object.
    EngineState.STANDBY: frozenset({EngineState.STARTING}),
    EngineState.STALE: frozenset({EngineState.RUNNING, EngineState.STOPPED}),
}


def engine_follows(before: EngineState, reported: EngineState) -> bool:
    """Returns whether an engine in state `before` may change to the state `reported`. No state follows LEASE_LOST. An engine in another
    state of `ENDED` changes its state only if it starts again, is stopped, or loses its lease.
    """
    return reported in ENGINE_TRANSITIONS[before]


def engine_state(word: str) -> EngineState:
    """Returns the engine state whose name is `word`. Returns ERROR if there is no such state, for example for an error code that is not a
    state.
    """
    return EngineState.__members__.get(word, EngineState.ERROR)


def ended(state: str) -> bool:
    """Returns whether an engine in this state reads nothing until the cause of the state is removed. Returns False for LEASE_LOST, because
    another process runs the destination's engine then.
    """
    return state in ENDED - {EngineState.LEASE_LOST}


# What an operator must do about an engine in each of these states. The messages of the other states already say what to do.
_ENGINE_WAYS_OUT: Mapping[EngineState, str] = {
    EngineState.SOURCE_CHECK: "correct the cause, then `sluice instance restart {}`",
    EngineState.UNKNOWN_EVENT: "to skip the event, run `sluice position set {} FILE:OFFSET` with a position after the event",
    EngineState.BINLOG_FORMAT: "keep the binlog file and report the error: a corrected version of Sluice continues at this event",
    EngineState.CHECKSUM: "if the checksum fails again at the same offset, the binlog file on the server is damaged",
    EngineState.ERROR: "a defect of Sluice: report it with the trace in the log; `sluice instance restart {}` tries again",
}


def engine_way_out(state: str, destination: str) -> str:
    """Returns what an operator must do about an engine in this state, as the end of a sentence. Returns "" if the engine's error message
    already says what to do.
    """
    return _ENGINE_WAYS_OUT.get(EngineState.__members__.get(state, EngineState.RUNNING), "").format(destination)


class TableState(enum.StrEnum):
    """The state of a captured table: its changes are merged into the lake (FLOWING), or the reason why they are not."""

    FLOWING = "FLOWING"
    MERGE_FAILED = "MERGE_FAILED"
    TABLE_OWNED = "TABLE_OWNED"
    TABLE_UNOWNED = "TABLE_UNOWNED"
    TABLE_MISSING = "TABLE_MISSING"
    TABLE_RESTORED = "TABLE_RESTORED"
    TABLE_REPLACED = "TABLE_REPLACED"
    TABLE_AHEAD = "TABLE_AHEAD"
    DDL_HELD = "DDL_HELD"
    DDL_REFUSED = "DDL_REFUSED"  #: conf/ has the policy `stop` for this change.
    # Decided in `table_meta.history` (effects, renamed_tables) and `table_meta.change.evolution`, in `staging` (renamed_rows,
    # staged_columns), and by merges in `spark_jobs` (tables.renamed_table, targets.shards, side_tables.alone, batch.run_batch).
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
    ROWS_RULE = "ROWS_RULE"  #: The filter, a mask or the transform in conf/ does not fit the table.
    TRANSFORM_FAILED = (
        "TRANSFORM_FAILED"  #: The function of the table's transform raised an error, hung, or did not return rows.
    )
    #: The table's rows in the lake were merged with other filters, masks or transforms than conf/ has now.
    RULES_CHANGED = "RULES_CHANGED"


class OperatorAct(enum.StrEnum):
    """What an operator can do for a stopped table. The values are the names of the commands."""

    RESUME = "schema resume"  #: Reads the table's changes again from the position at which it stopped.
    APPROVE = "schema approve"  #: Chooses the plan of the pending schema change.
    RESOLVE = "schema resolve"  #: Sets the table's schema.
    ACCEPT = "lake accept"  #: Takes the Delta table over and re-snapshots it, which resumes the table.


# States whose cause is the Delta table, for example because it is missing, or because another writer changed or owns it.
OF_THE_LAKE = frozenset(
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
# States that a re-snapshot resolves, because it reads the rows that the lake table lacks. A re-snapshot does not resolve the other states,
# because their cause would remain, or because an operator wanted the stop.
HEALED_BY_ROWS = RESOLVABLE | {
    TableState.DDL_UNSUPPORTED,
    TableState.STATEMENT_FORMAT,
    TableState.CASCADE_UNSEEN,
    TableState.RESUME_LOST,
    TableState.FAILED_OVER_BY_TIME,
    TableState.RULES_CHANGED,
}
_STOPS = frozenset(TableState) - {TableState.FLOWING}
# States whose cause is not an event of the stream. If the engine reads the stream again from the position of the stop, no event stops the
# table again. So the engine keeps the table stopped until an operator resumes it.
UNTIL_RESUMED = frozenset(
    {
        TableState.NEWLY_INCLUDED,
        TableState.RULES_CHANGED,
        TableState.SNAPSHOT_CANCELED,
        TableState.FAILED_OVER_BY_TIME,
    }
)
TABLE_TRANSITIONS: Mapping[TableState, frozenset[TableState]] = {
    TableState.FLOWING: _STOPS - {TableState.RESUME_LOST},
    # A stopped table keeps its first state, whatever happens later. When an operator resumes the table, there are three cases. The table
    # continues (FLOWING). Or the source no longer has the binlog from the stop on (RESUME_LOST). Or the table's rows in the lake follow
    # other rules than conf/ has now (RULES_CHANGED).
    **dict.fromkeys(_STOPS, frozenset({TableState.FLOWING, TableState.RESUME_LOST, TableState.RULES_CHANGED})),
}


def table_follows(before: TableState, after: TableState) -> bool:
    """Returns whether a table in state `before` may change to state `after`."""
    return after in TABLE_TRANSITIONS[before]


def acts_on(state: TableState) -> tuple[OperatorAct, ...]:
    """Returns the commands with which an operator resolves a table's state, in the order of execution. The last command resumes the table.
    If the cause is the Delta table, the two commands are alternatives: ACCEPT alone, or RESUME after the Delta table was restored.
    """
    if state == TableState.FLOWING:
        return ()
    if state == TableState.DDL_HELD:
        return (OperatorAct.APPROVE, OperatorAct.RESUME)
    if state in RESOLVABLE:
        return (OperatorAct.RESOLVE, OperatorAct.RESUME)
    return (OperatorAct.ACCEPT, OperatorAct.RESUME) if state in OF_THE_LAKE else (OperatorAct.RESUME,)


def way_out(state: str, destination: str, table: str) -> str:
    """Returns what an operator must do so that a stopped "database.table" continues, with the commands, as the end of a sentence. Returns
    "" if the state is not a stop.
    """
    acts = acts_on(TableState(state)) if state in TableState.__members__ else ()
    if not acts:
        return ""
    table = shlex.quote(table)
    if state in OF_THE_LAKE:
        accept, resume = (f"`sluice {act} {destination} {table}`" for act in acts)
        return (
            f"{accept} shows what is missing, takes the Delta table over and re-snapshots it; or restore the "
            f"Delta table as the last run left it, then {resume}"
        )
    ways = ", then ".join(f"`sluice {act} {destination} {table}`" for act in acts)
    if state in HEALED_BY_ROWS:
        return (
            f"re-snapshot the table with `sluice snapshot start {destination} --tables {table}`; or correct the "
            f"cause, then {ways}"
        )
    if state == TableState.IMAGE_NOT_FULL:
        return (
            "let the sessions that write the table write full row images, then re-snapshot the table with "
            f"`sluice snapshot start {destination} --tables {table}`; {ways} would read the incomplete images in the binlog again, and "
            "the table would stop again"
        )
    return f"correct the cause, then {ways}"


class SnapshotState(enum.StrEnum):
    """The state of a table's snapshot. Until the snapshot is published or canceled, changes of the table are buffered and not merged."""

    WANTED = "WANTED"  #: The snapshot is requested, and nothing is read yet.
    READING = "READING"
    #: All chunks are read. The snapshot is published when the stream has passed the end that the binlog had after the reading.
    READ = "READ"
    PUBLISHED = "PUBLISHED"
    FAILED = "FAILED"  #: The snapshot failed, and waits for an operator.
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
    """Returns whether a snapshot in state `before` may change to state `after`."""
    return after in SNAPSHOT_TRANSITIONS[before]
