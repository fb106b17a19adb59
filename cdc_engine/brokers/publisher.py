"""What every broker is for the sender, and one in memory for the tests."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from cdc_engine.errors import PublishError


@dataclasses.dataclass(frozen=True)
class Message:
    """`partition`: of the topic, from 0 on; a broker without partitions takes no notice of it."""

    topic: str
    partition: int
    body: bytes


class Publisher(Protocol):
    """A connection to a broker. Used by one thread."""

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        """Returns when the broker has said of every message that it keeps it; those of a partition are in their order.

        Raises PublishError where it has not, with what is to be done; any part of the messages may be there then. `given_up` is asked
        while it waits, and ends it with a PublishError.
        """

    def close(self) -> None:
        """What is not sent yet is never sent."""


class MemoryBroker:
    """Keeps messages by topic and partition, as long as the process lasts. `topics`: partitions of each; None: any is made when asked for.

    `refuses`: said instead of taking the message that it is asked about, when it gives a sentence.
    """

    def __init__(self, topics: dict[str, int] | None = None, message_bytes_max: int = 1 << 20) -> None:
        self.kept: dict[tuple[str, int], list[bytes]] = {}
        self.topics, self.message_bytes_max = topics, message_bytes_max
        self.refuses: Callable[[Message], str] = lambda _: ""
        self.lock = threading.Lock()

    def messages(self, topic: str, partition: int = 0) -> list[bytes]:
        with self.lock:
            return list(self.kept.get((topic, partition), ()))

    def publisher(self) -> MemoryPublisher:
        return MemoryPublisher(self)


class MemoryPublisher:
    """Implements `Publisher`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        for message in messages:
            if given_up():
                raise ended_amid()
            self._keep(message)

    def _keep(self, message: Message) -> None:
        broker = self._broker
        if said := broker.refuses(message):
            raise PublishError(said)
        if broker.topics is not None and message.partition >= broker.topics.get(message.topic, 0):
            raise unknown_place("the broker in memory", message)
        if len(message.body) > broker.message_bytes_max:
            raise too_large(message, f"message_bytes_max is {broker.message_bytes_max}")
        with broker.lock:
            broker.kept.setdefault((message.topic, message.partition), []).append(message.body)

    def close(self) -> None:
        """Nothing is open."""


def ended_amid() -> PublishError:
    return PublishError("the sender was ended amid a batch: it comes again")


def too_large(message: Message, limit: str) -> PublishError:
    return PublishError(
        f"a message of {len(message.body)} bytes for topic {message.topic} is larger than the broker takes ({limit}): raise that limit, "
        "or let batch_bytes_max of this broker in conf/ be smaller"
    )


def unknown_place(where: str, message: Message) -> PublishError:
    return PublishError(
        f"{where} has no topic {message.topic} with a partition {message.partition}: make it there, with as many partitions as "
        "partitions_num in conf/ says, or correct topic, dynamic_topic and partition"
    )
