"""Decides the next step of a snapshot. Pure; `work` executes it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import SnapshotRecord, is_past, same_stream
from sluice.cdc_engine.states import SnapshotState


class SnapshotStep(enum.Enum):
    NOTHING = "nothing"  #: Do nothing, because the snapshot ended, failed, or is paused.
    WAIT = "wait"  #: Wait until the engine or the stream has advanced.
    BEGIN = "begin"  #: Begin the reading, while the run holds the run lock.
    READ = "read"  #: Read the chunks that are not complete yet.
    PUBLISH = "publish"
    AGAIN = "again"  #: Read all rows again, because the rows that were read are no longer valid.
    FAIL = "fail"


EPOCH_BEGINS = (
    "a new epoch has begun, and none of its changes is staged yet: the snapshot continues after the next transaction"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotSituation:
    """The facts that decide the next step of a table's snapshot. `begin` is the position up to which the stream is staged, and `cursor` the
    position up to which the stream is merged or buffered. Both are None before the engine has a position.

    `version` is the table's schema version at the current position of the stream, or empty if the table is not captured. `stop` is the
    ledger's record of the table's stop, if the table is stopped. `epoch` is the ledger's epoch, which is higher than the epoch of `begin`
    until the first batch of a new epoch is staged.
    """

    begin: Position | None
    cursor: Position | None
    version: str
    epoch: int
    stop: StoppedTable | None = None


@dataclasses.dataclass(frozen=True)
class StepDecision:
    step: SnapshotStep
    why: str = ""


def next_step(
    record: SnapshotRecord, there: SnapshotSituation, others: Collection[SnapshotRecord] = ()
) -> StepDecision:
    """Returns the next step of a snapshot, with the reason for the steps NOTHING, WAIT, AGAIN and FAIL. `others` are the destination's
    other snapshots.
    """
    if not record.has_work:
        return StepDecision(SnapshotStep.NOTHING, record.reason)
    if there.stop is not None:
        return _stopped(record, there.stop)
    if there.begin is None or there.cursor is None:
        return StepDecision(SnapshotStep.WAIT, "the engine has no position yet")
    if record.state == SnapshotState.WANTED:
        decision = _wanted(record, there, there.begin, there.cursor)
        first = _waits_for(record, others) if decision.step == SnapshotStep.BEGIN else ""
        return StepDecision(SnapshotStep.WAIT, first) if first else decision
    return _under_way(record, there, there.cursor)


def _wanted(record: SnapshotRecord, there: SnapshotSituation, begin: Position, cursor: Position) -> StepDecision:
    """Returns the step of a snapshot in the state WANTED."""
    if not there.version:
        return StepDecision(SnapshotStep.WAIT, "the engine does not know the table yet")
    if begin.epoch != cursor.epoch:
        return StepDecision(
            SnapshotStep.WAIT, "a new epoch has begun; the batches of the previous epoch must be merged first"
        )
    if begin.order_key < record.buffered_after:
        return StepDecision(
            SnapshotStep.WAIT, f"the stream has not passed the statement that changed the table ({record.reason})"
        )
    return StepDecision(SnapshotStep.BEGIN)


def _waits_for(record: SnapshotRecord, others: Collection[SnapshotRecord]) -> str:
    """Returns why this snapshot must wait for the publication of other snapshots, or "" if it need not wait. Ignores snapshots that wait
    for this one, directly or through others, because snapshots that wait for each other could never continue.
    """
    if not record.waits_for:
        return ""
    by_name = {each.name: each for each in others if each.is_open}

    def reached(names: Collection[str], seen: frozenset[str]) -> frozenset[str]:
        for name in names:
            if name in by_name and name not in seen:
                seen = reached(by_name[name].waits_for, seen | {name})
        return seen

    first = [
        name
        for name in record.waits_for
        if name in by_name and record.name not in reached(by_name[name].waits_for, frozenset())
    ]
    if not first:
        return ""
    stands = "".join(_stands(by_name[name]) for name in first)
    return (
        f"foreign keys change rows of the table through {', '.join(first)}, so Sluice reads the table after the "
        f"snapshot of {', '.join(first)} is published{stands}"
    )


def _stands(other: SnapshotRecord) -> str:
    """Returns why the snapshot `other`, for which this snapshot waits, does not continue by itself. Returns "" if it continues."""
    if other.state == SnapshotState.FAILED:
        return f"; the snapshot of {other.name} has failed: correct the cause, then use `sluice snapshot resume`"
    return (
        f"; the snapshot of {other.name} is paused: continue it with `sluice snapshot resume`" if other.paused else ""
    )


def _under_way(record: SnapshotRecord, there: SnapshotSituation, cursor: Position) -> StepDecision:
    """Returns the step of a snapshot in the state READING or READ."""
    if not there.version:
        why = (
            "the table was dropped or renamed, or is not captured any more; end the snapshot with `sluice "
            "snapshot cancel`"
        )
        # Waits instead of failing: if the table reappears, its rows are read again.
        return StepDecision(SnapshotStep.WAIT, why)
    if not same_stream(cursor, record) or there.begin is None or there.begin.epoch != cursor.epoch:
        return StepDecision(
            SnapshotStep.AGAIN,
            "the stream continues on another source or in a new epoch, so positions in the binlog cannot be compared",
        )
    if there.version != record.version:
        return StepDecision(SnapshotStep.AGAIN, "the table was altered")
    if record.state == SnapshotState.READING:
        return StepDecision(SnapshotStep.READ)
    if there.epoch > cursor.epoch:
        # Positions of two epochs cannot be compared, so it is unknown whether the stream has passed the rows that were read.
        return StepDecision(SnapshotStep.WAIT, EPOCH_BEGINS)
    if is_past(cursor, record):
        return StepDecision(SnapshotStep.PUBLISH)
    high = f"{record.high.file}:{record.high.offset}" if record.high else ""
    return StepDecision(
        SnapshotStep.WAIT, f"all rows are read; the stream is at {cursor} and has not passed {high} yet"
    )


def _stopped(record: SnapshotRecord, stop: StoppedTable) -> StepDecision:
    if record.state == SnapshotState.WANTED:
        return StepDecision(
            SnapshotStep.WAIT, f"the table has stopped ({stop.state}), and the engine must resume the table first"
        )
    return StepDecision(SnapshotStep.FAIL, f"the table stopped during the snapshot ({stop.state}: {stop.reason})")
