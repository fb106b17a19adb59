"""Tests the loop that sends to a broker: it acks only after the broker's ack, rolls back and tries again after a failure, and survives
crashes at any moment.
"""

# ruff: noqa: ARG002 - a feed takes what its caller gives

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

import pytest

from sluice.cdc_engine.brokers import sender as sender_room
from sluice.cdc_engine.brokers.publisher import MemoryBroker, MemoryPublisher, Message
from sluice.cdc_engine.brokers.sender import BrokerSender, RoundResult
from sluice.cdc_engine.errors import ConsumerStoppedError, NotStartedError, PublishError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.server.consumer import ConsumerService
from tests.waiting import wait_for

PARTITIONS = 3
Numbers = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class At:
    """A position: this many numbers were read."""

    count: int

    @property
    def position(self) -> Position:
        return Position(epoch=1, file="binlog.000001", offset=4 + 16 * self.count)


class Numbered:
    """Serves the numbers below `count`, at most `at_once` at a time. If `stops` is set, `take` raises this error."""

    reads_alone = False

    def __init__(self, count: int, at_once: int = 4) -> None:
        self.count, self._at_once = count, at_once
        self.stops: Exception | None = None

    def take(
        self, at: At, bytes_max: int, timeout_seconds: float, given_up: Callable[[], bool], *, entries_max: int = 0
    ) -> tuple[Numbers | None, At]:
        if self.stops is not None:
            raise self.stops
        end = min(self.count, at.count + self._at_once)
        return tuple(range(at.count, end)) or None, At(end)

    def wake(self) -> None:
        """Does nothing, because no thread waits."""

    def close(self) -> None:
        """Does nothing, because nothing is open."""


def service_of(feed: Numbered, begin: int = 0) -> ConsumerService[At, Numbers]:
    return ConsumerService(1001, feed, At(begin))


def made(numbers: Numbers, batch_id: int) -> list[Message]:
    return [Message("numbers", number % PARTITIONS, b"%d" % number) for number in numbers]


def sender_of(service: ConsumerService[At, Numbers], broker: MemoryBroker) -> BrokerSender[Numbers]:
    return BrokerSender(
        "test", lambda: service, made, broker.publisher, bytes_max=100, wait_seconds=0.0, pause_seconds=0.001
    )


def kept(broker: MemoryBroker, partition: int) -> list[int]:
    return [int(each) for each in broker.messages("numbers", partition)]


def test_broker_gets_everything_and_is_acked_batch_by_batch() -> None:
    broker, service = MemoryBroker(), service_of(Numbered(10))
    sender = sender_of(service, broker)
    assert [sender.send_next() for _ in range(4)] == [
        RoundResult.SENT,
        RoundResult.SENT,
        RoundResult.SENT,
        RoundResult.NOTHING,
    ]
    assert service.acked.position == At(10).position
    assert kept(broker, 1) == [1, 4, 7]


def test_broker_that_fails_within_a_batch_gets_it_again_and_the_status_says_why() -> None:
    broker, service = MemoryBroker(), service_of(Numbered(8))
    sender = sender_of(service, broker)
    broker.refuses = lambda message: "the broker is away" if message.body == b"6" else ""
    assert [sender.send_next() for _ in range(3)] == [RoundResult.SENT, RoundResult.AGAIN, RoundResult.AGAIN]
    assert (service.undelivered, service.acked.position) == ("the broker is away", At(4).position)
    broker.refuses = lambda _: ""
    assert sender.send_next() is RoundResult.SENT
    assert (service.undelivered, service.acked.position) == ("", At(8).position)
    assert kept(broker, 2) == [2, 5, 5, 5]
    assert kept(broker, 0) == [0, 3, 6]


def test_broker_that_cannot_be_opened_loses_nothing() -> None:
    service = service_of(Numbered(4))

    def away() -> MemoryBroker:
        raise PublishError("nobody listens at broker:9092")

    sender: BrokerSender[Numbers] = BrokerSender("test", lambda: service, made, away, bytes_max=100, wait_seconds=0.0)  # type: ignore[arg-type]
    assert sender.send_next() is RoundResult.AGAIN
    assert "nobody listens" in service.undelivered
    assert service.acked.position == At(0).position


def test_broker_waits_where_its_consumer_stopped_or_the_engine_did() -> None:
    feed, broker = Numbered(4), MemoryBroker()
    service = service_of(feed)
    sender = sender_of(service, broker)
    feed.stops = ConsumerStoppedError("the rows of shop.orders cannot be read")
    assert sender.send_next() is RoundResult.AGAIN
    assert service.trouble == "the rows of shop.orders cannot be read", "what it waits for is told"
    feed.stops = None
    assert sender.send_next() is RoundResult.SENT
    assert not service.trouble

    def gone() -> ConsumerService[At, Numbers]:
        raise NotStartedError("destination:shop should start first")

    assert BrokerSender("test", gone, made, broker.publisher, bytes_max=100).send_next() is RoundResult.AGAIN


def test_broker_thread_outlives_a_mistake_before_anything_is_taken() -> None:
    def mistaken() -> ConsumerService[At, Numbers]:
        raise KeyError("ours")

    assert (
        BrokerSender("test", mistaken, made, MemoryBroker().publisher, bytes_max=100).send_next() is RoundResult.AGAIN
    )


@pytest.mark.found
def test_broker_thread_outlives_a_publisher_that_cannot_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1180: if `close` of a publisher raised an error, for example in a plug-in whose connection was broken, the sending thread
    ended. The broker got no more changes until the engine was restarted, and the status showed no reason.
    """

    def broken(_self: object) -> None:
        raise BrokenPipeError("the connection is broken")

    broker, service = MemoryBroker(), service_of(Numbered(4))
    monkeypatch.setattr(MemoryPublisher, "close", broken)
    broker.refuses = lambda _: "the broker is away"
    sender = sender_of(service, broker)
    assert sender.send_next() is RoundResult.AGAIN
    assert (service.undelivered, service.line.waiting) == ("the broker is away", ())
    broker.refuses = lambda _: ""
    assert sender.send_next() is RoundResult.SENT


def test_broker_gets_no_more_of_a_batch_once_the_destination_is_another_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_room, "LOOK_SECONDS", 0.0)
    broker, service, looks = MemoryBroker(), service_of(Numbered(8)), iter([True, True, False])
    sender = BrokerSender(
        "test",
        lambda: service,
        made,
        broker.publisher,
        bytes_max=100,
        wait_seconds=0.0,
        may_send=lambda: next(looks, True),
    )
    assert sender.send_next() is RoundResult.AGAIN, "it stays given up"
    assert [int(each) for at in broker.kept.values() for each in at] == [0, 1]
    assert service.acked.position == At(0).position


def test_broker_thread_ends_within_a_batch_that_no_broker_accepts() -> None:
    broker, service = MemoryBroker(), service_of(Numbered(4))
    sender = sender_of(service, broker)
    broker.refuses = lambda _: "the broker is away"
    sender.begin()
    wait_for("it was tried", lambda: bool(service.undelivered))
    sender.end()
    assert service.acked.position == At(0).position
    assert not service.line.waiting


@pytest.mark.parametrize("seed", range(30))
def test_broker_loses_nothing_whenever_it_or_the_engine_is_killed(seed: int) -> None:
    """The engine is killed between the broker's ack and the cursor's write, and the broker fails during a batch. Messages repeat, but none
    is missing.
    """
    chance, broker, feed = random.Random(seed), MemoryBroker(), Numbered(60, at_once=7)  # noqa: S311
    broker.refuses = lambda _: "the broker is away" if chance.random() < 0.05 else ""
    ledger = 0  # The cursor with which a restart begins.
    service = service_of(feed, ledger)
    repeats = 0
    while ledger < 60:
        sender_of(service, broker).send_next()
        if chance.random() < 0.2:  # The engine is killed here.
            service = service_of(feed, ledger)
        elif chance.random() < 0.5:  # The cursor is written here.
            ledger = (service.acked.position.offset - 4) // 16
    for partition in range(PARTITIONS):
        found = kept(broker, partition)
        first = list(dict.fromkeys(found))
        assert first == [number for number in range(60) if number % PARTITIONS == partition]
        # A repetition begins at an earlier message and continues from there without a gap.
        assert all(after <= before + PARTITIONS for before, after in itertools.pairwise(found))
        repeats += len(found) - len(first)
    assert repeats or seed
