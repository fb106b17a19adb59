"""Implements `Publisher` for RocketMQ with RocketMQ's remoting protocol. Messages go to the same queues as in Canal, and are in order
within each queue.

A broker handles the requests of one connection in several threads, so the order of the requests can change. The publisher therefore sends
the next request for a queue only after the answer to the previous one. A request can contain several messages. The broker stores either all
of them or none. Requests for different queues are sent in parallel. docs/decisions says why no library is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from sluice.cdc_engine.brokers import rocketmq_wire as wire
from sluice.cdc_engine.brokers.connecting import tls_context
from sluice.cdc_engine.brokers.publisher import Message, ended_amid, too_large
from sluice.cdc_engine.brokers.rocketmq_wire import Queue, RocketAnswer
from sluice.cdc_engine.brokers.settings import RocketConfig
from sluice.cdc_engine.config.brokers import address_of, addresses_of
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import PublishError

LOOK_SECONDS = 0.1
OPEN_SECONDS, ANSWER_SECONDS, ROUTE_SECONDS = 5.0, 10.0, 30.0
PORT = 9876
REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX = 1 << 20, 500
SAID_MAX = 300
SEPARATOR = "%"  # The separator between the namespace and the name of a topic or group.


@dataclasses.dataclass(frozen=True)
class RocketTarget:
    """The settings of a RocketMQ cluster in conf/, with its secret key and TLS context."""

    config: RocketConfig
    secret: Callable[[], str] = dataclasses.field(repr=False)
    context: ssl.SSLContext | None = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f"RocketMQ by name servers {self.config.servers}"

    @property
    def key(self) -> tuple[str, str] | None:
        """The current access key and secret key, or None if there is no login. Raises SecretUnavailableError if the secret key cannot be
        read.
        """
        return (self.config.access_key, self.secret()) if self.config.access_key else None

    def named(self, name: str) -> str:
        """Returns a name with the namespace as prefix, if conf/ has a namespace."""
        return f"{self.config.namespace}{SEPARATOR}{name}" if self.config.namespace else name


def target_of(config: RocketConfig) -> RocketTarget:
    """Returns the target for a broker's settings in conf/. Raises ConfigurationError if the secret key or a certificate cannot be read."""

    def secret() -> str:
        return filled(config.secret_key, "brokers.secret_key")

    _ = secret()
    return RocketTarget(config, secret, tls_context(config.tls) if config.tls else None)


class RocketPublisher:
    """A connection to RocketMQ (implements `Publisher`). The connection is opened at the first send."""

    def __init__(self, target: RocketTarget) -> None:
        self._target = target
        self._connections: dict[str, _Connection] = {}
        self._routes: dict[str, tuple[float, list[Queue]]] = {}

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        queued: dict[tuple[str, Queue], list[Message]] = {}
        for message in messages:
            queue = wire.queue_of(self._queues(message.topic, given_up), message.partition)
            queued.setdefault((message.topic, queue), []).append(message)
        in_order = [[(topic, queue, some) for some in self._some(own)] for (topic, queue), own in queued.items()]
        for side_by_side in itertools.zip_longest(*in_order):
            requested = []
            for topic, queue, some in filter(None, side_by_side):
                if given_up():
                    raise ended_amid()
                connection = self._connection(queue.address, queue.broker)
                requested.append((connection, connection.send(*self._request(topic, queue, some)), some))
            for connection, number, some in requested:
                self._check(connection.answer(number, given_up), connection, some)

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def _some(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Divides messages into groups, and yields each group. The messages of a group fit in one request."""
        some: list[Message] = []
        size = 0
        for message in messages:
            full = size + len(message.body) > REQUEST_BYTES_MAX or len(some) == REQUEST_MESSAGES_MAX
            if some and (full or not self._target.config.batches):
                yield some
                some, size = [], 0
            some.append(message)
            size += len(message.body)
        yield some

    def _request(self, topic: str, queue: Queue, some: Sequence[Message]) -> tuple[int, dict[str, str], bytes]:
        config = self._target.config
        fields = wire.send_fields(self._target.named(config.group), self._target.named(topic), queue)
        written = [(each.body, wire.properties(config.tag, config.namespace)) for each in some]
        if len(written) == 1:
            return wire.one_message(*written[0], fields)
        return wire.several_messages(written, fields)

    def _queues(self, topic: str, given_up: Callable[[], bool]) -> list[Queue]:
        """Returns the topic's queues that accept messages. Raises PublishError if no name server returns them."""
        requested_at, queues = self._routes.get(topic, (0.0, []))
        if queues and time.monotonic() - requested_at < ROUTE_SECONDS:
            return queues
        errors: list[PublishError] = []
        for host, port in addresses_of(self._target.config.servers, PORT):
            try:
                queues = self._route(f"{host}:{port}", topic, given_up)
            except PublishError as error:
                errors.append(error)
                continue
            self._routes[topic] = (time.monotonic(), queues)
            return queues
        raise errors[-1]

    def _route(self, address: str, topic: str, given_up: Callable[[], bool]) -> list[Queue]:
        connection = self._connection(address, "")
        fields = {"topic": self._target.named(topic), "acceptStandardJsonOnly": "true"}
        answer = connection.answer(connection.send(wire.GET_ROUTE, fields, b""), given_up)
        if answer.code == wire.TOPIC_NOT_EXIST:
            raise self._no_topic(topic)
        if answer.code != wire.SUCCESS:
            raise connection.gone(f"code {answer.code}, {answer.remark[:SAID_MAX]}")
        queues = wire.queues_of(topic, answer.body)
        if not queues:
            raise PublishError(
                f"{self._target}: no running broker accepts messages for topic {topic}: start a broker that "
                "has the topic"
            )
        return queues

    def _connection(self, address: str, broker: str) -> _Connection:
        if not address:
            raise PublishError(
                f"{self._target}: broker {broker} has no running master: start the master; Sluice tries again"
            )
        found = self._connections.get(address)
        if found is None or not found.alive():
            if found is not None:
                found.close()
            found = self._connections[address] = _Connection(self._target, address)
        return found

    def _check(self, answer: RocketAnswer, connection: _Connection, some: Sequence[Message]) -> None:
        """Raises PublishError if the broker has not stored the messages."""
        if answer.code == wire.SUCCESS:
            return
        topic, said = some[0].topic, answer.remark[:SAID_MAX]
        if answer.code == wire.TOPIC_NOT_EXIST:
            raise self._no_topic(topic)
        if answer.code == wire.MESSAGE_ILLEGAL:
            largest = max(some, key=lambda each: len(each.body))
            raise too_large(largest, f"maxMessageSize of RocketMQ's broker, which said: {said}")
        if answer.code in wire.KEPT_IN_PART:
            raise PublishError(
                f"{self._target}: {wire.KEPT_IN_PART[answer.code]}, so a message of topic {topic} is stored less safely than the broker "
                "is configured for: check the disks and the slaves of the topic's brokers; Sluice sends the message again"
            )
        if answer.code == wire.NO_PERMISSION:
            raise PublishError(
                f"{self._target} does not permit writing to topic {topic} ({said}): correct its permissions, or access_key and "
                "secret_key"
            )
        raise connection.gone(f"code {answer.code}, {said}")

    def _no_topic(self, topic: str) -> PublishError:
        return PublishError(
            f"{self._target} has no topic {self._target.named(topic)}: start the brokers that have this topic, "
            "because name servers forget the topics of stopped brokers; or create the topic, with as many "
            "queues as partitions_num in conf/; or correct topic, dynamic_topic and namespace"
        )


class _Connection:
    """A connection to one server. `send` sends a request without waiting. `answer` waits for the answer to a request."""

    def __init__(self, target: RocketTarget, address: str) -> None:
        self._target, self._address, self._key = target, address, target.key
        self._numbers = itertools.count(1)
        self._answers: dict[int, RocketAnswer] = {}
        self._received = b""
        self._socket: socket.socket | None = None

    def send(self, code: int, fields: dict[str, str], body: bytes) -> int:
        """Sends a request, and returns the request's number. Raises PublishError if the connection fails."""
        number = next(self._numbers)
        frame = wire.request(code, number, fields, body, self._key)
        try:
            self._open().sendall(frame)
        except OSError as error:
            raise self.gone(error.strerror or str(error)) from None
        return number

    def answer(self, number: int, given_up: Callable[[], bool]) -> RocketAnswer:
        """Waits for the answer to the request `number`. Raises PublishError if no answer arrives within ANSWER_SECONDS, or if
        `given_up` returns True.
        """
        end = time.monotonic() + ANSWER_SECONDS
        while number not in self._answers:
            if given_up():
                raise ended_amid()
            if time.monotonic() > end:
                raise self.gone(f"no answer in {ANSWER_SECONDS:g} s")
            self._receive()
        return self._answers.pop(number)

    def alive(self) -> bool:
        """Returns whether requests can be sent. Servers close a connection on which nothing was sent for two minutes. First processes what
        the server has sent since the last call.
        """
        if self._socket is None:
            return True
        try:
            self._receive(0.0)
        except PublishError:
            return False
        return True

    def gone(self, why: str) -> PublishError:
        return PublishError(
            f"{self._target}: {self._address} did not confirm a message ({why}): check that this server runs "
            "and can be reached; Sluice tries again"
        )

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()

    def _open(self) -> socket.socket:
        if self._socket is None:
            host, port = address_of(self._address, PORT)
            plain = socket.create_connection((host, port), timeout=OPEN_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._target.context
            self._socket = context.wrap_socket(plain, server_hostname=host) if context else plain
        self._socket.settimeout(ANSWER_SECONDS)
        return self._socket

    def _receive(self, seconds: float = LOOK_SECONDS) -> None:
        """Waits up to `seconds` for bytes, and decodes all frames that are complete."""
        opened = self._open()
        opened.settimeout(seconds)
        try:
            data = opened.recv(1 << 16)
        # With 0 seconds, a socket without bytes raises one of the last two errors.
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise self.gone(error.strerror or str(error)) from None
        if not data:
            raise self.gone("the server closed the connection")
        self._received += data
        try:
            self._take_frames()
        except (ValueError, KeyError, struct.error) as error:
            raise self.gone(f"the answer cannot be read: {error}") from None

    def _take_frames(self) -> None:
        while len(self._received) >= 4:
            (length,) = struct.unpack_from(">i", self._received)
            if not 0 <= length <= wire.FRAME_BYTES_MAX:
                raise ValueError(f"the answer is a frame of {length} bytes")
            if len(self._received) < 4 + length:
                return
            number, answer = wire.answer_of(self._received[4 : 4 + length])
            self._received = self._received[4 + length :]
            self._answers[number] = answer
