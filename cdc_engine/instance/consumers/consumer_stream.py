"""Reads the stream for one consumer. Consumers share the window, the newest part of the live stream, which the engine reads. While a
consumer's position is not in the window, the consumer reads its own stream.

    behind the window ──▶ its own stream, from its position ──caught up──▶ the window
    at the window's end, while the live stream waits for space in the store ──▶ its own stream

So a slow consumer delays no other consumer. `DestinationStream` reads the window or the consumer's own stream, and `Selection` selects what
the consumer gets.
"""

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

# A consumer waits at most this long for changes of one stream. Then it decides again whether to read the window or its own stream.
LOOK_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class StreamPosition:
    """A consumer's position in a stream. If the position is within a transaction, `state` says which entries of the transaction were handed
    out.
    """

    window_position: WindowPosition
    state: State = FIRST_STATE

    @property
    def position(self) -> Position:
        return self.window_position.position


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen:
    """What one consumer gets from a piece of the stream: a statement, or entries in order. `kinds` has the kind of each entry: BEGIN, ROWS,
    END or QUERY of `binlog.entries.elements`. `indices` has, for each entry, the index in `block` of the entry's transaction, row event or
    SQL text.
    """

    block: Block
    kinds: Int8s
    indices: Int64s
    statement: LoggedStatement | None = None


@dataclasses.dataclass(frozen=True)
class StreamReader:
    """Identifies the reader of a destination's stream: the destination's consumer `client_id`, or, if `group` is set, the consumer
    `client_id` of a group that has the destination as a member.
    """

    client_id: int
    group: str = ""


class Stream(Protocol):
    """What a consumer reads: the window, or the consumer's own stream, which reads the source or the store's files."""

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
        """Returns the position up to which the stream has read the source, or None if the stream does not read the source now."""


class LiveStream(Stream, Protocol):
    def wake(self) -> None: ...


class Selection:
    """Selects what a consumer gets: statements, and the row events of tables that all of the consumer's filters keep. `tables` combines the
    filters. `wants` returns whether the consumer gets a statement. `shown` decides whether a table's rows can be shown to consumers
    (`readable`). `entries` are the kinds of entries that the consumer gets.
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
        """Selects what the consumer gets from some pieces of the stream. Returns the selection, and the new `state` (`StreamPosition`).
        Raises ConsumerStoppedError if the pieces contain rows that cannot be shown, or if a table was renamed and conf/ has a different
        row filter, mask, transform or column filter for the new name.
        """
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
        """Returns how many whole transactions in the pieces come before the first selected row event that cannot be shown, or None if there
        is no such row event.
        """
        transactions = 0
        for piece in pieces:
            event = self._first_unreadable(piece)
            if event is not None:
                ends = piece.block.transaction_events[piece.first_transaction : piece.last_transaction]
                return transactions + int(np.searchsorted(ends, event, "right"))
            transactions += ends_in(piece)
        return None

    def _first_unreadable(self, piece: WindowPiece) -> int | None:
        """Returns the index of the first selected row event of a piece that cannot be shown, or None if all can be shown."""
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
        """Raises ConsumerStoppedError if a table was renamed and conf/ has a different row filter, mask, transform or column filter for the
        new name. Without this error, the consumer would get, under the new name, rows or values that the settings of the old name filter,
        mask or leave out.
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
    """Reads the stream of a destination for one consumer (`server.consumer.ConsumerStream`). `open_own` opens the consumer's own stream at
    a position. `held_up` returns whether the live stream waits for space in the store. With `full`, a read waits until as much as the
    consumer requested is available, or until the timeout.
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
        """Returns the whole transactions of a reading that come before the first row that cannot be shown, and the position after them. So
        the consumer gets these transactions before it stops. Returns the whole reading if all rows can be shown. If a row of the first
        transaction cannot be shown, also returns the whole reading, so that `Selection.chosen` raises the error.
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
        """The consumer's own stream, or None if it reads the live stream."""
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
        """Returns the changes after a position, from the live stream's window or from the consumer's own stream. Waits for changes up to
        `wait_seconds`, or until `given_up` returns True. With `full`, waits until `bytes_max` bytes or `entries_max` entries are available.
        Returns None if the consumer's own stream cannot read from the position; the next call opens another one there.
        """
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
            self.close()  # Closes the consumer's own stream, which has ended. The next call opens another one.
            raise
        # Closes a stream that cannot read from `position`, because the consumer was rolled back, or the live stream began another epoch.
        if found is None:
            self.close()
        return found
