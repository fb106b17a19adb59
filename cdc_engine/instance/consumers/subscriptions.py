"""Manages the consumers of a destination or a group by their numbers: which of them are subscribed, the service of each, and their cursors
in the ledger. Thread-safe.

The engine calls `keep` every second to save the cursors in the ledger, and `close` saves the cursors when the engine stops. After a kill,
the changes that were acked in the last second are handed out again. `consumers` and `group.consumers` have the subclasses.
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

# The maximum number of consumers per destination; further ones are refused. It is low because the ledger has a record for each consumer,
# and each write replaces the whole ledger.
CONSUMERS_MAX = 64
IDENTITY_BYTES = 6
IN_STEP, ALONE, STOPPED, IDLE = "IN_STEP", "ALONE", "STOPPED", "IDLE"

log = structlog.get_logger()


class ConsumerRecord(Protocol):
    """The ledger's record of a consumer."""

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
    """The status of a consumer. In the state IN_STEP, the consumer reads the live stream; in ALONE, its own stream. In STOPPED, `reason`
    says why. In IDLE, the consumer has requested nothing since the engine started.

    `position` is the acked position. `behind_seconds` is how far the consumer is behind the position up to which the engine has read, as
    the difference of the two commit times. `waiting` is the number of deliveries without an ack, and `waiting_since` the time of the oldest
    such delivery (seconds since 1970, 0 if there is none). `name` is set if the consumer is a broker.

    For the consumer of a group, `members` has the acked position of each member, and everything up to the commit time `barrier_us` is
    acked. `late` counts transactions that arrived after younger ones of other members were handed out. `waits_for` says which member may
    have the next transaction, and why that transaction is unknown.
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
    """Removes the consumers for which an operator called `sluice consumer forget`. `consumers` is None if conf/ no longer allows consumers;
    the consumers' records are then removed from the ledger. If the call raises MetaError, the operator's request stays for the next call.

    If conf/ still names a forgotten broker, the broker subscribes again by itself as a new consumer.
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
    """Returns a transition of the ledger that removes the consumer."""
    return lambda ledger: ledger.without_consumer(client_id)


class Subscriptions(abc.ABC, Generic[RecordT, PositionT, ContentT]):
    """Manages the consumers of a destination or a group. `brokers` has the name and the filter of each broker, by consumer number."""

    def __init__(self, meta: MetaManager, brokers: Mapping[int, tuple[str, str]]) -> None:
        self._meta, self._brokers = meta, dict(brokers)
        self._services: dict[int, ConsumerService[PositionT, ContentT]] = {}
        # Consumer → the id of its next delivery, for consumers whose service was ended. A new service of the consumer does not use an id
        # again, so a client cannot ack a delivery of the new service under the id of an earlier one.
        self._next_ids: dict[int, int] = {}
        self._lock = threading.RLock()

    @abc.abstractmethod
    def _records(self, ledger: Ledger) -> tuple[RecordT, ...]:
        """Returns the ledger's records of the consumers that this object manages."""

    @abc.abstractmethod
    def _with(self, ledger: Ledger, record: RecordT) -> Ledger:
        """Returns a ledger in which this record of a consumer is added or replaced."""

    @abc.abstractmethod
    def _born(self, client_id: int, client_filter: str) -> RecordT:
        """Returns the record of a new consumer. Raises SluiceError if the position where the consumer starts is not known yet."""

    @abc.abstractmethod
    def _moved(self, record: RecordT, client_filter: str, acked: PositionT | None) -> RecordT:
        """Returns a consumer's record with a new filter and with the position `acked` as its cursor. If `acked` is None, the cursor stays
        as it is.
        """

    @abc.abstractmethod
    def _identified(self, record: RecordT, identity: str) -> RecordT:
        """Returns a consumer's record with a new identity."""

    @abc.abstractmethod
    def _serving(self, record: RecordT, tables: TableFilter) -> ConsumerService[PositionT, ContentT]:
        """Returns a service for the consumer of a record. The service starts at the record's cursor."""

    def broker_of(self, client_id: int) -> str:
        """Returns the name of the broker with that consumer number, or an empty text if no broker has this number."""
        return self._brokers.get(client_id, ("", ""))[0]

    def identity_of(self, client_id: int) -> str:
        """Returns the identity of a consumer, which is a random text. If a consumer was forgotten, and another one subscribes with the same
        number, the two have different identities. The first call makes the identity and saves it in the ledger. Raises NotSubscribedError
        if no consumer has the number, and MetaError if the ledger cannot be saved.
        """
        with self._lock:
            record = self._record(client_id)
            if record is None:
                # The text is Canal's, because programs may compare it (docs/canal.md).
                raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
            if not record.identity:
                record = self._identified(record, secrets.token_hex(IDENTITY_BYTES))
                named = record
                self._meta.update(lambda ledger: self._with(ledger, named))
            return record.identity

    def subscribe(self, client_id: int, client_filter: str = "") -> ConsumerService[PositionT, ContentT]:
        """Returns the consumer's service. A new consumer starts at the oldest change in the window. If the filter differs from the previous
        one, the consumer continues at its acked position with the new filter. Raises ConfigurationError if the filter is invalid, or if
        there are CONSUMERS_MAX consumers already.
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
        """Removes the consumer and its cursor. Does nothing if no consumer has the number."""
        with self._lock:
            self._put_away(client_id)
            self._meta.update(without(client_id))

    def service(self, client_id: int) -> ConsumerService[PositionT, ContentT]:
        """Returns the service of a subscribed consumer. Raises NotSubscribedError if no consumer has the number."""
        with self._lock:
            found = self._services.get(client_id)
            record = self._record(client_id)
            if record is None:
                # The text is Canal's, because programs may compare it (docs/canal.md).
                raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
            return found or self._begun(record, client_tables(record.filter))

    def keep(self) -> None:
        """Saves in the ledger the cursors that have moved. If the call raises MetaError, the next call saves the cursors."""
        with self._lock:
            moved = [
                now
                for record in self._records(self._meta.ledger)
                if (now := self._moved(record, record.filter, self._acked(record.client_id))) != record
            ]
            if moved:
                self._meta.update(lambda ledger: self._with_all(ledger, moved))

    def close(self) -> None:
        """Ends all services and saves the cursors. Raises MetaError if the cursors could not be saved."""
        with self._lock:
            try:
                self.keep()
            finally:
                for client_id in list(self._services):
                    self._put_away(client_id)

    def _begun(self, record: RecordT, tables: TableFilter) -> ConsumerService[PositionT, ContentT]:
        service = self._serving(record, tables)
        service.number_from(self._next_ids.get(record.client_id, 1))
        self._services[record.client_id] = service
        return service

    def _refuse_too_many(self) -> None:
        if len(self._records(self._meta.ledger)) >= CONSUMERS_MAX:
            raise ConfigurationError(
                f"the destination or group has {CONSUMERS_MAX} consumers, which is the maximum: first unsubscribe a "
                "consumer, or remove one with `sluice consumer forget`"
            )

    def _put_away(self, client_id: int) -> None:
        service = self._services.pop(client_id, None)
        if service is not None:
            service.close()
            self._next_ids[client_id] = service.line.next_id

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
    """Returns why a consumer stopped, or an empty text if it runs."""
    return service.trouble or service.undelivered if service is not None else ""


def state_of(service: ConsumerService[PositionT, ContentT] | None) -> str:
    """Returns the state of a consumer for `ConsumerStatus`."""
    if service is None:
        return IDLE
    if reason_of(service):
        return STOPPED
    return ALONE if service.reads_alone else IN_STEP
