"""What every broker promises the sender; a broker's tests inherit it and give it a place."""

from __future__ import annotations

from typing import Protocol

import pytest

from sluice.cdc_engine.brokers.publisher import Message, Publisher
from sluice.cdc_engine.errors import PublishError

LARGE = 3 << 20


class Place(Protocol):
    """A broker with room of its own for one test. `partitions`: of a topic that is made."""

    partitions: int

    def topic(self) -> str:
        """A new one."""

    def publisher(self) -> Publisher: ...
    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        """All that is there once so many are."""


def never() -> bool:
    return False


class PublisherContract:
    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    def test_broker_keeps_each_partition_in_order_and_every_byte(self, place: Place) -> None:
        topic, publisher = place.topic(), place.publisher()
        sent = [Message(topic, number % place.partitions, b"%d" % number + bytes(range(256))) for number in range(600)]
        publisher.send(sent[:400], never)
        publisher.send([], never)
        publisher.send(sent[400:], never)
        publisher.close()
        for partition in range(place.partitions):
            own = [each.body for each in sent if each.partition == partition]
            assert place.read(topic, partition, len(own)) == own

    def test_broker_without_the_topic_says_what_to_make(self, place: Place) -> None:
        publisher = place.publisher()
        with pytest.raises(PublishError, match=r"no topic missing.* create it"):
            publisher.send([Message("missing", 0, b"1")], never)
        publisher.close()

    def test_broker_that_refuses_a_size_says_so_and_takes_the_next(self, place: Place) -> None:
        topic, publisher = place.topic(), place.publisher()
        with pytest.raises(PublishError, match=f"{LARGE} bytes for topic {topic} is larger"):
            publisher.send([Message(topic, 0, b"x" * LARGE)], never)
        publisher.close()
        publisher = place.publisher()
        publisher.send([Message(topic, 0, b"small")], never)
        publisher.close()
        assert place.read(topic, 0, 1)[-1] == b"small"

    def test_broker_ends_a_batch_that_is_given_up(self, place: Place) -> None:
        publisher = place.publisher()
        with pytest.raises(PublishError, match="is sent again"):
            publisher.send([Message(place.topic(), 0, b"1")], lambda: True)
        publisher.close()
