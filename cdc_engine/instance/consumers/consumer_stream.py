"""Provides the stream for one consumer: from the window of the live stream, or from a stream of its own while its position is not in the
window.

    behind the window ──▶ its own stream, from its position ──caught up──▶ the window
    at the window's end, while the live stream waits for the lake ──▶ its own stream

So no slow consumer stops another. `Selection` selects what a consumer gets, `DestinationStream` reads."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from sluice.cdc_engine.binlog.entries.elements import FIRST_STATE, Mask, State, elements
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY
from sluice.cdc_engine.contracts import Block, Int8s, Int64s, LoggedStatement, TableVersion
from sluice.cdc_engine.errors import ConsumerStoppedError, SluiceError
from sluice.cdc_engine.instance.consumers.forms import ALL_ENTRIES, Forms, ShownEntries
from sluice.cdc_engine.instance.consumers.pieces import end_of, ends_in, first_transactions
from sluice.cdc_engine.instance.consumers.readable import Readable, SelectedTables
from sluice.cdc_engine.limits import BATCH_EVENTS_MAX
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.event_sink import CapturedTables
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition, WindowReading

LOOK_SECONDS = 0.5  # A reader waits this long at most, and then decides again which stream to read.


@dataclasses.dataclass(frozen=True)
class StreamPosition:
    """A position of a consumer in a stream. `state`: which entries of the transaction that is open at the position were handed out."""

    window_position: WindowPosition
    state: State = FIRST_STATE

    @property
    def position(self) -> Position:
        return self.window_position.position


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """The part of a piece of the stream that one consumer gets: entries in order (`kinds` and `indices` as `elements` returns them), or a
    statement.
    """

    block: Block
    kinds: Int8s
    indices: Int64s
    statement: LoggedStatement | None = None


@dataclasses.dataclass(frozen=True)
class StreamReader:
    """Identifies a reader: a consumer of the destination by its number, or a consumer of a group that has the destination as a member."""

    client_id: int
    group: str = ""


class Stream(Protocol):
    """A window, or a stream that reads the source itself."""

    def read(
        self,
        position: WindowPosition,
        bytes_max: int,
        entries_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        full: bool = False,
    ) -> WindowReading | None: ...


class OwnStream(Stream, Protocol):
    def wake(self) -> None: ...
    def close(self) -> None: ...
    def stream_state(self) -> StreamState | None:
        """Returns the position up to which the stream has read the source; None while it does not read it."""


class LiveStream(Stream, Protocol):
    def wake(self) -> None: ...


class Selection:
    """Selects what a consumer gets: row events of tables that all its filters keep, and statements. `shown`: which tables can be read, and
    the settings for rows. `entries`: which kinds of entries it gets.
    """

    def __init__(
        self,
        *,
        tables: CapturedTables,
        wants: Callable[[LoggedStatement], bool],
        shown: Readable | None = None,
        entries: ShownEntries = ALL_ENTRIES,
    ) -> None:
        self.tables, self.wants, self.shown = tables, wants, shown or Readable(Forms())
        self._entries = entries
        self._selected = SelectedTables(tables, self.shown)

    def chosen(self, pieces: Sequence[WindowPiece], state: State) -> tuple[tuple[Chosen, ...], State]:
        """Selects the consumer's part of some pieces. Raises ConsumerStoppedError if rows of a selected table in them cannot be read."""
        found = []
        for piece in pieces:
            self._refuse_unreadable(piece)
            self._refuse_other_rules(piece.block)
            events, transactions = (
                (piece.first_event, piece.last_event),
                (piece.first_transaction, piece.last_transaction),
            )
            statement = piece.block.statement
            if statement is not None and self.wants(statement):
                found.append(Chosen(piece.block, np.zeros(0, np.int8), np.zeros(0, np.int64), statement))
            kept, only = self._kept(piece.block), self._entries
            kinds, indices, state = elements(
                *(piece.block, events, transactions, kept, state), queries=only.rows_queries, frames=only.transactions
            )
            if len(kinds):
                found.append(Chosen(piece.block, kinds, indices))
        return tuple(found), state

    def _kept(self, block: Block) -> Mask:
        if not block.event_count or not self._entries.rows:
            return np.zeros(block.event_count, np.bool_)
        return self._selected.selected(block.tables)[block.event_table]

    def readable(self, pieces: Sequence[WindowPiece]) -> int | None:
        """Returns how many whole transactions precede the first row event that cannot be read; None if there is none."""
        transactions = 0
        for piece in pieces:
            event = self._first_unreadable(piece)
            if event is not None:
                ends = piece.block.transaction_events[piece.first_transaction : piece.last_transaction]
                return transactions + int(np.searchsorted(ends, event, "right"))
            transactions += ends_in(piece)
        return None

    def _first_unreadable(self, piece: WindowPiece) -> int | None:
        """Returns the first row event of a piece that is selected and cannot be read; None if there is none."""
        unreadable = self._selected.unreadable(piece.block.tables)
        if not unreadable.any() or not self._entries.rows:
            return None
        events = np.flatnonzero(unreadable[piece.block.event_table[piece.first_event : piece.last_event]])
        return piece.first_event + int(events[0]) if len(events) else None

    def _refuse_unreadable(self, piece: WindowPiece) -> None:
        event = self._first_unreadable(piece)
        if event is not None:
            version = piece.block.tables[int(piece.block.event_table[event])]
            raise ConsumerStoppedError(
                f"the rows of {version.name} cannot be read from "
                f"{piece.block.file}:{int(piece.block.event_position[event])} on: "
                f"{self.shown.why_not(version)}. Correct the cause, or subscribe with a filter that leaves "
                f"{version.name} out"
            )

    def _refuse_other_rules(self, block: Block) -> None:
        """Refuses a rename to a table with other rules. Rules belong to names: under a name without rules, rows that were filtered or
        masked would be shown unchanged.
        """
        for change in block.changes:
            name, origin = f"{change.database}.{change.table}", change.renamed_from
            if not origin or not self.tables.keeps(change.database, change.table):
                continue
            rules, before = (self.shown.forms.policies.get(each, DEFAULT_POLICY).rules for each in (name, origin))
            if rules != before or self._other_columns(change.schema, name, origin):
                raise ConsumerStoppedError(
                    f"the table {name} was renamed from {origin}, and conf/ filters or masks the rows of the "
                    "two names differently, or leaves out other columns: set the same `rows`, `masks` and "
                    f"columns for both names, or subscribe with a filter that leaves {name} out"
                )

    def _other_columns(self, version: TableVersion | None, name: str, origin: str) -> bool:
        kept, named = self.shown.forms.kept, self.shown.forms.named
        if version is None:
            return named is not None and named(name) != named(origin)
        if kept is None:
            return False
        database, _, table = origin.partition(".")
        before = dataclasses.replace(version, database=database, table=table)
        return not np.array_equal(kept(version), kept(before))


class DestinationStream:
    """Implements `server.consumer.ConsumerStream`. `open_own`: opens a stream at a position; `held_up`: returns whether the live stream
    waits for the lake. `full`: a reader with a time-out waits until it can take as much as it requests.
    """

    def __init__(
        self,
        live: LiveStream,
        open_own: Callable[[WindowPosition], OwnStream],
        held_up: Callable[[], bool],
        selection: Selection,
        *,
        full: bool = False,
    ) -> None:
        self._live, self._open_own, self._held_up, self.selection = live, open_own, held_up, selection
        self._full = full
        self._own: OwnStream | None = None

    @property
    def reads_alone(self) -> bool:
        return self._own is not None

    def take(
        self,
        position: StreamPosition,
        bytes_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        entries_max: int = BATCH_EVENTS_MAX,
    ) -> tuple[tuple[Chosen, ...] | None, StreamPosition]:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            wait = max(0.0, min(left, LOOK_SECONDS))
            reading = self.read(
                position.window_position, bytes_max, wait, given_up, entries_max=entries_max, full=self._full
            )
            if reading is not None and reading.pieces and (reading.in_time or left <= 0):
                pieces, end = self._up_to_unreadable(reading)
                chosen, state = self.selection.chosen(pieces, FIRST_STATE if reading.restarted else position.state)
                return chosen or None, StreamPosition(end, state)
            if given_up() or left <= 0:
                return None, position

    def _up_to_unreadable(self, reading: WindowReading) -> tuple[Sequence[WindowPiece], WindowPosition]:
        """Returns the whole transactions before the first row that cannot be read, and where they end, so that they are handed out first.
        If there are none, returns the reading unchanged.
        """
        count = self.selection.readable(reading.pieces)
        if not count:
            return reading.pieces, reading.end
        pieces = first_transactions(reading.pieces, count)
        return pieces, end_of(pieces)

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
        """The consumer's own stream; None while it reads the live stream."""
        return self._own

    def read(
        self,
        position: WindowPosition,
        bytes_max: int,
        wait_seconds: float,
        given_up: Callable[[], bool],
        *,
        entries_max: int = BATCH_EVENTS_MAX,
        full: bool = False,
    ) -> WindowReading | None:
        """Returns what follows a position, as `Stream` does, from the stream that has it; None if the caller must call again."""
        alone, held_up = self._own is not None, self._held_up()
        wait = 0.0 if alone or held_up else wait_seconds
        live = self._live.read(position, bytes_max, entries_max, wait, given_up, full=full and not held_up)
        if live is not None and (live.pieces or not self._held_up()):
            self.close()
            return live
        if self._own is None:
            self._own = self._open_own(position)
        try:
            found = self._own.read(position, bytes_max, entries_max, wait_seconds, given_up, full=full)
        except SluiceError:
            self.close()  # The stream has ended; the next call opens another one.
            raise
        if found is None:  # The consumer was rolled back, or the live stream's file numbers start again.
            self.close()
        return found
