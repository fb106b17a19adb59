"""Manages the subscriptions of a destination or a group by client number: the services, and the cursors in the ledger. Called from any
thread.

A moved cursor is written to the ledger within a second (`keep`, which the engine calls) and when the engine stops. After a kill, changes
that were acked in that second are handed out again. `consumers` has the subclass for a destination, `group` the one for a
group.
"""

from __future__ import annotations

import abc
import dataclasses
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from sluice.cdc_engine.errors import ConfigurationError, NotSubscribedError
from sluice.cdc_engine.instance.consumers.client_filter import client_tables
from sluice.cdc_engine.meta.forget_requests import forget_done, forgets_requested
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager, Transition
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.server.consumer import ConsumerService
from sluice.cdc_engine.sink.table_filter import TableFilter

CONSUMERS_MAX = 64  # The most consumers of a destination. The ledger has a record of each and is written as a whole.
IDENTITY_BYTES = 6
IN_STEP, ALONE, STOPPED, IDLE = "IN_STEP", "ALONE", "STOPPED", "IDLE"

log = structlog.get_logger()


class ConsumerRecord(Protocol):
    """A consumer's record in the ledger."""

    @property
    def client_id(self) -> int: ...
    @property
    def filter(self) -> str: ...
    @property
    def identity(self) -> str: ...


RecordT = TypeVar("RecordT", bound=ConsumerRecord)
PositionT = TypeVar("PositionT")
ContentT = TypeVar("ContentT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerStatus:
    """The status of a consumer. `state`: IN_STEP reads the live stream. ALONE reads over a connection of its own. STOPPED has a `reason`.
    IDLE has not requested anything yet.

    `position`: the position up to which the consumer has acked. `behind_seconds`: how far the consumer is behind what the destination has
    read, in seconds of the source's clock. `waiting`: number of deliveries without an ack. `waiting_since`: the time of the oldest of them
    (seconds since 1970), 0 if there is none. `name`: the broker to which the consumer sends.

    For a group, `members` has the positions by name, `barrier_us` the commit time up to which it has acked, `late` the number of
    transactions that arrived after younger ones of other members were handed out, and `waits_for` the member that may have the next
    transaction, and why that is unknown.
    """

    client_id: int
    filter: str
    state: str
    reason: str
    position: Position | None = None
    behind_seconds: float
    waiting: int
    waiting_since: float
    name: str = ""
    members: Mapping[str, Position] = dataclasses.field(default_factory=dict)
    barrier_us: int = 0
    late: int = 0
    waits_for: str = ""


def forget_requested(directory: Path, meta: MetaManager, consumers: Forgetting | None) -> None:
    """Forgets the consumers that an operator requested to forget, also if conf/ has no consumers any more. Raises MetaError, and then
    leaves the request in place.

    A broker that conf/ still names subscribes again by itself, as a new consumer.
    """
    for client_id in forgets_requested(directory):
        if consumers is not None:
            consumers.unsubscribe(client_id)
        else:
            meta.update(without(client_id))
        forget_done(directory, client_id)
        log.warning("consumer_forgotten", destination=directory.name, client_id=client_id)


class Forgetting(Protocol):
    def unsubscribe(self, client_id: int) -> None: ...


def without(client_id: int) -> Transition:
    """Returns the change of the ledger that removes the consumer."""
    return lambda ledger: ledger.without_consumer(client_id)


class Subscriptions(abc.ABC, Generic[RecordT, PositionT, ContentT]):
    """Manages the consumers of a destination or a group. `brokers`: name and filter of the consumers that send to brokers, by number."""

    def __init__(self, meta: MetaManager, brokers: Mapping[int, tuple[str, str]]) -> None:
        self._meta, self._brokers = meta, dict(brokers)
        self._services: dict[int, ConsumerService[PositionT, ContentT]] = {}
        self._lock = threading.RLock()

    @abc.abstractmethod
    def _records(self, ledger: Ledger) -> tuple[RecordT, ...]:
        """Returns all records of a ledger."""

    @abc.abstractmethod
    def _with(self, ledger: Ledger, record: RecordT) -> Ledger:
        """Returns the ledger with this record."""

    @abc.abstractmethod
    def _born(self, client_id: int, client_filter: str) -> RecordT:
        """Returns the record of a new consumer. Raises SluiceError if its start is not known yet."""

    @abc.abstractmethod
    def _moved(self, record: RecordT, client_filter: str, acked: PositionT | None) -> RecordT:
        """Returns the record with a new filter. `acked`: the position up to which the consumer has acked, which becomes its cursor; None if
        it was not served.
        """

    @abc.abstractmethod
    def _identified(self, record: RecordT, identity: str) -> RecordT:
        """Returns the record with an identity."""

    @abc.abstractmethod
    def _serving(self, record: RecordT, tables: TableFilter) -> ConsumerService[PositionT, ContentT]:
        """Returns a service that starts at the record's cursor."""

    def broker_of(self, client_id: int) -> str:
        """Returns the name of the broker with that number; empty if there is none."""
        return self._brokers.get(client_id, ("", ""))[0]

    def identity_of(self, client_id: int) -> str:
        """Returns the identity of a consumer, which is chosen at the first call and saved in the ledger. A consumer that was forgotten and
        subscribes again has another one. Raises NotSubscribedError, MetaError.
        """
        with self._lock:
            record = self._record(client_id)
            if record is None:
                raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
            if not record.identity:
                record = self._identified(record, secrets.token_hex(IDENTITY_BYTES))
                named = record
                self._meta.update(lambda ledger: self._with(ledger, named))
            return record.identity

    def subscribe(self, client_id: int, client_filter: str = "") -> ConsumerService[PositionT, ContentT]:
        """Returns the consumer's service. A new consumer starts with the oldest available change; another filter replaces the previous one.

        Raises ConfigurationError if the filter is invalid.
        """
        tables = client_tables(client_filter)
        with self._lock:
            record = self._record(client_id)
            if record is None:
                self._refuse_too_many()
                record = self._born(client_id, client_filter)
            elif record.filter != client_filter:
                record = self._moved(record, client_filter, self._acked(client_id))
                self._put_away(client_id)
            self._meta.update(lambda ledger: self._with(ledger, record))
            return self._services.get(client_id) or self._begun(record, tables)

    def unsubscribe(self, client_id: int) -> None:
        """Forgets the consumer's cursor. Has no effect if it is not subscribed."""
        with self._lock:
            self._put_away(client_id)
            self._meta.update(without(client_id))

    def service(self, client_id: int) -> ConsumerService[PositionT, ContentT]:
        """Returns the service of a subscribed consumer. Raises NotSubscribedError."""
        with self._lock:
            found = self._services.get(client_id)
            record = self._record(client_id)
            if record is None:
                raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
            return found or self._begun(record, client_tables(record.filter))

    def keep(self) -> None:
        """Saves the cursors in the ledger. Raises MetaError; the next call then saves them."""
        with self._lock:
            moved = [
                now
                for record in self._records(self._meta.ledger)
                if (now := self._moved(record, record.filter, self._acked(record.client_id))) != record
            ]
            if moved:
                self._meta.update(lambda ledger: self._with_all(ledger, moved))

    def close(self) -> None:
        """Ends all services and saves the cursors. Raises MetaError."""
        with self._lock:
            try:
                self.keep()
            finally:
                for client_id in list(self._services):
                    self._put_away(client_id)

    def _begun(self, record: RecordT, tables: TableFilter) -> ConsumerService[PositionT, ContentT]:
        service = self._services[record.client_id] = self._serving(record, tables)
        return service

    def _refuse_too_many(self) -> None:
        if len(self._records(self._meta.ledger)) >= CONSUMERS_MAX:
            raise ConfigurationError(
                f"the destination has {CONSUMERS_MAX} consumers, which is the maximum: first unsubscribe a "
                "consumer, or remove one with `sluice consumer forget`"
            )

    def _put_away(self, client_id: int) -> None:
        service = self._services.pop(client_id, None)
        if service is not None:
            service.close()

    def _record(self, client_id: int) -> RecordT | None:
        return next((each for each in self._records(self._meta.ledger) if each.client_id == client_id), None)

    def _acked(self, client_id: int) -> PositionT | None:
        service = self._services.get(client_id)
        return service.acked if service is not None else None

    def _with_all(self, ledger: Ledger, moved: list[RecordT]) -> Ledger:
        there = {each.client_id for each in self._records(ledger)}
        for record in moved:
            if record.client_id in there:
                ledger = self._with(ledger, record)
        return ledger


def reason_of(service: ConsumerService[PositionT, ContentT] | None) -> str:
    """Returns why a consumer stopped, or empty."""
    return service.trouble or service.undelivered if service is not None else ""


def state_of(service: ConsumerService[PositionT, ContentT] | None) -> str:
    """Returns the state for `ConsumerStatus`."""
    if service is None:
        return IDLE
    if reason_of(service):
        return STOPPED
    return ALONE if service.reads_alone else IN_STEP
