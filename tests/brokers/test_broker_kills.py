"""Sends a destination's changes through Kafka, RabbitMQ and RocketMQ at once, while the brokers and the engine are
killed during batches.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from benchmarks.servers.kafka import KafkaServer
from benchmarks.servers.rabbitmq import RabbitServer
from benchmarks.servers.rocketmq import RocketServer
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import LOOPBACK
from tests.brokers import test_broker_kafka as kafka
from tests.brokers.rocket_messages import RocketMessages, make_topic
from tests.instance import engine_process
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PARTITIONS = 3
SECRET = "ROCKET_TEST_SECRET"  # noqa: S105
# A name server forgets the topics of a broker that ended.
AWAY = re.compile("did not confirm|start the brokers that have this topic")
Bodies = Callable[[], list[list[bytes]]]


@dataclasses.dataclass(frozen=True)
class Servers:
    kafka: KafkaServer
    rabbit: RabbitServer
    rocket: RocketServer


@pytest.fixture
def servers(kafka41: KafkaServer, rabbitmq310: RabbitServer, rocketmq53: RocketServer) -> Servers:
    return Servers(kafka41, rabbitmq310, rocketmq53)


@pytest.fixture
def captured(mysql80: DatabaseServer, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Captured:
    monkeypatch.setenv(SECRET, RocketServer.secret)
    made = Captured(tmp_path, mysql80)
    hashed = f"partitions_num: {PARTITIONS}, partition_hash: '.*\\..*:$pk$'"
    options = "{delivery.timeout.ms: 2000, request.timeout.ms: 1000, socket.timeout.ms: 1000}"
    kafka.make_topic(servers.kafka, made.database, PARTITIONS)
    make_topic(servers.rocket, made.database, PARTITIONS)
    made.describe(
        "brokers:",
        f"- {{kind: kafka, servers: '{servers.kafka.servers}', topic: {made.database}, client_id: 7, {hashed}, options: {options}}}",
        f"- {{kind: rabbitmq, servers: '{servers.rabbit.servers}', topic: {made.database}, client_id: 8, queue: {made.database}}}",
        f"- {{kind: rocketmq, servers: '{servers.rocket.servers}', topic: {made.database}, client_id: 9, {hashed},",
        f"   access_key: {servers.rocket.access_key}, secret_key: {{env: {SECRET}}}}}",
    )
    return made


@pytest.fixture
def kept(captured: Captured, servers: Servers) -> Iterator[dict[str, Bodies]]:
    """Provides for each broker a function that returns the broker's messages by partition."""
    judge, taken = RocketMessages(servers.rocket), list[bytes]()

    def of_rabbit() -> list[list[bytes]]:
        connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, servers.rabbit.port))
        channel = connection.channel()
        while (answer := channel.basic_get(captured.database, auto_ack=True))[0]:
            taken.append(answer[2] or b"")
        connection.close()
        return [taken]

    yield {
        "kafka": lambda: [kafka.read(servers.kafka, captured.database, each, 0) for each in range(PARTITIONS)],
        "rabbitmq": of_rabbit,
        "rocketmq": lambda: [[read.body for read in judge.read(captured.database, each)] for each in range(PARTITIONS)],
    }
    judge.close()


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(row["n"]) for body in bodies for row in json.loads(body)["data"] or () if "n" in row]


def arrived(name: str, bodies: Bodies, count: int) -> list[list[int]]:
    """Returns the numbers of each partition once all numbers up to `count` have arrived."""

    def everything() -> list[list[int]]:
        found = [numbers(each) for each in bodies()]
        return found if {number for each in found for number in each} >= set(range(count)) else []

    return wait_for(f"{count} numbers in {name}", everything)


def standing_still(engine: Engine) -> Callable[[], bool]:
    def stopped() -> bool:
        return all(
            each.state == "STOPPED" and AWAY.search(each.reason) and each.name.split()[0] in each.reason.lower()
            for each in engine.status().consumers
        )

    return stopped


def test_broker_and_engine_are_killed_within_batches_and_each_broker_has_every_change_in_order(
    captured: Captured, kept: dict[str, Bodies], servers: Servers
) -> None:
    process = engine_process.start(captured.conf, 1 << 40)
    try:
        captured.wait_until_running()
        captured.insert(range(40), filler_bytes=1 << 14)
        for name, bodies in kept.items():
            wait_for(f"some are sent to {name}", lambda bodies=bodies: any(bodies()))  # type: ignore[misc]
    finally:
        process.kill()  # This is our own process, whatever it does now.
        process.communicate()
    captured.insert(range(40, 60), filler_bytes=1 << 14)
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert(range(60, 70))
        servers.kafka.kill()
        servers.rabbit.kill()
        servers.rocket.kill_broker()
        captured.insert(range(70, 90))
        wait_for("the status says why", standing_still(engine))
        servers.kafka.start()
        servers.rabbit.start()
        servers.rocket.start()
        captured.insert(range(90, 100))
        for name, bodies in kept.items():
            for found in arrived(name, bodies, 100):
                assert found
                first = list(dict.fromkeys(found))
                assert first == sorted(first), name
        wait_for("all go on", lambda: not any(each.reason for each in engine.status().consumers))
    finally:
        engine.stop()
