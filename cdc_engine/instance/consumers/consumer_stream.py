"""The stream for one consumer: from the window of the live stream, or from its own stream while it is not there.

    behind the window ──▶ its own stream, from its position ──caught up──▶ the window
    at the window's end, while the live stream waits for the lake ──▶ its own stream

So no slow consumer stops another. `Selection` selects what a consumer gets, `DestinationStream` reads.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from cdc_engine.binlog.entries.elements import FIRST_STATE, Mask, State, elements
from cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY
from cdc_engine.contracts import Block, Int8s, Int64s, LoggedStatement, TableChangeKind, TableVersion
from cdc_engine.errors import ConsumerStoppedError, SluiceError
from cdc_engine.instance.consumers.forms import Forms
from cdc_engine.limits import BATCH_EVENTS_MAX
from cdc_engine.parser.watch import StreamState
from cdc_engine.position import Position
from cdc_engine.sink.event_sink import CapturedTables
from cdc_engine.store.window.positions import WindowPiece, WindowPosition, WindowReading

LOOK_SECONDS = 0.5  # how long a reader waits at once, before it decides again which stream to read


@dataclasses.dataclass(frozen=True)
class StreamPosition:
    """A position, and what was shown of the transaction there."""

    place: WindowPosition
    state: State = FIRST_STATE

    @property
    def position(self) -> Position:
        return self.place.position


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """What one consumer gets of a piece: entries in order (`kinds` and `indices` as `elements` returns them), or its statement."""

    block: Block
    kinds: Int8s
    indices: Int64s
    statement: LoggedStatement | None = None


@dataclasses.dataclass(frozen=True)
class StreamReader:
    """A reader: a consumer of the destination by its number, or a consumer of a group that the destination is a member of."""

    client_id: int
    group: str = ""


class Stream(Protocol):
    """A window, or a stream that reads the source."""

    def read(
        self,
        place: WindowPosition,
        bytes_max: int,
        events_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
    ) -> WindowReading | None: ...


class OwnStream(Stream, Protocol):
    def wake(self) -> None: ...
    def close(self) -> None: ...
    def place(self) -> StreamState | None:
        """Returns the position up to which it has read the source; None while it does not read it."""


class LiveStream(Stream, Protocol):
    def wake(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What a consumer gets: tables that all its filters keep, and statements."""

    tables: CapturedTables
    wants: Callable[[LoggedStatement], bool]
    forms: Forms = dataclasses.field(default_factory=Forms)

    def chosen(self, pieces: Sequence[WindowPiece], state: State) -> tuple[tuple[Chosen, ...], State]:
        """Selects from pieces. Raises ConsumerStoppedError if a selected table cannot be read from the first piece on."""
        found = []
        for piece in pieces:
            self._refuse_stopped(piece.block)
            self._refuse_other_rules(piece.block)
            events, transactions = (
                (piece.first_event, piece.last_event),
                (piece.first_transaction, piece.last_transaction),
            )
            statement = piece.block.statement
            if statement is not None and self.wants(statement):
                found.append(Chosen(piece.block, np.zeros(0, np.int8), np.zeros(0, np.int64), statement))
            kinds, indices, state = elements(piece.block, events, transactions, self._kept(piece.block), state)
            if len(kinds):
                found.append(Chosen(piece.block, kinds, indices))
        return tuple(found), state

    def _kept(self, block: Block) -> Mask:
        wanted = [not each.watched and self.tables.keeps(each.database, each.table) for each in block.tables]
        return np.array(wanted, np.bool_)[block.event_table] if block.event_count else np.zeros(0, np.bool_)

    def _refuse_stopped(self, block: Block) -> None:
        for change in block.changes:
            if change.kind is TableChangeKind.STOPPED and self.tables.keeps(change.database, change.table):
                raise ConsumerStoppedError(
                    f"the rows of {change.database}.{change.table} cannot be read from here on: {change.state}: {change.reason}. "
                    "Resume the table (`sluice schema resume`), or subscribe with a filter that leaves it out"
                )

    def _refuse_other_rules(self, block: Block) -> None:
        """Refuses a rename to a table with other rules. Rules belong to names: rows that were filtered or masked would be shown unchanged
        under a name without rules.
        """
        for change in block.changes:
            name, origin = f"{change.database}.{change.table}", change.renamed_from
            if not origin or not self.tables.keeps(change.database, change.table):
                continue
            rules, before = (self.forms.policies.get(each, DEFAULT_POLICY).rules for each in (name, origin))
            if rules != before or self._other_columns(change.schema, origin):
                raise ConsumerStoppedError(
                    f"the table {name} was {origin} before, and conf/ filters or masks the rows of the two otherwise, or leaves out other "
                    "columns: say the same `rows`, `masks` and columns for both, or subscribe with a filter that leaves it out"
                )

    def _other_columns(self, version: TableVersion | None, origin: str) -> bool:
        kept = self.forms.kept
        if version is None or kept is None:
            return False
        database, _, table = origin.partition(".")
        before = dataclasses.replace(version, database=database, table=table)
        return not np.array_equal(kept(version), kept(before))


class DestinationStream:
    """Implements `server.consumer.Feed`. `open_own`: opens a stream at a position; `held_up`: returns whether the live stream waits for
    the lake.
    """

    def __init__(
        self,
        live: LiveStream,
        open_own: Callable[[WindowPosition], OwnStream],
        held_up: Callable[[], bool],
        selection: Selection,
    ) -> None:
        self._live, self._open_own, self._held_up, self.selection = live, open_own, held_up, selection
        self._own: OwnStream | None = None

    @property
    def reads_alone(self) -> bool:
        return self._own is not None

    def take(
        self, place: StreamPosition, bytes_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> tuple[tuple[Chosen, ...] | None, StreamPosition]:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            reading = self.read(place.place, bytes_max, max(0.0, min(left, LOOK_SECONDS)), given_up)
            if reading is not None and reading.pieces:
                chosen, state = self.selection.chosen(reading.pieces, FIRST_STATE if reading.anew else place.state)
                return chosen or None, StreamPosition(reading.end, state)
            if given_up() or left <= 0:
                return None, place

    def wake(self) -> None:
        self._live.wake()
        own = self._own
        if own is not None:
            own.wake()

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    @property
    def own(self) -> OwnStream | None:
        """Its own stream; None while it reads the live stream."""
        return self._own

    def read(
        self, place: WindowPosition, bytes_max: int, wait_seconds: float, given_up: Callable[[], bool]
    ) -> WindowReading | None:
        """Returns what follows a position, as `Stream` does, from the stream that has it; None if the caller is to ask again."""
        alone = self._own is not None
        live = self._live.read(
            place, bytes_max, BATCH_EVENTS_MAX, 0.0 if alone or self._held_up() else wait_seconds, given_up
        )
        if live is not None and (live.pieces or not self._held_up()):
            self.close()
            return live
        if self._own is None:
            self._own = self._open_own(place)
        try:
            found = self._own.read(place, bytes_max, BATCH_EVENTS_MAX, wait_seconds, given_up)
        except SluiceError:
            self.close()  # it has ended; the next call opens another
            raise
        if found is None:  # it was rolled back, or the live stream's file numbers start again
            self.close()
        return found
