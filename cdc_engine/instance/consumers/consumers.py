"""Manages the consumers of one destination: their numbers, their cursors in the ledger, and their statuses.

The protocol server, brokers, and the groups that have the destination as a member call this module from any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sluice.cdc_engine.contracts import Consumer, LoggedStatement
from sluice.cdc_engine.instance.consumers.committed import Counting, StreamPositionCodec
from sluice.cdc_engine.instance.consumers.consumer_stream import (
    Chosen,
    DestinationStream,
    OwnStream,
    Selection,
    StreamPosition,
    StreamReader,
)
from sluice.cdc_engine.instance.consumers.forms import ALL_ENTRIES, Forms, ShownEntries
from sluice.cdc_engine.instance.consumers.readable import Readable
from sluice.cdc_engine.instance.consumers.subscriptions import ConsumerStatus, Subscriptions, reason_of, state_of
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.server.consumer import ConsumerService
from sluice.cdc_engine.sink.event_sink import CapturedTables
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.window.positions import WindowPosition, key_of
from sluice.cdc_engine.store.window.window import Window

Service = ConsumerService[StreamPosition, tuple[Chosen, ...]]
Wants = Callable[[CapturedTables, ShownEntries], Callable[[LoggedStatement], bool]]
NO_FORMS = Forms()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerStreams:
    """The streams that the consumers of a destination read: the window `live`, or the consumer's own stream that `open_own` opens if the
    window does not have the consumer's position. While `held_up` returns True, the live stream waits for space in the store, and the window
    gets no further changes.
    """

    live: Window
    open_own: Callable[[StreamReader, WindowPosition], OwnStream]
    held_up: Callable[[], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveSource:
    """The facts about a member's live stream that a group needs: the source, the position up to which the stream has read, and why the
    stream does not run (an empty text if it runs).
    """

    source: Source | None = None
    stream_state: Callable[[], StreamState | None] = lambda: None
    trouble: Callable[[], str] = lambda: ""


NO_SOURCE = LiveSource()


class Consumers(Subscriptions[Consumer, StreamPosition, tuple[Chosen, ...]]):
    """The consumers of a destination. The destination's filter `server_filter` applies in addition to a consumer's own filter. `wants`
    returns the function that selects statements for a consumer.

    `brokers` has the name and the filter of each broker, by consumer number. The constructor subscribes the brokers before the stream is
    read, so a new broker gets all changes from the start of the stream.
    """

    def __init__(
        self,
        meta: MetaManager,
        streams: ConsumerStreams,
        *,
        server_filter: TableFilter,
        wants: Wants,
        brokers: Mapping[int, tuple[str, str]] | None = None,
        forms: Forms = NO_FORMS,
        source: LiveSource = NO_SOURCE,
    ) -> None:
        super().__init__(meta, brokers or {})
        self.forms, self.source, self.stream_state, self.trouble = (
            forms,
            source.source,
            source.stream_state,
            source.trouble,
        )
        self._shown = Readable(forms)
        self._streams = streams
        self._server_filter, self._wants = server_filter, wants
        for client_id, (_, client_filter) in self._brokers.items():
            self.subscribe(client_id, client_filter)

    @property
    def begin(self) -> Position:
        """The position where a new consumer starts: before the oldest change in the window."""
        return self._streams.live.begin

    @property
    def counting(self) -> Counting:
        """The current epoch and table filter. A position within a transaction counts the row events of captured tables. So a consumer's
        position is valid only while the epoch and the filter are unchanged.
        """
        return Counting(self._meta.ledger.epoch, f"{self._server_filter.include}\n{self._server_filter.exclude}")

    def stream_for(self, reader: StreamReader, filters: Sequence[TableFilter]) -> DestinationStream:
        """Returns a stream for one reader. `filters` apply in addition to the destination's filter."""
        captured, entries = CapturedTables([self._server_filter, *filters]), self._entries_for(reader)
        client = not reader.group and reader.client_id not in self.forms.of_brokers
        return DestinationStream(
            self._streams.live,
            lambda position: self._streams.open_own(reader, position),
            self._streams.held_up,
            Selection(tables=captured, wants=self._wants(captured, entries), shown=self._shown, entries=entries),
            full=client and self.forms.full_batches,
        )

    def _entries_for(self, reader: StreamReader) -> ShownEntries:
        """Returns the kinds of entries that a reader gets. A group gets all kinds."""
        if reader.group:
            return ALL_ENTRIES
        return self.forms.of_brokers.get(reader.client_id, self.forms.entries)

    def statuses(self, live: Position | None) -> tuple[ConsumerStatus, ...]:
        """Returns the status of each consumer. `live` is the position up to which the destination has read."""
        # Reads the ledger without the lock, because a consumer that is being closed may hold the lock for long. That is safe, because a
        # ledger is immutable and is replaced as a whole.
        return tuple(self._status(record, live) for record in self._meta.ledger.consumers)

    def _records(self, ledger: Ledger) -> tuple[Consumer, ...]:
        return ledger.consumers

    def _with(self, ledger: Ledger, record: Consumer) -> Ledger:
        return ledger.with_consumer(record)

    def _born(self, client_id: int, client_filter: str) -> Consumer:
        return Consumer(client_id=client_id, filter=client_filter, cursor=self._streams.live.begin)

    def _moved(self, record: Consumer, client_filter: str, acked: StreamPosition | None) -> Consumer:
        cursor = acked.position if acked is not None else record.cursor
        return dataclasses.replace(record, filter=client_filter, cursor=cursor)

    def _identified(self, record: Consumer, identity: str) -> Consumer:
        return dataclasses.replace(record, identity=identity)

    def _serving(self, record: Consumer, tables: TableFilter) -> Service:
        stream = self.stream_for(StreamReader(record.client_id), [tables])
        begin = StreamPosition(WindowPosition(record.cursor))
        codec = StreamPositionCodec(lambda: self.identity_of(record.client_id), lambda: self.counting)
        return ConsumerService(record.client_id, stream, begin, codec)

    def _status(self, record: Consumer, live: Position | None) -> ConsumerStatus:
        service = self._services.get(record.client_id)
        cursor = service.acked.position if service is not None else record.cursor
        behind = live is not None and key_of(cursor) < key_of(live)
        return ConsumerStatus(
            client_id=record.client_id,
            filter=record.filter,
            state=state_of(service),
            reason=reason_of(service),
            position=cursor,
            behind_seconds=max(0.0, (live.time_us - cursor.time_us) / 1e6) if behind and live is not None else 0.0,
            waiting=len(service.line.waiting) if service is not None else 0,
            waiting_since=service.waiting_since if service is not None else 0.0,
            name=self.broker_of(record.client_id),
        )
