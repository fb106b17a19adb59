"""Defines the protocol through which the sender uses any broker, and a broker in memory for tests."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from sluice.cdc_engine.errors import PublishError

# The headers with a message's origin, for brokers that have headers.
GTID_HEADER, POSITION_HEADER = "sluice-gtid", "sluice-position"


@dataclasses.dataclass(frozen=True)
class MessageOrigin:
    """Where a message comes from. `gtid`: that of its transaction, empty without one; file and offset: those of its event in the binlog."""

    gtid: str = ""
    position: str = ""


NO_ORIGIN = MessageOrigin()


@dataclasses.dataclass(frozen=True)
class Message:
    """A message. `partition`: the number of the topic's partition, from 0 on; a broker without partitions ignores it. `origin`: used in the
    message's headers, if the broker has headers; for several events it is that of the last one. `key`: the row's key, for brokers whose
    messages have keys; empty: none.
    """

    topic: str
    partition: int
    body: bytes
    origin: MessageOrigin = NO_ORIGIN
    key: bytes = b""


class Publisher(Protocol):
    """A connection to a broker. Used by one thread."""

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        """Returns when the broker has confirmed every message; messages of one partition are in their order.

        Raises PublishError with what must be done if it has not; any part of the messages may then have arrived. `given_up` is called
        while it waits, and ends it with a PublishError.
        """

    def close(self) -> None:
        """Closes the connection. Messages that are not sent yet are never sent."""


@runtime_checkable
class CommittingPublisher(Publisher, Protocol):
    """A publisher whose broker commits the position of a batch's end together with its messages: both or neither. The sender then sends
    each message once, also after a crash before the ack. With any other publisher it sends at least once.
    """

    def committed(self, given_up: Callable[[], bool]) -> str:
        """Returns the position that was committed last; empty if there is none. Raises PublishError. An earlier publisher of the same name
        can commit nothing more after this call.
        """

    def commit(self, messages: Sequence[Message], position: str, given_up: Callable[[], bool]) -> None:
        """Sends as `send` does, and commits `position` with the messages. If it raises PublishError, a new publisher's `committed` says
        whether the messages have arrived.
        """


class MemoryBroker:
    """Keeps messages by topic and partition while the process runs. `topics`: topic → its number of partitions; None: any topic is created
    when it is used.

    `refuses`: called with a message; if it returns a sentence, the message is refused with it. `stalls`: it confirms nothing.
    """

    def __init__(self, topics: dict[str, int] | None = None, message_bytes_max: int = 1 << 20) -> None:
        self.kept: dict[tuple[str, int], list[bytes]] = {}
        self.topics, self.message_bytes_max = topics, message_bytes_max
        self.refuses: Callable[[Message], str] = lambda _: ""
        self.stalls = False
        self.lock = threading.Lock()

    def messages(self, topic: str, partition: int = 0) -> list[bytes]:
        with self.lock:
            return list(self.kept.get((topic, partition), ()))

    def publisher(self) -> MemoryPublisher:
        return MemoryPublisher(self)


class MemoryPublisher:
    """A connection to a `MemoryBroker`. Implements `Publisher`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        for message in messages:
            while (ends := given_up()) or self._broker.stalls:
                if ends:
                    raise ended_amid()
            self._keep(message)

    def _keep(self, message: Message) -> None:
        broker = self._broker
        if said := broker.refuses(message):
            raise PublishError(said)
        if broker.topics is not None and message.partition >= broker.topics.get(message.topic, 0):
            raise unknown_target("the broker in memory", message)
        if len(message.body) > broker.message_bytes_max:
            raise too_large(message, f"message_bytes_max is {broker.message_bytes_max}")
        with broker.lock:
            broker.kept.setdefault((message.topic, message.partition), []).append(message.body)

    def close(self) -> None:
        """Does nothing, because memory needs no closing."""


def ended_amid() -> PublishError:
    return PublishError("the sender was stopped within a batch, which is sent again after the next start")


def too_large(message: Message, limit: str) -> PublishError:
    return PublishError(
        f"a message of {len(message.body)} bytes for topic {message.topic} is larger than the broker accepts ({limit}): raise "
        "that limit, or let batch_bytes_max of this broker in conf/ be smaller"
    )


def unknown_target(where: str, message: Message) -> PublishError:
    return PublishError(
        f"{where} has no topic {message.topic} with a partition {message.partition}: create it there, with as many partitions "
        "as partitions_num in conf/, or correct topic, dynamic_topic and partition"
    )
