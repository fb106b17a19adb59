"""A stream of the source that one consumer reads for itself: a connection of its own, and a schema history of its own, in memory.

What it knows of schemas is what the destination knew at that place; statements after it are followed as they come, and nothing is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from cdc_engine.contracts import Block
from cdc_engine.errors import PositionLostError, SluiceError
from cdc_engine.limits import READ_BUFFER_BYTES
from cdc_engine.parser.event_parser import EventParser
from cdc_engine.parser.start_position import FIRST_OFFSET, Epochs, StartChoice
from cdc_engine.position import Position
from cdc_engine.sink.event_sink import dropped_uncaptured
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.source.server import Source
from cdc_engine.store.window.places import Place, Reading
from cdc_engine.store.window.window import Window
from cdc_engine.table_meta.change.policy import SchemaDecisions
from cdc_engine.table_meta.history.history import TableHistory
from cdc_engine.table_meta.history.kept.repository import Record

OWN_BYTES_MAX = 2 * READ_BUFFER_BYTES  # read ahead of a consumer


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnStreams:
    """What such a stream is made of. `records`: of the schema history, asked when one begins.

    `epoch`, `server_uuid`: of the live stream.
    """

    source: Source
    tables: TableFilter
    review: SchemaDecisions
    records: Callable[[], list[Record]]
    epoch: Callable[[], int]
    server_uuid: Callable[[], str]

    def open(self, client_id: int, place: Place) -> SourceStream:
        """Raises PositionLostError where no schema is known at the place."""
        begin = place.position
        records = [record for record in self.records() if record.position.order_key <= begin.order_key]
        history = TableHistory(_Remembered(records), self.tables.keeps, self.review)
        if not history.covers(begin):
            raise PositionLostError(
                f"the schema history no longer reaches back to {begin}, where consumer {client_id} is: unsubscribe it, and subscribe anew"
            )
        named = dataclasses.replace(self.source, destination=f"{self.source.destination}-{client_id}", server_id=0)
        start = self._from(begin)
        return SourceStream(named, begin, start=start, tables=self.tables, history=history, epoch=self.epoch)

    def _from(self, begin: Position) -> Position:
        """In the live stream's epoch, so that both number the same files the same way; by GTID where that is another."""
        epoch = self.epoch()
        if begin.epoch >= epoch or not begin.gtid_set:
            return begin
        return dataclasses.replace(
            begin, epoch=epoch, file="", offset=FIRST_OFFSET, server_uuid=self.server_uuid(), file_created=0
        )


class SourceStream:
    """Implements `feed.OwnStream`."""

    def __init__(
        self,
        source: Source,
        begin: Position,
        *,
        start: Position,
        tables: TableFilter,
        history: TableHistory,
        epoch: Callable[[], int],
    ) -> None:
        self._window = Window(begin, bytes_max=OWN_BYTES_MAX, waits=True)
        self._parser = EventParser(
            source,
            StartChoice(),
            sink=_Into(self._window, tables),
            history=history,
            captured=tables.keeps,
            on_state=lambda _state, _reason: self._window.wake(),
            epochs=lambda: Epochs(highest=epoch()),
        )
        self._parser.start(start)

    def read(
        self, place: Place, bytes_max: int, events_max: int, timeout_seconds: float, given_up: Callable[[], bool]
    ) -> Reading | None:
        """As a window; raises what ended the stream, once all before it was read."""
        found = self._window.read(
            place, bytes_max, events_max, timeout_seconds, lambda: given_up() or self._parser.last_error is not None
        )
        error = self._parser.last_error
        if error is not None and found is not None and not found.pieces:
            raise error if isinstance(error, SluiceError) else SluiceError(str(error))
        return found

    def wake(self) -> None:
        self._window.wake()

    def close(self) -> None:
        self._window.close()
        self._parser.stop()


class _Into:
    """A `BlockSink` that keeps what the destination captures."""

    def __init__(self, window: Window, tables: TableFilter) -> None:
        self._window, self._tables = window, tables

    def accept(self, block: Block) -> None:
        self._window.put(dropped_uncaptured(block, self._tables))

    def interrupt(self) -> None:
        self._window.drop_open()


class _Remembered:
    """A `Repository` that lasts as long as the stream."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def load(self) -> list[Record]:
        return self._records

    def append(self, records: Iterable[Record]) -> None:
        """The history has them in memory."""

    def replace(self, records: Iterable[Record]) -> None:
        self._records = list(records)
