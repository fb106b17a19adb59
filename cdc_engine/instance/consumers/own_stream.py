"""Reads the source for one consumer, over a separate connection and with a separate schema history in memory. Writes nothing.

`own_start` provides the schemas at the position where the stream starts. DDL statements in the stream change these schemas.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import PositionLostError, SluiceError
from sluice.cdc_engine.instance.consumers.consumer_stream import StreamReader
from sluice.cdc_engine.instance.consumers.own_start import OwnStart, own_start
from sluice.cdc_engine.limits import READ_BUFFER_BYTES
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.start_position import FIRST_OFFSET, DumpStart, Epochs, Lost, StartChoice
from sluice.cdc_engine.parser.stream.event_parser import ByTime, EventParser, ParserCallbacks, StreamRules
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.event_sink import CapturedTables, dropped_uncaptured
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.window.positions import WindowPosition, WindowReading
from sluice.cdc_engine.store.window.window import Window
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord

# The maximum number of bytes that a consumer's own stream reads ahead of the consumer's requests.
OWN_BYTES_MAX = 2 * READ_BUFFER_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnStreams:
    """Opens streams of the source for consumers whose positions are not in the window. `known_to` returns the position up to which the live
    stream has read. `records` returns the records of the destination's schema history, which reach at least to this position. `epoch` and
    `server_uuid` return the epoch and the server uuid of the live stream.

    `archive` has binlog files that the server has purged. `by_time` finds by commit time where a stream continues after a failover, and is
    None if conf/ does not allow a failover by commit time. `recorded_before` returns the recorded events of an XA transaction that was
    prepared before a position. With `isolated`, each statement that changes tables is read alone, without other changes. `rows_queries`
    says whether the streams contain the SQL texts of statements that change rows.
    """

    source: Source
    tables: TableFilter
    review: SchemaDecisions
    known_to: Callable[[], Position]
    records: Callable[[], list[HistoryRecord]]
    recorded_before: Callable[[str, Position], Content | None]
    epoch: Callable[[], int]
    server_uuid: Callable[[], str]
    by_time: ByTime | None = None
    archive: Archive | None = None
    isolated: bool = False
    rows_queries: bool = False

    def open(self, reader: StreamReader, position: WindowPosition) -> SourceStream:
        """Opens a stream at a position for the consumer `reader`. Raises PositionLostError if the schemas at the position are unknown."""
        begin, destination = position.position, self.source.destination
        way_out = (
            f"`sluice consumer forget {reader.group or destination} {reader.client_id}` deletes the cursor; "
            "the consumer then starts again at the oldest change in the window, and never gets the changes "
            "between its cursor and that change"
        )
        name = "-".join(filter(None, [destination, reader.group, str(reader.client_id)]))
        named = self.source.named(name)
        # Gets the position of the live stream before the records of the schema history, so that the records reach at least to this
        # position.
        live = self.known_to()
        own = own_start(
            begin,
            live,
            self.records(),
            tables=self.tables,
            review=self.review,
            recorded_before=self.recorded_before,
        )
        if own is None:
            raise PositionLostError(
                f"the schema history no longer reaches back to {begin}, the position of consumer "
                f"{reader.client_id}: {way_out}"
            )
        live_epoch = self.epoch()
        start = self._from(begin, live_epoch)
        by_time = functools.partial(in_live_epoch, self.by_time, self.epoch) if self.by_time is not None else None
        rules = StreamRules(
            choice=StartChoice(),
            epochs=lambda: Epochs(highest=self.epoch()),
            by_time=by_time,
            archive=self.archive,
            rows_queries=self.rows_queries,
        )
        return SourceStream(self, named, own, rules, start=start, live_epoch=live_epoch, way_out=way_out)

    def _from(self, begin: Position, epoch: int) -> Position:
        """Returns the position at which the stream starts. `epoch` is the live stream's epoch. If `begin` belongs to another epoch and has
        a GTID set, returns a position in `epoch` that has this GTID set but no file. So the positions of the stream get the live stream's
        epoch.
        """
        if begin.epoch == epoch or not begin.gtid_set:
            return begin
        return dataclasses.replace(
            begin, epoch=epoch, file="", offset=FIRST_OFFSET, server_uuid=self.server_uuid(), file_created=0
        )


def in_live_epoch(
    by_time: ByTime, live_epoch: Callable[[], int], cursor: Position, facts: ServerFacts, epochs: Epochs
) -> DumpStart | Lost:
    """Finds by commit time (`by_time`) where a consumer's own stream continues on another server after a failover. `live_epoch` returns the
    present epoch of the live stream. If it is above the epoch of `cursor`, the live stream reads this server already, and the returned
    position gets the live stream's epoch. Otherwise the position has the epoch that the live stream will begin on this server.
    """
    start = by_time(cursor, facts, epochs)
    if isinstance(start, Lost) or live_epoch() <= cursor.epoch:
        return start
    return dataclasses.replace(start, position=dataclasses.replace(start.position, epoch=live_epoch()))


class SourceStream:
    """Reads the source for one consumer (`consumer_stream.OwnStream`). `streams` opened this stream. `source` has another replica identity
    than the live stream's source, because a server serves only one connection per identity. `way_out` says how the consumer can continue if
    its position is lost. `live_epoch` is the live stream's epoch when this stream starts.
    """

    def __init__(
        self,
        streams: OwnStreams,
        source: Source,
        own: OwnStart,
        rules: StreamRules,
        *,
        start: Position,
        live_epoch: int,
        way_out: str,
    ) -> None:
        self._way_out, self._epoch, self._live_epoch = way_out, streams.epoch, live_epoch
        self._window = Window(own.begin, bytes_max=OWN_BYTES_MAX, waits=True, isolated=streams.isolated)
        self._parser = EventParser(
            source,
            rules,
            sink=_Into(self._window, streams.tables),
            history=own.history,
            captured=streams.tables.keeps,
            callbacks=ParserCallbacks(
                on_state=lambda _state, _reason: self._window.wake(),
                learn=functools.partial(own.learn, source, rules.archive, streams.tables.keeps),
            ),
            prepared=own.prepared,
        )
        self._parser.start(start)

    def read(
        self,
        position: WindowPosition,
        bytes_max: int,
        entries_max: int,
        timeout_seconds: float,
        given_up: Callable[[], bool],
        *,
        full: bool = False,
    ) -> WindowReading | None:
        """Returns the changes after a position as soon as there are any, or a reading without pieces if none arrive within
        `timeout_seconds`. If an error ended the stream, raises the error when the consumer has read all changes before the error.

        Returns None if the position is not in this stream's window, or if the live stream has begun another epoch. In both cases, the
        caller opens another stream for the consumer, whose positions have the live stream's current epoch.
        """
        if self._epoch() != self._live_epoch:
            return None
        found = self._window.read(
            *(position, bytes_max, entries_max, timeout_seconds),
            lambda: given_up() or self._parser.last_error is not None,
            full=full,
        )
        error = self._parser.last_error
        if error is not None and found is not None and not found.pieces:
            if isinstance(error, PositionLostError):
                raise PositionLostError(f"{error}. If this consumer may lose changes: {self._way_out}") from error
            raise error if isinstance(error, SluiceError) else SluiceError(str(error))
        return found

    def stream_state(self) -> StreamState | None:
        return self._parser.stream_state()

    def wake(self) -> None:
        self._window.wake()

    def close(self) -> None:
        self._window.close()
        self._parser.stop()


class _Into:
    """Puts the captured part of each block into the window (`BlockSink`)."""

    def __init__(self, window: Window, tables: TableFilter) -> None:
        self._window, self._tables = window, CapturedTables([tables])

    def accept(self, block: Block) -> None:
        self._window.put(dropped_uncaptured(block, self._tables))

    def interrupt(self) -> None:
        self._window.drop_open()
