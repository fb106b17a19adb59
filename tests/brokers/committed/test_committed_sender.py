"""Tests brokers that commit the position together with the messages. Each message must arrive once, even if the sender is killed and makes
other batches afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from sluice.cdc_engine.brokers.publisher import MemoryBroker, MemoryPublisher, Message
from sluice.cdc_engine.brokers.sender import BrokerSender, RoundResult
from sluice.cdc_engine.errors import NotSubscribedError, PublishError
from sluice.cdc_engine.server.consumer import ConsumerService
from tests.brokers.test_broker_sender import PARTITIONS, At, Numbered, Numbers, kept, made

COUNT = 60


class NumberCodec:
    """Encodes a number as its text."""

    def text(self, position: At) -> str:
        return str(position.count)

    def later(self, acked: At, text: str) -> At | None:
        return At(int(text)) if int(text) > acked.count else None


class CommittingBroker(MemoryBroker):
    """A broker that commits the messages and the position of a batch together. If `fails_after` returns True, a commit that succeeded
    raises an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.position = ""
        self.fails_after: Callable[[], bool] = lambda: False

    def publisher(self) -> MemoryPublisher:
        return Committing(self)


class Committing(MemoryPublisher):
    def __init__(self, broker: CommittingBroker) -> None:
        super().__init__(broker)
        self._whole = broker

    def committed(self, given_up: Callable[[], bool]) -> str:
        del given_up
        return self._whole.position

    def commit(self, messages: Sequence[Message], position: str, given_up: Callable[[], bool]) -> None:
        self.send(messages, given_up)
        self._whole.position = position
        if self._whole.fails_after():
            raise PublishError("no answer to the commit")


def service_at(begin: int, at_once: int = 4) -> ConsumerService[At, Numbers]:
    return ConsumerService(1001, Numbered(COUNT, at_once), At(begin), NumberCodec())


def sender_of(service: ConsumerService[At, Numbers], broker: CommittingBroker) -> BrokerSender[Numbers]:
    return BrokerSender("test", lambda: service, made, broker.publisher, bytes_max=100, wait_seconds=0.0)


def test_broker_with_a_later_position_moves_its_consumer_and_the_next_batch_begins_there() -> None:
    broker, service = CommittingBroker(), service_at(0)
    broker.position = "6"
    sender = sender_of(service, broker)
    assert sender.send_next() is RoundResult.MOVED
    assert (service.acked, service.line.waiting) == (At(6), ())
    assert sender.send_next() is RoundResult.SENT
    assert [kept(broker, each) for each in range(PARTITIONS)] == [[6, 9], [7], [8]]
    assert (broker.position, service.acked) == ("10", At(10))


def test_broker_whose_commit_gets_no_answer_is_queried_for_its_position() -> None:
    broker, service, answers = CommittingBroker(), service_at(0), iter([True])
    broker.fails_after = lambda: next(answers, False)
    sender = sender_of(service, broker)
    assert [sender.send_next() for _ in range(3)] == [RoundResult.AGAIN, RoundResult.MOVED, RoundResult.SENT]
    assert (kept(broker, 0), service.undelivered) == ([0, 3, 6], "")


def test_broker_is_queried_again_for_a_service_that_began_at_an_older_cursor() -> None:
    """The engine restarts in the same process, with a new service, while the sender keeps its connection to the broker."""
    broker, services = CommittingBroker(), [service_at(0), service_at(0)]
    current = iter([services[0], services[1], services[1]])
    sender: BrokerSender[Numbers] = BrokerSender(
        "test", lambda: next(current), made, broker.publisher, bytes_max=100, wait_seconds=0.0
    )
    assert [sender.send_next() for _ in range(3)] == [RoundResult.SENT, RoundResult.MOVED, RoundResult.SENT]
    assert kept(broker, 0) == [0, 3, 6]


def test_broker_commits_no_position_for_a_consumer_that_was_forgotten_meanwhile() -> None:
    service = service_at(0)
    batch_id, _ = service.get(100)
    service.close()
    with pytest.raises(NotSubscribedError, match="was removed"):
        service.end_text(batch_id)


@pytest.mark.seeds
@pytest.mark.parametrize(("committed", "moves_to"), [(3, None), (6, 6)])
def test_broker_position_is_compared_again_if_a_batch_is_acked_during_the_comparison(
    committed: int, moves_to: int | None
) -> None:
    class Acking(NumberCodec):
        """Acks the waiting batch while a position is compared for the first time."""

        def later(self, acked: At, text: str) -> At | None:
            if service.line.waiting:
                service.ack(service.line.waiting[0].batch_id)
            return super().later(acked, text)

    service = ConsumerService(1001, Numbered(COUNT, 4), At(0), Acking())
    service.get(100)
    assert service.continue_after(str(committed)) is (moves_to is not None)
    assert service.acked == At(moves_to or 4)


@pytest.mark.parametrize("seed", range(30))
def test_broker_that_commits_positions_gets_each_message_once_whenever_it_or_the_engine_is_killed(seed: int) -> None:
    chance, broker = random.Random(seed), CommittingBroker()  # noqa: S311
    broker.fails_after = lambda: chance.random() < 0.1
    ledger = 0  # Where a restart begins.
    service = service_at(ledger)
    sender, moved = sender_of(service, broker), 0
    while ledger < COUNT:
        moved += sender.send_next() is RoundResult.MOVED
        if chance.random() < 0.3:  # Killed: the next batches have other ends.
            service = service_at(ledger, chance.randint(1, 9))
            sender = sender_of(service, broker)
        elif chance.random() < 0.5:  # The cursor is written.
            ledger = service.acked.count
    for partition in range(PARTITIONS):
        assert kept(broker, partition) == list(range(partition, COUNT, PARTITIONS))
    assert moved or seed
