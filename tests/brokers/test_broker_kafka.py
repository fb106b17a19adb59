"""Tests that a real Kafka keeps the promises of a broker. `test_broker_kills` kills it."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pydantic import ValidationError

from benchmarks.servers.kafka import KafkaServer
from sluice.cdc_engine.brokers import kafka
from sluice.cdc_engine.brokers.contract_suite import BrokerUnderTest, CommittingContract, PublisherContract, never
from sluice.cdc_engine.brokers.kafka import KafkaPublisher, TransactionalPublisher, settings_of
from sluice.cdc_engine.brokers.kinds import Kafka
from sluice.cdc_engine.brokers.publisher import Message, Publisher
from sluice.cdc_engine.errors import ConfigurationError, PublishError
from tests.waiting import wait_for

NAMES = (f"topic_{number}" for number in itertools.count(1))
PARTITIONS = 3


def make_topic(server: KafkaServer, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient({"bootstrap.servers": server.servers})  # The client must be referenced as long as it is used.
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def read(server: KafkaServer, topic: str, partition: int, count: int) -> list[bytes]:
    """Returns all messages of a partition once it has `count` of them."""
    return [body for _, body in read_records(server, topic, partition, count)]


def read_records(server: KafkaServer, topic: str, partition: int, count: int) -> list[tuple[bytes, bytes]]:
    """Returns the keys and values of all messages of a partition, up to its end, once it has `count` of them."""
    settings = {"bootstrap.servers": server.servers, "group.id": "tests", "enable.auto.commit": "false"}
    consumer = Consumer({**settings, "enable.partition.eof": "true"})
    found: list[tuple[bytes, bytes]] = []
    at_end = False
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])

        def enough() -> bool:
            nonlocal at_end
            for each in consumer.consume(1000, 0.2):
                error = each.error()
                at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is None:
                    found.append((bytes(each.key() or b""), bytes(each.value() or b"")))
            return at_end and len(found) >= count

        wait_for(f"{count} messages in {topic} {partition}", enough)
    finally:
        consumer.close()
    return found


class KafkaUnderTest:
    partitions, secret = PARTITIONS, ""

    def __init__(self, server: KafkaServer) -> None:
        self._server, self.where = server, f"Kafka at {server.servers}"

    def topic(self) -> str:
        return make_topic(self._server, next(NAMES))

    def publisher(self) -> Publisher:
        quick = {
            "topic.metadata.propagation.max.ms": "500",
            "delivery.timeout.ms": "3000",
            "request.timeout.ms": "2000",
        }
        return KafkaPublisher(settings_of(self._server.servers, quick))

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        return read(self._server, topic, partition, count)

    def stall(self) -> None:
        self._server.stall()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


@pytest.mark.servers
class TestKafka(PublisherContract):
    @pytest.fixture
    def broker(self, kafka41: KafkaServer) -> BrokerUnderTest:
        return KafkaUnderTest(kafka41)


def test_broker_invalid_options_of_kafka_are_reported_without_their_values() -> None:
    settings = settings_of("127.0.0.1:1", {"sasl.password": "$KAFKA_SECRET"}, {"KAFKA_SECRET": "hidden"})
    assert settings["sasl.password"] == "hidden"
    assert (settings["acks"], settings["enable.idempotence"]) == ("all", "true")
    with pytest.raises(ConfigurationError, match="variable KAFKA_SECRET is not set"):
        settings_of("127.0.0.1:1", {"sasl.password": "$KAFKA_SECRET"}, {})
    with pytest.raises(ConfigurationError, match=r"no\.such\.option") as refused:
        KafkaPublisher({**settings, "no.such.option": "1"})
    assert "hidden" not in str(refused.value)


@pytest.mark.found
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (KafkaError.INVALID_RECORD, "accepts only messages with a key, so set cleanup.policy of the topic to delete"),
        (KafkaError.TOPIC_EXCEPTION, "does not accept the name of topic shop"),
        (KafkaError.RECORD_LIST_TOO_LARGE, "is larger than the broker accepts"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "is larger than the broker accepts"),
    ],
)
def test_broker_kafka_that_refuses_a_message_is_reported_with_the_reason(code: int, why: str) -> None:
    """Defect 1178: a message without a key for a compacted topic was reported as too large, with the advice to raise limits. For an invalid
    topic name, the advice was to check that Kafka's brokers run.
    """
    publisher = KafkaPublisher(settings_of("127.0.0.1:1", {}))
    assert why in str(publisher._why(Message("shop", 0, b"1"), KafkaError(code)))


def transactional(server: KafkaServer, name: str, **more: str) -> Publisher:
    quick = {"topic.metadata.propagation.max.ms": "500", "delivery.timeout.ms": "3000", "request.timeout.ms": "2000"}
    options = quick | {key.replace("_", "."): value for key, value in more.items()}
    record = {"kind": "kafka", "servers": server.servers, "topic": "all", "transactional_id": name, "options": options}
    return Kafka.model_validate(record).publisher()


class TransactionalKafka(KafkaUnderTest):
    """Gives all publishers of a test one transactional_id, as a broker of conf/ has."""

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server)
        self._name = next(NAMES)

    def publisher(self) -> Publisher:
        return transactional(self._server, self._name)


@pytest.mark.seeds
@pytest.mark.servers
class TestKafkaTransactions(CommittingContract):
    @pytest.fixture
    def broker(self, kafka41: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> BrokerUnderTest:
        monkeypatch.setattr(kafka, "CALL_SECONDS_MAX", 3.0)
        return TransactionalKafka(kafka41)


@pytest.mark.seeds
@pytest.mark.servers
def test_broker_kafka_transactions_are_read_as_a_whole_and_fence_an_older_producer(kafka41: KafkaServer) -> None:
    topic = make_topic(kafka41, next(NAMES))
    older, killed, newer = (transactional(kafka41, "shop") for _ in range(3))
    older.send([Message(topic, 0, b"1"), Message(topic, 1, b"2")], never)
    looks = iter([False] * 4)
    with pytest.raises(PublishError, match="sends the batch again"):
        older.send([Message(topic, 0, b"given up %d" % number) for number in range(9)], lambda: next(looks, True))
    older.send([Message(topic, 0, b"3")], never)
    assert isinstance(killed, TransactionalPublisher)
    killed._producer.init_transactions(30)
    killed._producer.begin_transaction()
    killed._producer.produce(topic, b"killed", partition=0)
    killed._producer.flush(10)
    newer.send([Message(topic, 0, b"4")], never)
    with pytest.raises(
        PublishError, match="fenced this producer: another producer with transactional_id shop has started"
    ):
        older.send([Message(topic, 0, b"late")], never)
    newer.send([Message(topic, 0, b"5")], never)
    for each in (older, killed, newer):
        each.close()
    assert read(kafka41, topic, 0, 4) == [b"1", b"3", b"4", b"5"]
    assert read(kafka41, topic, 1, 1) == [b"2"]


@pytest.mark.seeds
@pytest.mark.servers
def test_broker_kafka_says_which_time_a_transaction_may_take(kafka41: KafkaServer) -> None:
    topic = [Message(make_topic(kafka41, next(NAMES)), 0, b"1")]
    longest = transactional(kafka41, next(NAMES), transaction_timeout_ms="900000")
    longest.send(topic, never)
    longest.close()
    longer = transactional(kafka41, next(NAMES), transaction_timeout_ms="900001")
    with pytest.raises(
        PublishError, match=r"does not accept transaction.timeout.ms 900001.*transaction.max.timeout.ms"
    ):
        longer.send(topic, never)
    longer.close()
    name = next(NAMES)
    older, newer = transactional(kafka41, name), transactional(kafka41, name)
    older.send(topic, never)
    newer.send(topic, never)
    with pytest.raises(PublishError, match=r"took longer than transaction.timeout.ms \(300000 ms\)\. If no other host"):
        older.send(topic, never)
    for each in (older, newer):
        each.close()


@pytest.mark.seeds
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"options": {"transactional.id": "shop"}}, "set `transactional_id` instead"),
        ({"transactional_id": ""}, ""),
    ],
)
def test_broker_kafka_transactional_id_is_a_setting_and_no_option(settings: dict[str, object], why: str) -> None:
    record = {"kind": "kafka", "servers": "k:1", "topic": "t", **settings}
    if not why:
        assert Kafka.model_validate(record).transactional_id == ""
        return
    with pytest.raises(ValidationError, match=why):
        Kafka.model_validate(record)
