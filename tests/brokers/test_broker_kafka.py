"""A real Kafka: the promises of a broker, and a destination's changes through it while it, and the engine, are killed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from cdc_engine.brokers.kafka import KafkaPublisher, settings_of
from cdc_engine.brokers.publisher import Publisher
from cdc_engine.errors import ConfigurationError
from cdc_engine.instance.engine import Engine
from console.toolchain.database.server import DatabaseServer
from console.toolchain.shared.kafka import KafkaServer
from tests.brokers.publisher_contract import Place, PublisherContract
from tests.instance import engine_process
from tests.instance.fix_destination import Captured
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


@pytest.fixture
def captured(mysql80: DatabaseServer, kafka41: KafkaServer, tmp_path: Path) -> Captured:
    made = Captured(tmp_path, mysql80)
    options = "{delivery.timeout.ms: 2000, request.timeout.ms: 1000, socket.timeout.ms: 1000}"
    make_topic(kafka41, made.database)
    made.describe(
        "brokers:",
        f"- {{kind: kafka, servers: '{kafka41.servers}', topic: {made.database}, partitions_num: {PARTITIONS}, client_id: 7,",
        f"   partition_hash: '.*\\..*:$pk$', options: {options}}}",
    )
    return made


def numbers(server: KafkaServer, captured: Captured, count: int) -> Iterator[list[int]]:
    """Those of each partition, once all up to `count` are there."""
    per_partition: dict[int, list[int]] = {}

    def everything() -> bool:
        for partition in range(PARTITIONS):
            bodies = read(server, captured.database, partition, 0)
            per_partition[partition] = [
                int(row["n"]) for body in bodies for row in json.loads(body)["data"] or () if "n" in row
            ]
        return {number for found in per_partition.values() for number in found} >= set(range(count))

    wait_for(f"{count} numbers in Kafka", everything)
    yield from per_partition.values()


def stands_still(engine: Engine) -> Callable[[], bool]:
    def stopped() -> bool:
        (consumer,) = engine.status().consumers
        return consumer.state == "STOPPED" and "did not confirm" in consumer.reason and "kafka" in consumer.name

    return stopped


def test_broker_and_engine_are_killed_amid_batches_and_kafka_has_every_change_in_order(
    captured: Captured, kafka41: KafkaServer
) -> None:
    process = engine_process.start(captured.conf, 1 << 40)
    try:
        captured.wait_until_running()
        captured.insert(range(40), filler_bytes=1 << 14)
        wait_for("some are sent", lambda: bool(read(kafka41, captured.database, 0, 0)))
    finally:
        process.kill()  # ours, whatever it does now
        process.communicate()
    captured.insert(range(40, 60), filler_bytes=1 << 14)
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert(range(60, 70))
        kafka41.kill()
        captured.insert(range(70, 90))
        wait_for("the status says why", stands_still(engine))
        kafka41.start()
        captured.insert(range(90, 100))
        for found in numbers(kafka41, captured, 100):
            assert found
            first = list(dict.fromkeys(found))
            assert first == sorted(first)
        wait_for("it goes on", lambda: not engine.status().consumers[0].reason)
    finally:
        engine.stop()
