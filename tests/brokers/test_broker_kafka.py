"""A real Kafka keeps the promises of a broker; `test_broker_kills` kills it."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.servers.kafka import KafkaServer
from sluice.cdc_engine.brokers.kafka import KafkaPublisher, settings_of
from sluice.cdc_engine.brokers.publisher import Publisher
from sluice.cdc_engine.errors import ConfigurationError
from tests.brokers.publisher_contract import Place, PublisherContract
from tests.waiting import wait_for

NAMES = (f"topic_{number}" for number in itertools.count(1))
PARTITIONS = 3


def make_topic(server: KafkaServer, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient({"bootstrap.servers": server.servers})  # it is asked for as long as it is kept
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def read(server: KafkaServer, topic: str, partition: int, count: int) -> list[bytes]:
    """All that a partition has once it has so many."""
    consumer = Consumer({"bootstrap.servers": server.servers, "group.id": "tests", "enable.auto.commit": "false"})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])

        def enough() -> bool:
            found.extend(each.value() or b"" for each in consumer.consume(1000, 0.2) if each.error() is None)
            return len(found) >= count

        wait_for(f"{count} messages in {topic} {partition}", enough)
    finally:
        consumer.close()
    return found


class KafkaPlace:
    partitions = PARTITIONS

    def __init__(self, server: KafkaServer) -> None:
        self._server = server

    def topic(self) -> str:
        return make_topic(self._server, next(NAMES))

    def publisher(self) -> Publisher:
        return KafkaPublisher(settings_of(self._server.servers, {"topic.metadata.propagation.max.ms": "500"}))

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        return read(self._server, topic, partition, count)


@pytest.mark.servers
class TestKafka(PublisherContract):
    @pytest.fixture
    def place(self, kafka41: KafkaServer) -> Place:
        return KafkaPlace(kafka41)


def test_broker_options_of_kafka_that_are_none_are_said_without_their_values() -> None:
    settings = settings_of("127.0.0.1:1", {"sasl.password": "$KAFKA_SECRET"}, {"KAFKA_SECRET": "hidden"})
    assert settings["sasl.password"] == "hidden"
    assert (settings["acks"], settings["enable.idempotence"]) == ("all", "true")
    with pytest.raises(ConfigurationError, match="variable KAFKA_SECRET is not set"):
        settings_of("127.0.0.1:1", {"sasl.password": "$KAFKA_SECRET"}, {})
    with pytest.raises(ConfigurationError, match=r"no\.such\.option") as refused:
        KafkaPublisher({**settings, "no.such.option": "1"})
    assert "hidden" not in str(refused.value)
