"""Tests that every `Publisher` must pass. The test class of a broker plug-in inherits `PublisherContract` and defines a fixture `broker`
(docs/guides/write-a-broker-plug-in.md).
"""

# ruff: noqa: S101 - pytest runs this file

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.cdc_engine.brokers.publisher import CommittingPublisher, Message, Publisher
from sluice.cdc_engine.errors import PublishError

LARGE_BYTES = 3 << 20
RETURN_SECONDS_MAX = 90.0  # A test fails if a broker takes longer than this to accept messages after a restart.
# In one test of each contract, `given_up` returns True after this many calls, so that the publisher gives up the send.
LOOKS = 8


class BrokerUnderTest(Protocol):
    """A broker for one test. The broker must refuse a message of LARGE_BYTES, and a message for a topic that was not created.

    - `partitions`: the number of partitions of each topic that `topic` creates. 1 for a broker without partitions.
    - `where`: how errors name the broker, for example "Kafka at 127.0.0.1:9092".
    - `secret`: the password or token, which no error may contain. Empty if the broker needs no login.
    """

    partitions: int
    where: str
    secret: str

    def topic(self) -> str:
        """Creates a new topic and returns its name."""

    def publisher(self) -> Publisher:
        """Returns a new publisher for the broker. The publisher must raise an error if the broker does not confirm a message within a few
        seconds.
        """

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        """Waits until a partition has `count` messages, and returns all of its messages."""

    def stall(self) -> None:
        """Makes the broker hang (SIGSTOP): its connections stay open, and it does not answer."""

    def kill(self) -> None:
        """Ends the broker as in a crash (SIGKILL)."""

    def start(self) -> None:
        """Starts the killed broker again, with its topics."""


def never() -> bool:
    return False


class PublisherContract:
    """The tests for the promises of `Publisher`, one test for each promise. Each subclass must define the fixture `broker`."""

    def test_broker_keeps_each_partition_in_order_and_every_byte(self, broker: BrokerUnderTest) -> None:
        topic, publisher = broker.topic(), broker.publisher()
        sent = [Message(topic, number % broker.partitions, b"%d" % number + bytes(range(256))) for number in range(600)]
        publisher.send(sent[:400], never)
        publisher.send([], never)
        publisher.send(sent[400:], never)
        publisher.close()
        for partition in range(broker.partitions):
            own = [each.body for each in sent if each.partition == partition]
            assert broker.read(topic, partition, len(own)) == own

    def test_broker_without_the_topic_says_what_to_make(self, broker: BrokerUnderTest) -> None:
        said = refusal(broker, [Message("missing", 0, b"1")])
        assert "no topic missing" in said
        assert "create " in said
        assert broker.where in said

    def test_broker_that_refuses_a_size_says_so_and_takes_the_next(self, broker: BrokerUnderTest) -> None:
        topic = broker.topic()
        said = refusal(broker, [Message(topic, 0, b"x" * LARGE_BYTES)])
        assert f"{LARGE_BYTES} bytes for topic {topic} is larger" in said
        publisher = broker.publisher()
        publisher.send([Message(topic, 0, b"small")], never)
        publisher.close()
        assert broker.read(topic, 0, 1)[-1] == b"small"

    def test_broker_ends_a_batch_that_is_given_up(self, broker: BrokerUnderTest) -> None:
        assert "sends the batch again" in refusal(broker, [Message(broker.topic(), 0, b"1")], lambda: True)

    def test_broker_that_stalls_and_is_killed_delays_its_sender_and_loses_nothing(
        self, broker: BrokerUnderTest
    ) -> None:
        topic = broker.topic()
        messages = [Message(topic, number % broker.partitions, b"%d" % number) for number in range(60)]
        publisher = broker.publisher()
        publisher.send(messages[:20], never)
        broker.stall()
        calls = itertools.count()
        try:
            stalled = refusal(broker, messages[20:21], lambda: next(calls) > LOOKS, publisher)
            broker.kill()
            killed = refusal(broker, messages[20:40])
        finally:
            broker.kill()
            broker.start()
        assert "sends the batch again" in stalled, "a send returns only after the confirmation"
        assert broker.where in killed
        assert not broker.secret or broker.secret not in killed
        _send_until_accepted(broker, messages[20:])
        for partition in range(broker.partitions):
            own = [each.body for each in messages if each.partition == partition]
            assert list(dict.fromkeys(broker.read(topic, partition, len(own)))) == own


class CommittingContract(PublisherContract):
    """The tests for the promises of `CommittingPublisher`, in addition to those of `Publisher`."""

    def test_broker_keeps_the_position_of_the_last_batch_that_it_has(self, broker: BrokerUnderTest) -> None:
        topic, first = broker.topic(), _committing(broker)
        before = first.committed(never)
        first.commit([Message(topic, number % broker.partitions, b"%d" % number) for number in range(4)], "at 4", never)
        first.commit([Message(topic, 0, b"4")], "at 5", never)
        looks = itertools.count()
        given_up = _said(
            lambda: first.commit([Message(topic, 0, b"5")] * 9, "at 14", lambda: next(looks) > LOOKS), first
        )
        assert "sends the batch again" in given_up
        second = _committing(broker)
        assert (before, second.committed(never)) == ("", "at 5")
        second.commit([Message(topic, broker.partitions - 1, b"6")], "at 6", never)
        second.close()
        third = _committing(broker)
        assert third.committed(never) == "at 6", "also if the last batch is in another partition"
        third.close()
        assert broker.read(topic, 0, 1)[-1] == b"4"

    def test_broker_takes_nothing_from_an_earlier_publisher_once_a_later_one_has_read_the_position(
        self, broker: BrokerUnderTest
    ) -> None:
        topic, earlier, later = broker.topic(), _committing(broker), _committing(broker)
        earlier.commit([Message(topic, 0, b"1")], "at 1", never)
        assert later.committed(never) == "at 1"
        assert broker.where in _said(lambda: earlier.commit([Message(topic, 0, b"2")], "at 2", never), earlier)
        later.commit([Message(topic, 0, b"3")], "at 3", never)
        later.close()
        assert broker.read(topic, 0, 2) == [b"1", b"3"]


def _committing(broker: BrokerUnderTest) -> CommittingPublisher:
    publisher = broker.publisher()
    assert isinstance(publisher, CommittingPublisher), "it has both methods"
    return publisher


def _said(call: Callable[[], None], publisher: Publisher) -> str:
    """Returns the message of the PublishError that `call` raises, and closes the publisher. Raises AssertionError if `call` raises no
    error.
    """
    try:
        call()
    except PublishError as error:
        return str(error)
    finally:
        publisher.close()
    raise AssertionError("the messages were accepted")


def refusal(
    broker: BrokerUnderTest,
    messages: Sequence[Message],
    given_up: Callable[[], bool] = never,
    publisher: Publisher | None = None,
) -> str:
    """Returns the message of the error with which a publisher refuses messages, and closes the publisher. Raises AssertionError if the
    publisher accepts the messages.
    """
    used = publisher or broker.publisher()
    return _said(lambda: used.send(messages, given_up), used)


def _send_until_accepted(broker: BrokerUnderTest, messages: Sequence[Message]) -> None:
    """Sends messages as `BrokerSender` does: after an error, sends all of them again over a new connection."""
    end, pause = time.monotonic() + RETURN_SECONDS_MAX, threading.Event().wait
    while True:
        publisher = broker.publisher()
        try:
            return publisher.send(messages, never)
        except PublishError:
            if time.monotonic() > end:
                raise
            pause(0.2)
        finally:
            publisher.close()
