"""Real brokers, each started when a test of this package first uses it, and stopped after the last one: five Java processes and an
Erlang one.

tests/conftest.py assigns these tests to one worker.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self, TypeVar

import pytest

from benchmarks.servers.apicurio import ApicurioServer
from benchmarks.servers.kafka import KafkaServer
from benchmarks.servers.pulsar import PulsarServer
from benchmarks.servers.rabbitmq import RabbitServer
from benchmarks.servers.rocketmq import RocketServer
from tests.certificates import make_certificate


class _Server(Protocol):
    def start(self) -> Self: ...

    def kill(self) -> None: ...


SERVER = TypeVar("SERVER", bound=_Server)


def _until_the_end(server: SERVER) -> Iterator[SERVER]:
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture(scope="package")
def kafka41(servers_folder: Path) -> Iterator[KafkaServer]:
    """Kafka 4.1, shared by this package: a test uses its own topics in it, and restarts it after killing it."""
    yield from _until_the_end(KafkaServer(servers_folder / "kafka"))


@pytest.fixture(scope="package")
def rabbitmq310(servers_folder: Path) -> Iterator[RabbitServer]:
    """RabbitMQ 3.10 with a TLS port, shared like Kafka."""
    folder = servers_folder / "rabbitmq"
    folder.mkdir()
    yield from _until_the_end(RabbitServer(folder, make_certificate(folder)))


@pytest.fixture(scope="package")
def rocketmq53(servers_folder: Path) -> Iterator[RocketServer]:
    """RocketMQ 5.3, a name server and a broker that also accept TLS, shared like Kafka."""
    folder = servers_folder / "rocketmq"
    folder.mkdir()
    yield from _until_the_end(RocketServer(folder, make_certificate(folder)))


@pytest.fixture(scope="package")
def pulsar40(servers_folder: Path) -> Iterator[PulsarServer]:
    """Pulsar 4.0, shared like Kafka. A login needs a token."""
    yield from _until_the_end(PulsarServer(servers_folder / "pulsar"))


@pytest.fixture(scope="package")
def apicurio26(servers_folder: Path) -> Iterator[ApicurioServer]:
    """Apicurio Registry 2.6, shared like Kafka. A test that kills it loses the schemas of all."""
    yield from _until_the_end(ApicurioServer(servers_folder / "apicurio"))
