"""Defines `Publisher`, the protocol with which the sender sends messages to any kind of broker, and a broker in memory for tests."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from sluice.cdc_engine.errors import PublishError

# The names of the headers with a message's origin, for brokers whose messages have headers.
GTID_HEADER, POSITION_HEADER = "sluice-gtid", "sluice-position"


@dataclasses.dataclass(frozen=True)
class MessageOrigin:
    """The origin of a message in the binlog. `gtid` is the GTID of its transaction, or empty if the source has no GTIDs. `position` is the
    file and offset of its event, as FILE:OFFSET.
    """

    gtid: str = ""
    position: str = ""


NO_ORIGIN = MessageOrigin()


@dataclasses.dataclass(frozen=True)
class Message:
    """A message for a broker.

    - `partition`: the number of the topic's partition, from 0 on. A broker without partitions ignores it.
    - `origin`: sent in the message's headers, if the broker has headers. A message of several events has the origin of the last event.
    - `key`: the row's key, for brokers whose messages have keys, or empty.
    """

    topic: str
    partition: int
    body: bytes
    origin: MessageOrigin = NO_ORIGIN
    key: bytes = b""


class Publisher(Protocol):
    """A connection to a broker. Not thread-safe."""

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        """Sends the messages, and returns when the broker has confirmed all of them. Messages of one partition arrive in order.

        Raises PublishError, whose message says what to do, if the broker has not confirmed all messages. Some of them may have arrived.
        Calls `given_up` during the wait. If `given_up` returns True, the wait ends with a PublishError.
        """

    def close(self) -> None:
        """Closes the connection. Drops messages that are not sent yet."""


@runtime_checkable
class CommittingPublisher(Publisher, Protocol):
    """A publisher whose broker commits the messages of a batch, and the position of the batch's end, in one transaction. So the broker gets
    each message exactly once, even if Sluice crashes before the ack. With any other publisher, the broker gets each message at least once.
    """

    def committed(self, given_up: Callable[[], bool]) -> str:
        """Returns the position that was committed last, or "" if no position was committed. After this call, a publisher that was opened
        earlier under the same name (Kafka's transactional_id) cannot commit any more. Raises PublishError if the broker does not answer.
        """

    def commit(self, messages: Sequence[Message], position: str, given_up: Callable[[], bool]) -> None:
        """Sends messages as `send` does, and commits them together with `position`. After a PublishError, it is unknown whether the
        messages were committed. If they were committed, `committed` of a new publisher returns `position`.
        """


class MemoryBroker:
    """A broker in memory, for tests. The broker stores messages by topic and partition. `topics` has each topic's number of partitions. If
    `topics` is None, every topic exists.

    `refuses` is called with each message. If it returns a text, the broker refuses the message for this reason. If `stalls` is set, the
    broker does not confirm messages.
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
    """A connection to a `MemoryBroker` (implements `Publisher`)."""

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
        """Does nothing, because there is no connection."""


def ended_amid() -> PublishError:
    return PublishError("the sender was stopped within a batch; Sluice sends the batch again after the next start")


def too_large(message: Message, limit: str) -> PublishError:
    return PublishError(
        f"a message of {len(message.body)} bytes for topic {message.topic} is larger than the broker accepts "
        f"({limit}): raise this limit, or set a smaller batch_bytes_max for the broker in conf/"
    )


def unknown_target(where: str, message: Message) -> PublishError:
    return PublishError(
        f"{where} has no topic {message.topic} with a partition {message.partition}: create the topic with as "
        "many partitions as partitions_num in conf/, or correct topic, dynamic_topic and partition"
    )
