"""Tests that a real Pulsar, used through a plug-in, passes the tests that every broker must pass. Also tests headers, logins and each
reason for which Pulsar accepts nothing.
"""

from __future__ import annotations

import base64
import itertools
from pathlib import Path
from typing import Any

import pulsar
import pytest

from benchmarks.servers.pulsar import PulsarServer, token_of
from sluice.cdc_engine.brokers import Message, MessageOrigin, Publisher
from sluice.cdc_engine.brokers import pulsar as pulsar_broker
from sluice.cdc_engine.brokers.contract_suite import PublisherContract, never, refusal
from sluice.cdc_engine.brokers.pulsar import PulsarConfig
from sluice.cdc_engine.errors import ConfigurationError
from tests.waiting import wait_for

pytestmark = pytest.mark.seeds

NAMES = (f"topic_{number}" for number in itertools.count(1))
PARTITIONS = 3
SECRET = "PULSAR_TEST_TOKEN"  # noqa: S105


def publisher(server: PulsarServer, **said: object) -> Publisher:
    record = {
        "kind": "pulsar",
        "servers": server.servers,
        "topic": "all",
        "token": {"env": SECRET},
    }
    return PulsarConfig.model_validate({**record, **said}).publisher()


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, token_of("admin"))
    monkeypatch.setattr(pulsar_broker, "SEND_SECONDS_MAX", 3)


class PulsarUnderTest:
    partitions = PARTITIONS

    def __init__(self, server: PulsarServer) -> None:
        self._server, self.where, self.secret = server, f"Pulsar at {server.servers}", server.token

    def topic(self) -> str:
        self._server.create(name := next(NAMES), PARTITIONS)
        return name

    def publisher(self) -> Publisher:
        return publisher(self._server)

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        return [each.data() for each in self.messages(topic, partition, count)]

    def messages(self, topic: str, partition: int, count: int) -> list[Any]:
        client = pulsar.Client(
            f"pulsar://{self._server.servers}", authentication=pulsar.AuthenticationToken(self._server.token)
        )
        found: list[Any] = []
        try:
            reader = client.create_reader(f"{topic}-partition-{partition}", pulsar.MessageId.earliest)

            def enough() -> bool:
                while reader.has_message_available():
                    found.append(reader.read_next(5000))
                return len(found) >= count

            wait_for(f"{count} messages in {topic} {partition}", enough)
        finally:
            client.close()
        return found

    def stall(self) -> None:
        self._server.stall()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


@pytest.fixture
def broker(pulsar40: PulsarServer) -> PulsarUnderTest:
    return PulsarUnderTest(pulsar40)


@pytest.mark.servers
class TestPulsar(PublisherContract):
    """Inherits the promises of every broker."""


@pytest.mark.servers
def test_broker_pulsar_gets_headers_and_says_whom_it_does_not_let_in(
    broker: PulsarUnderTest, pulsar40: PulsarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    sender = broker.publisher()
    sender.send([Message(topic, 2, b"1", MessageOrigin("uuid:7", "binlog.000001:4"))], never)
    sender.close()
    (found,) = broker.messages(topic, 2, 1)
    assert found.properties() == {"sluice-gtid": "uuid:7", "sluice-position": "binlog.000001:4"}
    beyond = refusal(broker, [Message(topic, PARTITIONS, b"1")])
    assert f"no topic {topic} with a partition {PARTITIONS}: create the topic" in beyond
    for wrong in (token_of("guest"), "open-sesame"):
        monkeypatch.setenv(SECRET, wrong)
        said = refusal(broker, [Message(topic, 0, b"1")])
        assert broker.where in said
        assert "correct its permissions, or the token" in said or "accept the token" in said
        assert wrong not in said


@pytest.mark.servers
def test_broker_pulsar_gets_the_key_of_a_row_as_a_text(broker: PulsarUnderTest) -> None:
    topic, sender, keys = broker.topic(), broker.publisher(), [b"\0\0\0\0\1\xff", b"\0\0\0\0\1\xfe", b""]
    sender.send([Message(topic, 0, b"%d" % number, key=keys[number % 3]) for number in range(6)], never)
    sender.close()
    found = [(each.partition_key(), each.data()) for each in broker.messages(topic, 0, 6)]
    assert [base64.b64decode(key) for key, _ in found] == [*keys, *keys]
    assert [data for _, data in found] == [b"%d" % number for number in range(6)]


def test_broker_pulsar_token_and_files_that_are_missing_are_reported(tmp_path: Path) -> None:
    server = PulsarServer(tmp_path)
    with pytest.raises(ConfigurationError, match=r"brokers\.token: .*variable NOT_SET is not set"):
        publisher(server, token={"env": "NOT_SET"})
    with pytest.raises(ConfigurationError, match=r"brokers\.tls: .*authorities\.pem cannot be used: No such file"):
        publisher(server, tls={"ca_file": str(tmp_path / "authorities.pem")})


@pytest.mark.parametrize(
    ("servers", "tls", "url"),
    [
        ("a,b:7000", None, "pulsar://a:6650,b:7000"),
        ("a;[::1]:7", {}, "pulsar+ssl://a:6651,[::1]:7"),
    ],
)
def test_broker_pulsar_address_names_all_servers(servers: str, tls: dict[str, str] | None, url: str) -> None:
    config = PulsarConfig.model_validate({"kind": "pulsar", "servers": servers, "topic": "t", "tls": tls})
    assert config.url == url
