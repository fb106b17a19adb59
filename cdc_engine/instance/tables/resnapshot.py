"""Re-snapshots stopped tables automatically if only a re-snapshot can repair them. `sluice snapshot start` does the same at an operator's
request. Called by `engine_acts`.

`Resnapshots` decides which tables are due for a re-snapshot, from the state in which a table stopped and from conf/, with pauses between
attempts. `resnapshot` starts the re-snapshot of a table while no batch is in flight. Operators' requests (`snapshot_requests`) use it too.
`resnapshot` makes three writes:

- The snapshot record. After this write, changes of the table are buffered.
- The schema history, which continues with the table's current schema.
- The ledger. After this write, changes of the table are staged again.

After a crash between these writes, the table is still stopped, and the next check repeats all three.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.meta.manager import MetaManager, Transition
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import HEALED_BY_ROWS, OF_THE_LAKE, RESOLVABLE, TableState
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable, was_dropped
from sluice.cdc_engine.table_meta.schema import DroppedTable, Stopped, TableSchema, rows_elsewhere

# The shortest and the longest pause before the next attempt to re-snapshot a table, if the last attempt led to no publication.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 5.0, 3600.0
# Table states whose cause only the publication of a snapshot removes → a sentence about the Delta table for the case that the snapshot is
# canceled. The stop ends when the snapshot is requested, and no later event of the stream shows the cause again.
UNHEALED: Mapping[TableState, str] = {
    TableState.RULES_CHANGED: "Until then the lake keeps the rows as the earlier conf/ filtered and masked them",
    TableState.NEWLY_INCLUDED: "Until then the lake lacks the rows and changes from before conf/ included the table",
    TableState.FAILED_OVER_BY_TIME: "After a resume, changes that the failover reads again are in the lake twice",
    **dict.fromkeys(
        OF_THE_LAKE, "If the Delta table was taken over (`sluice lake accept`), it may lack rows until then"
    ),
}

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResnapshotDependencies:
    """The parts and callbacks of the engine that a re-snapshot uses. `schema` returns the schema of a stopped table at the position where
    the stream continues, or None if the schema is unknown. `resnapshot` sets the table's schema in the schema history from a position on.
    `has_rows` returns whether the lake has rows of a table ("database.table"). `forget_dropped` removes a dropped table from the schema
    history, and returns False if the table was not dropped. `is_no_table` returns whether the name of the stop belongs to a view or a
    sequence, not to a table.
    """

    meta: MetaManager
    records: SnapshotRecords
    schema: Callable[[StoppedTable, Position], TableSchema | None]
    resnapshot: Callable[[TableSchema, Position], None]
    has_rows: Callable[[str], bool] = lambda _name: False
    forget_dropped: Callable[[StoppedTable, Position], bool] = lambda _stop, _position: False
    is_no_table: Callable[[StoppedTable], bool] = lambda _stop: False


class Resnapshots:
    """Decides which stopped tables of a destination are due for a re-snapshot. Stores the number of attempts for each table, and when the
    next attempt is due.
    """

    def __init__(
        self, config: DestinationConfig, records: SnapshotRecords, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._records, self._clock = config, records, clock
        # Table → number of attempts, and the monotonic time when the next attempt is due.
        self._tried: dict[str, tuple[int, float]] = {}

    def due(self, stops: Iterable[StoppedTable]) -> tuple[StoppedTable, ...]:
        """Returns the stopped tables that are due for a re-snapshot: only a re-snapshot can repair them, conf/ allows the re-snapshot, and
        the pause after the last attempt is over. Also returns stops in the state SCHEMA_UNKNOWN, because the name may belong to a view or a
        sequence, whose stop needs no re-snapshot.
        """
        now = self._clock()
        return tuple(each for each in stops if self._is_wanted(each) and self._tried.get(each.name, (0, now))[1] <= now)

    def _is_wanted(self, stop: StoppedTable) -> bool:
        """Returns whether conf/ allows a re-snapshot of the table, and a re-snapshot repairs the table. Also returns True if the schema is
        unknown, because the name may belong to a renamed view or sequence. The stop of such a name ends without a snapshot.
        """
        allowed = self._config.resnapshots(stop.database, stop.table)
        return stop.state == TableState.SCHEMA_UNKNOWN or (allowed and stop.state in HEALED_BY_ROWS)

    def take_up(self, due: Sequence[StoppedTable], dependencies: ResnapshotDependencies) -> None:
        """Starts the re-snapshot of each stopped table in `due`: ends the table's stop, and buffers its changes from the cursor on. If the
        table was dropped, or if the name belongs to a view or a sequence, only ends the stop. If the schema of the table is unknown, the
        table stays stopped, and a later call tries again. Call this method only while no batch is in flight.

        Raises SourceConnectionError if the source must be queried and does not answer.
        """
        cursor = dependencies.meta.ledger.cursor
        if cursor is None:
            return
        for stop in due:
            if cursor.epoch < stop.position.epoch:
                # Skips a table that stopped after a failover, while the cursor is still in the old server's binlog. The table is due when
                # the cursor has reached the new server's binlog.
                continue
            before = self._records.get(stop.name)
            tries = self._tried.get(stop.name, (0, 0.0))[0] if before is None or before.is_open else 0
            self._tried[stop.name] = (tries + 1, self._clock() + pause_seconds(tries))
            if dependencies.meta.ledger.stopped(stop.database, stop.table) is None:
                continue
            allowed = self._config.resnapshots(stop.database, stop.table)
            schema = dependencies.schema(stop, cursor) if allowed else None
            if schema is not None:
                resnapshot(stop, schema, cursor, dependencies)
                log.warning("table_resnapshot_requested", table=stop.name, state=stop.state, reason=stop.reason)
            elif end_dropped(stop, cursor, dependencies):
                continue
            # A view or a sequence has no row events, so no change is lost when the stop of the name ends. If a table gets the name later,
            # its schema is unknown, and it stops at its first row event.
            elif dependencies.is_no_table(stop):
                dependencies.meta.update(_resumes(stop))


def pause_seconds(tries: int) -> float:
    """Returns how many seconds to wait before the next attempt, after `tries` attempts without a publication."""
    return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(tries, 20))


def resnapshot(stop: StoppedTable, schema: TableSchema, cursor: Position, dependencies: ResnapshotDependencies) -> None:
    """Ends the stop of a table, and buffers the table's changes from the cursor on for its re-snapshot. Changes that were buffered before
    the stop are discarded, because the changes between the stop and the cursor were skipped.

    If only the publication removes the cause of the stop, the snapshot's record gets the stop's state in `heals`, because the ledger no
    longer has the stop.
    """
    heals = unhealed(stop.state, has_rows=dependencies.has_rows(stop.name))
    why = f"the table had stopped, {stop.state}: {stop.reason}"
    there = dependencies.records.get(stop.name)
    if there is not None and there.is_open:
        dependencies.records.update(
            stop.name, lambda now: now.again(why, buffered_after=cursor.order_key).healing(*heals)
        )
    else:
        record = wanted(stop.name, stop.position, time.time()).healing(*heals)
        dependencies.records.begin(dataclasses.replace(record, buffered_after=cursor.order_key, reason=why))
    dependencies.resnapshot(schema, cursor)
    dependencies.meta.update(_resumes(stop))


def unhealed(state: TableState, *, has_rows: bool) -> tuple[TableState, ...]:
    """Returns (`state`,) if only the publication of a snapshot removes the state's cause, otherwise (). `has_rows` is whether the lake has
    rows of the table. Without rows, the cause of RULES_CHANGED does not remain, because no row has earlier settings.
    """
    is_left = has_rows if state == TableState.RULES_CHANGED else state in UNHEALED
    return (state,) if is_left else ()


def end_dropped(stop: StoppedTable, cursor: Position, dependencies: ResnapshotDependencies) -> bool:
    """Ends the stop of a table that was dropped while it was stopped, because the source has no rows of the table. Cancels the table's open
    snapshot, if there is one. The Delta table keeps the rows that it had at the stop. Returns False if the table was not dropped before the
    cursor.

    The stop is removed from the ledger last. So after a crash before this write, the table is still stopped, and the next call tries again.
    """
    if not dependencies.forget_dropped(stop, cursor):
        return False
    record = dependencies.records.get(stop.name)
    if record is not None and record.is_open:
        dependencies.records.update(stop.name, lambda now: now.canceled() if now.is_open else now)
    dependencies.meta.update(_resumes(stop))
    log.warning(
        "stopped_table_was_dropped", table=stop.name, state=stop.state, reason=stop.reason, position=str(stop.position)
    )
    return True


def _resumes(stop: StoppedTable) -> Transition:
    return lambda ledger: ledger.resume_table(stop.database, stop.table)


def schema_after(
    stop: StoppedTable, there: KnownTable, query_schema: Callable[[], TableSchema | None]
) -> TableSchema | None:
    """Returns the schema of a stopped table at the position where the stream continues. Returns None if the table was dropped, if the
    schema is unknown, or if the binlog has no row events for the table's changes.

    `there` is what the schema history knows about the table. `query_schema` returns the source's schema, or None if a later statement has
    changed the table.
    """
    if isinstance(there, DroppedTable) or was_dropped(there):
        return None
    found = there.schema if isinstance(there, Stopped) else there
    if found is None or stop.state in RESOLVABLE:
        found = query_schema()
    elif any(key.doubt for key in found.foreign_keys):
        # The schema history is not certain about a foreign key, so each change that this key may affect would stop the table again. The
        # source's schema has the right foreign keys.
        found = query_schema() or found
    return found if found is not None and not rows_elsewhere(found.engine) else None
