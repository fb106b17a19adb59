"""Tests the publisher for RocketMQ on a real broker, with RocketMQ's own client as reader: the promises of a broker, tags and namespaces,
and each reason for which the broker refuses messages.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from benchmarks.servers.rocketmq import RocketServer
from sluice.cdc_engine.brokers import rocketmq, rocketmq_wire
from sluice.cdc_engine.brokers.contract_suite import BrokerUnderTest, PublisherContract, never
from sluice.cdc_engine.brokers.publisher import Message, Publisher
from sluice.cdc_engine.brokers.rocketmq import RocketPublisher, target_of
from sluice.cdc_engine.brokers.rocketmq_wire import Queue, queues_of, signed
from sluice.cdc_engine.brokers.settings import RocketConfig
from sluice.cdc_engine.errors import PublishError
from sluice.console.toolchain.ports import LOOPBACK
from tests.brokers.rocket_messages import Read, RocketMessages, make_topic
from tests.waiting import wait_for

NAMES = (f"topic_{number}" for number in itertools.count(1))
QUEUES = 3
SECRET = "ROCKET_TEST_SECRET"  # noqa: S105


@pytest.fixture(scope="module")
def judge(rocketmq53: RocketServer) -> Iterator[RocketMessages]:
    made = RocketMessages(rocketmq53)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, RocketServer.secret)


def publisher(server: RocketServer, **said: object) -> RocketPublisher:
    record = {"kind": "rocketmq", "servers": server.servers, "topic": "all", "access_key": server.access_key}
    return RocketPublisher(target_of(RocketConfig.model_validate({**record, "secret_key": {"env": SECRET}, **said})))


def refused(publisher: RocketPublisher, topic: str) -> str:
    """Returns why the broker does not accept a message."""
    with pytest.raises(PublishError) as found:
        publisher.send([Message(topic, 0, b"1")], never)
    publisher.close()
    return str(found.value)


class RocketUnderTest:
    partitions, secret = QUEUES, RocketServer.secret

    def __init__(self, server: RocketServer, judge: RocketMessages) -> None:
        self._server, self._judge, self.where = server, judge, f"RocketMQ by name servers {server.servers}"

    def topic(self) -> str:
        return make_topic(self._server, next(NAMES), QUEUES)

    def publisher(self) -> Publisher:
        return publisher(self._server)

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        def enough() -> list[bytes]:
            found = [each.body for each in self._judge.read(topic, partition)]
            return found if len(found) >= count else []

        return wait_for(f"{count} messages in {topic} {partition}", enough)

    def stall(self) -> None:
        self._server.stall_broker()

    def kill(self) -> None:
        self._server.kill_broker()

    def start(self) -> None:
        self._server.start()


@pytest.mark.servers
class TestRocket(PublisherContract):
    @pytest.fixture
    def broker(self, rocketmq53: RocketServer, judge: RocketMessages) -> BrokerUnderTest:
        return RocketUnderTest(rocketmq53, judge)


@pytest.mark.servers
def test_broker_rocketmq_gets_tags_and_ids_within_a_namespace_one_by_one_too(
    rocketmq53: RocketServer, judge: RocketMessages
) -> None:
    topic = next(NAMES)
    make_topic(rocketmq53, f"shop%{topic}", QUEUES)
    one_by_one = publisher(rocketmq53, namespace="shop", tag="changes", batches=False)
    together = publisher(rocketmq53, namespace="shop", tag="changes")
    for number, sender in enumerate((one_by_one, together)):
        sender.send([Message(topic, QUEUES + 1, b"%d" % (number * 10 + each)) for each in range(3)], never)
        sender.close()

    def all_of_them() -> list[Read]:
        read = judge.read(f"shop%{topic}", 1)
        return read if len(read) == 6 else []

    found = wait_for("all six", all_of_them)
    assert [each.body for each in found] == [b"0", b"1", b"2", b"10", b"11", b"12"]
    assert {each.tag for each in found} == {"changes"}
    assert len({each.id for each in found}) == 6


@pytest.mark.servers
def test_broker_rocketmq_says_whom_it_does_not_let_in_and_no_secret(
    rocketmq53: RocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(rocketmq53, next(NAMES), 1)
    assert "open-sesame" not in refused(publisher(rocketmq53, servers=f"{LOOPBACK}:1"), topic)
    monkeypatch.setenv(SECRET, "wrong-sesame")
    wrong = refused(publisher(rocketmq53), topic)
    assert "does not permit writing" in wrong
    assert "correct its permissions, or access_key and secret_key" in wrong
    assert "sesame" not in wrong


@pytest.mark.servers
def test_broker_rocketmq_is_sent_to_by_tls_where_its_certificate_is_known(
    rocketmq53: RocketServer, judge: RocketMessages
) -> None:
    topic = make_topic(rocketmq53, next(NAMES), 1)
    sender = publisher(rocketmq53, tls={"ca_file": str(rocketmq53.folder / "engine.pem")})
    sender.send([Message(topic, 0, b"1")], never)
    sender.close()
    assert [each.body for each in wait_for("it", lambda: judge.read(topic, 0))] == [b"1"]
    assert "certificate verify failed" in refused(publisher(rocketmq53, tls={}), topic)


def test_broker_rocketmq_messages_of_a_request_are_few_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq, "REQUEST_BYTES_MAX", 10)
    monkeypatch.setattr(rocketmq, "REQUEST_MESSAGES_MAX", 3)
    config = RocketConfig(kind="rocketmq", servers="names", topic="all")
    bodies = [b"aaaa", b"bbbb", b"cccc", b"dddddddddddddd", b"e", b"f", b"g", b"h"]
    some = list(RocketPublisher(target_of(config))._some([Message("all", 0, each) for each in bodies]))
    assert [[each.body for each in one] for one in some] == [
        [b"aaaa", b"bbbb"],
        [b"cccc"],
        [b"dddddddddddddd"],
        [b"e", b"f", b"g"],
        [b"h"],
    ]


ROUTE = b"""{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.2:10911",1:"10.0.0.3:10911"},"brokerName":"b"},
{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a"},{"brokerAddrs":{1:"10.0.0.4:10911"},"brokerName":"c"}],"queueDatas":[
{"brokerName":"b","perm":6,"readQueueNums":9,"writeQueueNums":2},{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1},
{"brokerName":"c","perm":6,"readQueueNums":1,"writeQueueNums":1},{"brokerName":"d","perm":4,"readQueueNums":1,"writeQueueNums":1}]%s}"""


def test_broker_rocketmq_queues_are_those_of_its_own_client() -> None:
    """Queues are ordered by broker and number. A topic without a master or without the right to write has none, except an ordered topic,
    which waits for its master.
    """
    queues = queues_of("t", ROUTE % b"")
    assert queues == [Queue("a", 0, "10.0.0.1:10911"), Queue("b", 0, "10.0.0.2:10911"), Queue("b", 1, "10.0.0.2:10911")]
    assert [rocketmq_wire.queue_of(queues, number).number for number in range(5)] == [0, 0, 1, 0, 0]
    ordered = queues_of("t", ROUTE % b',"orderTopicConf":"c:2;a:1"')
    assert ordered == [Queue("c", 0, ""), Queue("c", 1, ""), Queue("a", 0, "10.0.0.1:10911")]
    with pytest.raises(PublishError, match="topic t of RocketMQ is a static topic"):
        queues_of("t", ROUTE % b',"topicQueueMappingByBroker":{"a":{}}')


def test_broker_rocketmq_request_is_signed_by_its_values_in_the_order_of_their_names() -> None:
    found = signed({"b": "topic", "a": "group"}, b"body", "alice", "open-sesame")
    assert found["AccessKey"] == "alice"
    assert found["Signature"] == signed({"a": "group", "b": "topic"}, b"body", "alice", "open-sesame")["Signature"]
    assert found["Signature"] != signed({"b": "topic", "a": "group"}, b"other", "alice", "open-sesame")["Signature"]


class Answering:
    """A socket from which these bytes are received."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def settimeout(self, seconds: float) -> None: ...

    def recv(self, _size: int) -> bytes:
        return self.data


@pytest.mark.parametrize("length", [-1, rocketmq_wire.FRAME_BYTES_MAX + 1])
def test_broker_an_answer_that_is_too_large_is_refused_before_it_is_read(length: int) -> None:
    target = rocketmq.RocketTarget(RocketConfig(kind="rocketmq", servers="127.0.0.1:9876", topic="shop"), str, None)
    connection = rocketmq._Connection(target, "127.0.0.1:10911")
    connection._socket = Answering(struct.pack(">i", length))  # type: ignore[assignment]
    with pytest.raises(PublishError, match=f"a frame of {length} bytes"):
        connection._receive()


class ClosingServer:
    """A name server and broker of RocketMQ in one. Answers each request with success, and then closes the connection, as a server does with
    a connection that is idle for two minutes.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.closed = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        queues = [{"brokerName": "a", "perm": 6, "writeQueueNums": 1}]
        route = {"brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": self.address}}], "queueDatas": queues}
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, client.makefile("rb") as stream:
                size, length = struct.unpack(">ii", stream.read(8))
                header = json.loads(stream.read(size - 4)[:length])
                answer = json.dumps({"code": 0, "opaque": header["opaque"]}).encode()
                body = json.dumps(route).encode() if header["code"] == rocketmq_wire.GET_ROUTE else b""
                client.sendall(struct.pack(">ii", 4 + len(answer) + len(body), len(answer)) + answer + body)
            self.closed += 1


@pytest.mark.found
def test_broker_rocketmq_that_closed_an_idle_connection_is_connected_to_again() -> None:
    """Defect 1177: RocketMQ closes a connection that is idle for two minutes. The next batch failed once, with the status STOPPED and the
    advice to check that the server runs.
    """
    server = ClosingServer()
    sender = RocketPublisher(target_of(RocketConfig(kind="rocketmq", servers=server.address, topic="shop")))
    sender.send([Message("shop", 0, b"1")], never)
    wait_for("the server closed both connections", lambda: server.closed == 2)
    sender.send([Message("shop", 0, b"2")], never)
    sender.close()
    server.close()
