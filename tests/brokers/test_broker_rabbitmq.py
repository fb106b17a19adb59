"""Tests the publisher with a real RabbitMQ: the contract of all brokers, what RabbitMQ gets of a message, and each reason for which it
accepts none.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pika
import psutil
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from benchmarks.servers.rabbitmq import RabbitServer
from sluice.cdc_engine.brokers import rabbitmq
from sluice.cdc_engine.brokers.contract_suite import BrokerUnderTest, PublisherContract, never
from sluice.cdc_engine.brokers.publisher import Message, Publisher
from sluice.cdc_engine.brokers.rabbitmq import RabbitPublisher, target_of
from sluice.cdc_engine.brokers.settings import RabbitConfig
from sluice.cdc_engine.errors import ConfigurationError, PublishError
from sluice.cdc_engine.source.settings import TlsFilesConfig
from sluice.console.toolchain.ports import LOOPBACK
from tests.waiting import wait_for

NAMES = (f"queue_{number}" for number in itertools.count(1))
SECRET = "RABBIT_TEST_SECRET"  # noqa: S105


def publisher(server: RabbitServer, **said: object) -> RabbitPublisher:
    record = {"kind": "rabbitmq", "servers": server.servers, "topic": "all", **said}
    return RabbitPublisher(target_of(RabbitConfig.model_validate(record)))


def refused(publisher: RabbitPublisher, topic: str = "all") -> str:
    """Returns why the broker does not accept a message."""
    with pytest.raises(PublishError) as found:
        publisher.send([Message(topic, 0, b"1")], never)
    publisher.close()
    return str(found.value)


@contextlib.contextmanager
def channel_of(server: RabbitServer) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, server.port))
    yield connection.channel()
    connection.close()


@pytest.fixture
def channel(rabbitmq310: RabbitServer) -> Iterator[BlockingChannel]:
    with channel_of(rabbitmq310) as opened:
        yield opened


def read(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Waits until at least `count` messages have arrived in a queue, and removes all messages from it. Returns their bodies."""
    found: list[bytes] = []

    def enough() -> bool:
        while (answer := channel.basic_get(queue, auto_ack=True))[0]:
            found.append(answer[2] or b"")
        return len(found) >= count

    wait_for(f"{count} messages in {queue}", enough)
    return found


class RabbitUnderTest:
    """Provides RabbitMQ for the broker's contract suite. A topic is a queue of the same name."""

    partitions, secret = 1, ""

    def __init__(self, server: RabbitServer) -> None:
        self._server, self.where = server, f"RabbitMQ at {server.servers}"

    def topic(self) -> str:
        with channel_of(self._server) as channel:
            channel.queue_declare(name := next(NAMES), durable=True)
        return name

    def publisher(self) -> Publisher:
        return publisher(self._server)

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        assert not partition
        with channel_of(self._server) as channel:
            return read(channel, topic, count)

    def stall(self) -> None:
        self._server.stall()

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


@pytest.mark.servers
class TestRabbit(PublisherContract):
    @pytest.fixture
    def broker(self, rabbitmq310: RabbitServer) -> BrokerUnderTest:
        return RabbitUnderTest(rabbitmq310)


@pytest.mark.servers
def test_broker_rabbitmq_has_what_canal_declares_and_gets_what_canal_sends(
    rabbitmq310: RabbitServer, channel: BlockingChannel
) -> None:
    queue = next(NAMES)
    bound = {"exchange": f"{queue}_changes", "queue": queue, "routing_key": "shop_orders", "exchange_type": "direct"}
    sender = publisher(rabbitmq310, **bound)
    sender.send([Message("shop_orders", 0, b"1"), Message("shop_orders", 7, b"2")], never)
    frame, properties, body = channel.basic_get(queue)
    assert frame is not None
    assert properties is not None
    assert (body, frame.routing_key, frame.exchange) == (b"1", "shop_orders", bound["exchange"])
    assert (properties.content_type, properties.delivery_mode, properties.priority) == ("text/plain", 2, 0)
    said = refused(sender, "shop_items")
    assert (
        f"receives messages with this routing key; create the queue in RabbitMQ (bound to exchange {bound['exchange']}"
        in said
    )
    assert "has a queue or an exchange whose properties differ" in refused(
        publisher(rabbitmq310, **{**bound, "exchange_type": "fanout"})
    )
    assert "has no exchange nowhere: create the exchange in RabbitMQ" in refused(
        publisher(rabbitmq310, exchange="nowhere")
    )
    sender.close()


@pytest.mark.servers
def test_broker_rabbitmq_says_whom_it_does_not_let_in_and_no_secret(
    rabbitmq310: RabbitServer, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, "wrong-sesame")
    wrong = refused(publisher(rabbitmq310, password={"env": SECRET}))
    assert "refuses the login of user guest: correct user and password in conf/" in wrong
    assert "sesame" not in wrong
    assert "use virtual_host nowhere: create this virtual host in RabbitMQ" in refused(
        publisher(rabbitmq310, virtual_host="nowhere")
    )
    assert "did not confirm a batch (no connection to 127.0.0.1:1:" in refused(
        publisher(rabbitmq310, servers=f"{LOOPBACK}:1")
    )
    queue = next(NAMES)
    both = publisher(rabbitmq310, servers=f"{LOOPBACK}:1,{rabbitmq310.servers}", queue=queue)
    both.send([Message(queue, 0, b"1")], never)
    assert read(channel, queue, 1) == [b"1"]
    both.close()


@pytest.mark.servers
def test_broker_rabbitmq_that_closed_an_idle_connection_is_connected_to_again(
    rabbitmq310: RabbitServer, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq, "HEARTBEAT_SECONDS", 1)
    queue = next(NAMES)
    sender = publisher(rabbitmq310, queue=queue)
    sender.send([Message(queue, 0, b"1")], never)

    def connected() -> int:
        lines = psutil.Process().net_connections("tcp")
        return sum(each.status == "ESTABLISHED" and each.raddr == (LOOPBACK, rabbitmq310.port) for each in lines)

    assert connected() == 2
    wait_for("the broker has closed it", lambda: connected() == 1)
    sender.send([Message(queue, 0, b"2")], never)
    sender.close()
    assert read(channel, queue, 2) == [b"1", b"2"]


@pytest.mark.servers
def test_broker_rabbitmq_is_sent_to_by_tls_where_its_certificate_is_known(
    rabbitmq310: RabbitServer, channel: BlockingChannel
) -> None:
    queue = next(NAMES)
    known = {"ca_file": str(rabbitmq310.folder / "engine.pem")}
    sender = publisher(rabbitmq310, servers=rabbitmq310.tls_servers, tls=known, queue=queue)
    sender.send([Message(queue, 0, b"1")], never)
    sender.close()
    assert read(channel, queue, 1) == [b"1"]
    assert "certificate verify failed" in refused(publisher(rabbitmq310, servers=rabbitmq310.tls_servers, tls={}))
    with pytest.raises(ConfigurationError, match=r"brokers\.tls: .*plugins cannot be used"):
        publisher(rabbitmq310, tls={"ca_file": str(rabbitmq310.folder / "plugins")})


def test_broker_rabbitmq_password_that_is_not_set_is_reported() -> None:
    config = RabbitConfig(kind="rabbitmq", servers="rabbit", topic="all", password="$NOT_SET", tls=TlsFilesConfig())  # noqa: S106
    with pytest.raises(ConfigurationError, match="variable NOT_SET"):
        target_of(config)
