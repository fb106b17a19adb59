"""All consumers of one destination beside the lake: who they are, their cursors in the ledger, and what `status` says of them.

A cursor that moved is in the ledger within a second (`keep`, which the engine calls), and when the engine stops: after a kill what was
acked in that second comes again (canal.md §12.8). Called by the protocol server, from any thread.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from cdc_engine.binlog.entries.rows import KeptColumns
from cdc_engine.binlog.rows.refused_values import ValuePolicy
from cdc_engine.contracts import Consumer, LoggedStatement
from cdc_engine.errors import ConfigurationError, NotSubscribedError
from cdc_engine.instance.consumers.client_filter import client_tables
from cdc_engine.instance.consumers.feed import Chosen, ConsumerFeed, FeedPlace, OwnStream, Selection
from cdc_engine.meta.forget_requests import forget_asked, forget_done
from cdc_engine.meta.ledger import Ledger
from cdc_engine.meta.manager import MetaManager, Transition
from cdc_engine.position import Position
from cdc_engine.server.consumer import ConsumerService
from cdc_engine.sink.event_sink import CapturedTables
from cdc_engine.sink.table_filter import TableFilter
from cdc_engine.store.window.places import Place, key_of
from cdc_engine.store.window.window import Window

Service = ConsumerService[FeedPlace, tuple[Chosen, ...]]
Wants = Callable[[CapturedTables], Callable[[LoggedStatement], bool]]
CONSUMERS_MAX = 64  # they are in the ledger, which is written whole
IN_STEP, ALONE, STOPPED, IDLE = "IN_STEP", "ALONE", "STOPPED", "IDLE"

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerStatus:
    """`state`: IN_STEP with the live stream, ALONE with a connection of its own, STOPPED with `reason`, or IDLE: it has not asked yet.

    `position`: up to where it has acked. `behind_seconds`: of the source's clock, behind what the destination has read. `waiting`:
    deliveries without an ack, the oldest since `waiting_since` (seconds since 1970, 0: none). `name`: of the broker that it sends to.
    """

    client_id: int
    filter: str
    state: str
    reason: str
    position: Position
    behind_seconds: float
    waiting: int
    waiting_since: float
    name: str = ""


def forget_asked_for(directory: Path, meta: MetaManager, consumers: Consumers | None) -> None:
    """Those that an operator wants forgotten, also where conf/ has no consumers any more. Raises MetaError, and they are asked for still.

    A broker that conf/ still names subscribes anew by itself, as one that is new.
    """
    for client_id in forget_asked(directory):
        if consumers is not None:
            consumers.unsubscribe(client_id)
        else:
            meta.update(_without(client_id))
        forget_done(directory, client_id)
        log.warning("consumer_forgotten", destination=directory.name, client_id=client_id)


def _without(client_id: int) -> Transition:
    return lambda ledger: ledger.without_consumer(client_id)


class Consumers:
    """`server_filter`: of the destination; a consumer's own is applied beside it. `wants`: which statements, given its tables. `policies`,
    `kept`: as of `Selection`.

    `brokers`: by number the name and filter of those that send on: they subscribe at once, so that nothing is read before they do.
    """

    def __init__(
        self,
        meta: MetaManager,
        live: Window,
        *,
        open_own: Callable[[int, Place], OwnStream],
        held_up: Callable[[], bool],
        server_filter: TableFilter,
        wants: Wants,
        brokers: Mapping[int, tuple[str, str]] | None = None,
        policies: Mapping[str, ValuePolicy] | None = None,
        kept: KeptColumns | None = None,
    ) -> None:
        self._policies, self._kept = policies or {}, kept
        self._meta, self._live, self._open_own, self._held_up = meta, live, open_own, held_up
        self._server_filter, self._wants = server_filter, wants
        self._brokers = dict(brokers or {})
        self._services: dict[int, Service] = {}
        self._lock = threading.RLock()
        for client_id, (_, client_filter) in self._brokers.items():
            self.subscribe(client_id, client_filter)

    def broker_of(self, client_id: int) -> str:
        """The name of the broker whose number it is; empty for none."""
        return self._brokers.get(client_id, ("", ""))[0]

    def subscribe(self, client_id: int, client_filter: str = "") -> Service:
        """Its service. One that is new begins with the oldest change at hand; another filter takes the place of the one before.

        Raises ConfigurationError where the filter is none.
        """
        tables = client_tables(client_filter)
        with self._lock:
            record = self._meta.ledger.consumer(client_id)
            if record is None:
                self._refuse_too_many()
                record = Consumer(client_id=client_id, filter=client_filter, cursor=self._live.begin)
            elif record.filter != client_filter:
                record = dataclasses.replace(record, filter=client_filter, cursor=self._cursor(record))
                self._put_away(client_id)
            self._meta.update(lambda ledger: ledger.with_consumer(record))
            return self._services.get(client_id) or self._begun(record, tables)

    def unsubscribe(self, client_id: int) -> None:
        """Its cursor is forgotten. Without effect if it does not subscribe."""
        with self._lock:
            self._put_away(client_id)
            self._meta.update(_without(client_id))

    def service(self, client_id: int) -> Service:
        """Of one that subscribes. Raises NotSubscribedError."""
        with self._lock:
            found = self._services.get(client_id)
            record = self._meta.ledger.consumer(client_id)
            if record is None:
                raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
            return found or self._begun(record, client_tables(record.filter))

    def keep(self) -> None:
        """The cursors go into the ledger. Raises MetaError, and then they do with the next call."""
        with self._lock:
            moved = [
                dataclasses.replace(service.record, cursor=service.cursor)
                for service in self._services.values()
                if service.cursor != service.record.cursor
            ]
            if not moved:
                return
            self._meta.update(lambda ledger: _with_all(ledger, moved))
            for record in moved:
                self._services[record.client_id].record = record

    def statuses(self, live: Position | None) -> tuple[ConsumerStatus, ...]:
        """`live`: up to where the destination has read."""
        # without the lock, which a consumer that is put away may hold for long; a ledger never changes, another takes its place
        return tuple(self._status(record, live) for record in self._meta.ledger.consumers)

    def close(self) -> None:
        """Nobody gets anything any more; the cursors are kept. Raises MetaError."""
        with self._lock:
            try:
                self.keep()
            finally:
                for client_id in list(self._services):
                    self._put_away(client_id)

    def _begun(self, record: Consumer, tables: TableFilter) -> Service:
        captured = CapturedTables([self._server_filter, tables])
        feed = ConsumerFeed(
            self._live,
            lambda place: self._open_own(record.client_id, place),
            self._held_up,
            Selection(tables=captured, wants=self._wants(captured), policies=self._policies, kept=self._kept),
        )
        service: Service = ConsumerService(record, feed, FeedPlace(Place(record.cursor)))
        self._services[record.client_id] = service
        return service

    def _refuse_too_many(self) -> None:
        if len(self._meta.ledger.consumers) >= CONSUMERS_MAX:
            raise ConfigurationError(
                f"there are {CONSUMERS_MAX} consumers beside the lake: one of them is to unsubscribe first"
            )

    def _put_away(self, client_id: int) -> None:
        service = self._services.pop(client_id, None)
        if service is not None:
            service.close()

    def _cursor(self, record: Consumer) -> Position:
        service = self._services.get(record.client_id)
        return service.cursor if service is not None else record.cursor

    def _status(self, record: Consumer, live: Position | None) -> ConsumerStatus:
        service = self._services.get(record.client_id)
        cursor = self._cursor(record)
        behind = live is not None and key_of(cursor) < key_of(live)
        return ConsumerStatus(
            client_id=record.client_id,
            filter=record.filter,
            state=_state(service),
            reason=_reason(service),
            position=cursor,
            behind_seconds=max(0.0, (live.time_us - cursor.time_us) / 1e6) if behind and live is not None else 0.0,
            waiting=len(service.line.waiting) if service is not None else 0,
            waiting_since=service.waiting_since if service is not None else 0.0,
            name=self.broker_of(record.client_id),
        )


def _reason(service: Service | None) -> str:
    return service.trouble or service.undelivered if service is not None else ""


def _state(service: Service | None) -> str:
    if service is None:
        return IDLE
    if _reason(service):
        return STOPPED
    return ALONE if service.reads_alone else IN_STEP


def _with_all(ledger: Ledger, records: list[Consumer]) -> Ledger:
    for record in records:
        if ledger.consumer(record.client_id) is not None:
            ledger = ledger.with_consumer(record)
    return ledger
