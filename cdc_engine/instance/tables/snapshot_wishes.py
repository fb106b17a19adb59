"""What an operator wants of a table's snapshot and the engine must do: let a stopped table go on from here, or end a snapshot.

`engine` calls both while no batch is out and nothing reads the stream. Each may be repeated: a request is removed last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import structlog

from cdc_engine.contracts import StoppedTable
from cdc_engine.errors import ActRefusedError
from cdc_engine.ha.leases import Lock
from cdc_engine.instance.tables import retake
from cdc_engine.meta.ledger import Ledger
from cdc_engine.meta.manager import stops
from cdc_engine.meta.resume_requests import ResumeRequest, Wish
from cdc_engine.position import Position
from cdc_engine.states import TableState

UNKNOWN = (
    "nobody knows what the table looks like where the stream is, or its rows are not what its row events say; say it with "
    "`sluice schema resolve`, then `sluice snapshot start` it again"
)

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hands(retake.Hands):
    """What the wishes need of the engine. `run_lock`: of who merges."""

    run_lock: Callable[[], Lock]


def fulfil(wanted: Sequence[ResumeRequest], hands: Hands) -> None:
    """Deals with the requests that are of snapshots."""
    for each in wanted:
        match each.wish:
            case Wish.ANEW:
                _take_anew(each, hands)
            case Wish.CANCEL if not _canceled(each, hands):
                continue  # it is being published: the next tick looks again
            case Wish.RESUME:
                continue
        log.info("snapshot_wish", table=each.name, wish=each.wish)
        each.done()


def _take_anew(wanted: ResumeRequest, hands: Hands) -> None:
    """The table goes on from the cursor; its snapshot was asked for before this request."""
    cursor, stop = hands.meta.ledger.cursor, hands.meta.ledger.stopped(wanted.database, wanted.table)
    if cursor is None or stop is None:
        return
    schema = hands.schema(stop, cursor)
    if schema is None:
        hands.records.update(wanted.name, lambda record: record.failed(UNKNOWN))
    else:
        retake.take_anew(stop, schema, cursor, hands)


def _canceled(wanted: ResumeRequest, hands: Hands) -> bool:
    """Under the run lock, for what a publication reads is removed; False where another has it."""
    lock = hands.run_lock()
    if not lock.try_acquire():
        return False
    try:
        _cancel(wanted, hands)
    finally:
        lock.release()
    return True


def _cancel(wanted: ResumeRequest, hands: Hands) -> None:
    """First the ledger: a table that neither held nor stopped would be merged with a hole in it."""
    record = hands.records.get(wanted.name)
    if record is None or not record.is_open:
        return
    place = record.since or hands.meta.ledger.cursor
    if place is not None:
        hands.meta.update(_stopped(wanted, place, record.reason))
    try:
        hands.records.update(wanted.name, lambda now: now.canceled())
        hands.records.sweep(wanted.name)
    except ActRefusedError as error:  # it was published in this moment
        log.warning("snapshot_not_canceled", table=wanted.name, reason=str(error))


def _stopped(wanted: ResumeRequest, place: Position, why: str) -> Callable[[Ledger], Ledger]:
    reason = (
        f"its snapshot was canceled, and changes since {place} were held for it: `./sluice schema resume` lets it go on from there, "
        "`./sluice snapshot start` takes its rows anew"
    )
    if TableState.RULES_CHANGED in why:
        reason += ". Without that the lake keeps the rows that it has as conf/ filtered and masked them before"
    stop = StoppedTable(
        database=wanted.database,
        table=wanted.table,
        state=TableState.SNAPSHOT_CANCELED,
        reason=reason,
        position=place,
    )
    return stops(stop)
