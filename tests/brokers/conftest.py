"""Provides real brokers as fixtures: five Java processes and one Erlang process. Each starts when a test of this package first uses it,
and stops after the last test.

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
    """Starts Kafka 4.1 for this package. A test uses its own topics. If it kills Kafka, it restarts Kafka."""
    yield from _until_the_end(KafkaServer(servers_folder / "kafka"))


@pytest.fixture(scope="package")
def rabbitmq310(servers_folder: Path) -> Iterator[RabbitServer]:
    """Starts RabbitMQ 3.10 with a TLS port, shared like Kafka."""
    folder = servers_folder / "rabbitmq"
    folder.mkdir()
    yield from _until_the_end(RabbitServer(folder, make_certificate(folder)))


@pytest.fixture(scope="package")
def rocketmq53(servers_folder: Path) -> Iterator[RocketServer]:
    """Starts RocketMQ 5.3, shared like Kafka. Its name server and its broker also accept TLS."""
    folder = servers_folder / "rocketmq"
    folder.mkdir()
    yield from _until_the_end(RocketServer(folder, make_certificate(folder)))


@pytest.fixture(scope="package")
def pulsar40(servers_folder: Path) -> Iterator[PulsarServer]:
    """Starts Pulsar 4.0, shared like Kafka. A login needs a token."""
    yield from _until_the_end(PulsarServer(servers_folder / "pulsar"))


@pytest.fixture(scope="package")
def apicurio26(servers_folder: Path) -> Iterator[ApicurioServer]:
    """Starts Apicurio Registry 2.6, shared like Kafka. A test that kills it loses the schemas of all tests."""
    yield from _until_the_end(ApicurioServer(servers_folder / "apicurio"))
