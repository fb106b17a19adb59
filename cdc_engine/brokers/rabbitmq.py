"""Implements `Publisher` for RabbitMQ with pika. Messages are persistent and confirmed, and a routing key without a queue is an error. The
only file that uses RabbitMQ's client.

The publisher sends the messages of a batch in order on one channel, without waiting between them. The batch counts as sent when the broker
has confirmed every message. If a batch fails, the publisher aborts the connection and drops the unsent messages, so that none of them
arrives after the batch is sent again. RabbitMQ closes a connection that is idle for longer than the connection's heartbeat. This is no
error: the publisher opens a new connection for the next batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import pika
from pika import exceptions
from pika.spec import Basic

from sluice.cdc_engine.brokers.connecting import tls_context
from sluice.cdc_engine.brokers.publisher import Message, ended_amid, too_large
from sluice.cdc_engine.brokers.settings import RabbitConfig
from sluice.cdc_engine.config.brokers import addresses_of
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import PublishError

LOOK_SECONDS = 0.1
OPEN_SECONDS, CONFIRM_SECONDS, HEARTBEAT_SECONDS = 10.0, 30.0, 60
UNCONFIRMED_MAX, UNCONFIRMED_BYTES_MAX = 2000, 8 << 20
PORT, TLS_PORT = 5672, 5671
# The properties with which Canal sends messages (MessageProperties.PERSISTENT_TEXT_PLAIN).
PROPERTIES = pika.BasicProperties(content_type="text/plain", delivery_mode=2, priority=0)
TOO_LARGE = re.compile(r"message size (\d+) is larger than configured max size (\d+)")
NO_EXCHANGE = "no exchange"

# Hides pika's own log, which has a long error for each failed attempt to connect. Sluice's errors contain the reason of a failure.
logging.getLogger("pika").setLevel(logging.CRITICAL)


@dataclasses.dataclass(frozen=True)
class RabbitTarget:
    """The settings of a broker in conf/, with its password and TLS context."""

    config: RabbitConfig
    password: Callable[[], str] = dataclasses.field(repr=False)
    context: ssl.SSLContext | None = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f"RabbitMQ at {self.config.servers}"

    def parameters(self) -> list[pika.ConnectionParameters]:
        """Returns the connection parameters of each server. Raises SecretUnavailableError if the password cannot be read."""
        credentials = pika.PlainCredentials(self.config.user, self.password())
        port = PORT if self.context is None else TLS_PORT
        return [
            pika.ConnectionParameters(
                host=host,
                port=number,
                virtual_host=self.config.virtual_host,
                credentials=credentials,
                heartbeat=HEARTBEAT_SECONDS,
                socket_timeout=OPEN_SECONDS / 2,
                stack_timeout=OPEN_SECONDS,
                ssl_options=None if self.context is None else pika.SSLOptions(self.context, host),
            )
            for host, number in addresses_of(self.config.servers, port)
        ]


def target_of(config: RabbitConfig) -> RabbitTarget:
    """Returns the target for a broker's settings in conf/. Raises ConfigurationError if the password or a certificate cannot be read."""

    def password() -> str:
        if not config.password and config.user == "guest":
            return "guest"
        return filled(config.password, "brokers.password")

    _ = password()
    return RabbitTarget(config, password, tls_context(config.tls) if config.tls else None)


class RabbitPublisher:
    """A connection to RabbitMQ (implements `Publisher`). The connection is opened at the first send."""

    def __init__(self, target: RabbitTarget) -> None:
        self._target = target
        self._link: _Link | None = None

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        if not messages:
            return
        if self._link is None or not self._link.alive():
            self.close()
            self._link = self._opened(given_up)
        self._link.publish(messages, given_up)

    def _opened(self, given_up: Callable[[], bool]) -> _Link:
        """Connects to the first server that accepts the connection."""
        errors = []
        for parameters in self._target.parameters():
            link = _Link(self._target, parameters)
            try:
                link.open(given_up)
            except PublishError as error:
                link.abort()
                errors.append(error)
            else:
                return link
        raise errors[-1]

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort()


class _Link:
    """One connection with one channel. Pika's event loop runs in the sending thread, and only while this thread waits."""

    def __init__(self, target: RabbitTarget, parameters: pika.ConnectionParameters) -> None:
        self._target, self._where = target, f"{parameters.host}:{parameters.port}"
        self._failed: PublishError | None = None
        self._blocked = ""
        self._ready = False
        self._unconfirmed: dict[int, Message] = {}
        self._number = self._bytes = 0
        self._heard = time.monotonic()
        self._channel: Any = None
        self._connection: Any = pika.SelectConnection(
            parameters,
            on_open_callback=self._opened,
            on_open_error_callback=lambda _, error: self._fail(self._not_let_in(error)),
            on_close_callback=lambda _, reason: self._fail(self._gone(str(reason))),
        )
        self._connection.add_on_connection_blocked_callback(self._note_blocked)
        self._connection.add_on_connection_unblocked_callback(self._note_blocked)

    def open(self, given_up: Callable[[], bool]) -> None:
        """Waits until messages may be published. Raises PublishError if the broker refuses the connection or does not answer."""
        end = time.monotonic() + OPEN_SECONDS
        while not self._ready:
            if time.monotonic() > end:
                raise self._gone(f"no answer in {OPEN_SECONDS:g} s")
            self._wait(given_up)

    def alive(self) -> bool:
        """Returns whether the connection and its channel are open. First processes what the broker has sent since the last call. Sends
        nothing, so a connection that was lost without a message of the broker counts as open.
        """
        if self._failed is None:
            self._process_events(0.0)
        return self._failed is None and self._connection.is_open and self._channel.is_open

    def publish(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        """Publishes messages, and returns when the broker has confirmed all of them. Raises PublishError if a message is not confirmed."""
        self._heard = time.monotonic()
        for message in messages:
            while len(self._unconfirmed) >= UNCONFIRMED_MAX or self._bytes > UNCONFIRMED_BYTES_MAX:
                self._wait(given_up)
            if self._failed or given_up():
                raise self._failed or ended_amid()
            self._put(message)
        while self._unconfirmed:
            self._wait(given_up)
        if self._failed:
            raise self._failed

    def abort(self) -> None:
        """Aborts the connection, and discards messages that were not sent. An orderly close would first send these messages."""
        # Ignores all errors of the abort, because the connection is not used any more.
        with contextlib.suppress(Exception):
            transport = self._connection._transport  # noqa: SLF001  there is no other way
            if transport is not None:
                transport.abort()
                self._process_events(0.0)
        with contextlib.suppress(Exception):
            self._connection.ioloop.close()

    def _put(self, message: Message) -> None:
        self._number += 1
        self._unconfirmed[self._number] = message
        self._bytes += len(message.body)
        try:
            self._channel.basic_publish(
                self._target.config.exchange, message.topic, message.body, PROPERTIES, mandatory=True
            )
        except exceptions.AMQPError as error:
            self._fail(self._gone(type(error).__name__))

    def _wait(self, given_up: Callable[[], bool]) -> None:
        """Runs the event loop for a moment. Raises PublishError if the connection or a message has failed, if `given_up` returns True, or
        if RabbitMQ has confirmed no message for CONFIRM_SECONDS.
        """
        self._process_events(LOOK_SECONDS)
        if self._failed:
            raise self._failed
        if given_up():
            raise ended_amid()
        if self._unconfirmed and time.monotonic() - self._heard > CONFIRM_SECONDS:
            raise self._gone(self._blocked or f"RabbitMQ confirmed no message for {CONFIRM_SECONDS:g} s")

    def _process_events(self, seconds: float) -> None:
        loop = self._connection.ioloop
        handle = loop.call_later(seconds, loop.stop)
        loop.start()
        loop.remove_timeout(handle)

    # ── callbacks of the broker, in the loop ──

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, reason: self._fail(self._closed(reason)))
        channel.add_on_return_callback(self._returned)
        config = self._target.config
        steps: list[Callable[..., object]] = []
        if config.queue:
            steps.append(functools.partial(channel.queue_declare, config.queue, durable=True))
        if config.routing_key:
            steps.append(
                functools.partial(
                    channel.exchange_declare, config.exchange, exchange_type=config.exchange_type, durable=True
                )
            )
            steps.append(functools.partial(channel.queue_bind, config.queue, config.exchange, config.routing_key))
        steps.append(functools.partial(channel.confirm_delivery, self._confirmed))
        self._next(steps)

    def _next(self, steps: list[Callable[..., object]], _answer: object = None) -> None:
        if not steps:
            self._ready = True
            self._connection.ioloop.stop()
            return
        steps[0](callback=functools.partial(self._next, steps[1:]))

    def _confirmed(self, frame: Any) -> None:
        self._heard = time.monotonic()
        tag, several = frame.method.delivery_tag, frame.method.multiple
        found = [number for number in self._unconfirmed if number <= tag] if several else [tag]
        taken = [self._unconfirmed.pop(number) for number in found if number in self._unconfirmed]
        self._bytes -= sum(len(each.body) for each in taken)
        if isinstance(frame.method, Basic.Nack):
            topic = taken[0].topic if taken else "?"
            self._fail(
                self._gone(
                    f"RabbitMQ refused a message for topic {topic}: the queue is full or cannot store the message"
                )
            )
        elif len(self._unconfirmed) < UNCONFIRMED_MAX // 2:
            self._connection.ioloop.stop()

    def _returned(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        exchange = f"bound to exchange {method.exchange} by this routing key" if method.exchange else "with this name"
        self._fail(
            PublishError(
                f"{self._target} has no topic {method.routing_key}: no queue receives messages with this "
                f"routing key; create the queue in RabbitMQ ({exchange}), or correct topic, dynamic_topic and "
                "exchange"
            )
        )

    def _note_blocked(self, _connection: Any, frame: Any) -> None:
        reason = getattr(frame.method, "reason", "")
        self._blocked = f"RabbitMQ blocks publishing for now: {reason}" if reason else ""

    def _fail(self, error: PublishError) -> None:
        self._failed = self._failed or error
        self._connection.ioloop.stop()

    # ── messages ──

    def _gone(self, why: str) -> PublishError:
        return PublishError(
            f"{self._target} did not confirm a batch ({why}): check that RabbitMQ runs and can be reached; "
            "Sluice tries again"
        )

    def _not_let_in(self, error: object) -> PublishError:
        said = _innermost(error)
        if isinstance(error, exceptions.ProbableAuthenticationError) or "ACCESS_REFUSED" in said:
            return PublishError(
                f"{self._target} refuses the login of user {self._target.config.user}: correct user and password in conf/"
            )
        if isinstance(error, exceptions.ProbableAccessDeniedError) or "NOT_ALLOWED" in said:
            return PublishError(
                f"{self._target} does not let user {self._target.config.user} use virtual_host "
                f"{self._target.config.virtual_host}: create this virtual host in RabbitMQ and permit the "
                "user to write to it"
            )
        return self._gone(f"no connection to {self._where}: {said}")

    def _closed(self, reason: Any) -> PublishError:
        """Returns the error for a channel that the broker has closed for `reason`."""
        said = getattr(reason, "reply_text", str(reason))
        if size := TOO_LARGE.search(said):
            lengths = {len(each.body): each for each in self._unconfirmed.values()}
            found = lengths.get(int(size[1]), Message("?", 0, b""))
            return too_large(found, f"max_message_size of RabbitMQ is {size[2]}")
        if NO_EXCHANGE in said:
            return PublishError(
                f"{self._target} has no exchange {self._target.config.exchange}: create the exchange in "
                "RabbitMQ, or set queue, routing_key and exchange_type in conf/ too, so that Sluice declares "
                "the exchange"
            )
        if "ACCESS_REFUSED" in said:
            return PublishError(
                f"{self._target} does not permit user {self._target.config.user} to write: {said}; correct "
                "the permissions of the user"
            )
        if "PRECONDITION_FAILED" in said:
            return PublishError(
                f"{self._target} has a queue or an exchange whose properties differ from those in conf/: "
                f"{said}; correct queue or exchange_type in conf/, or delete the queue or exchange in "
                "RabbitMQ, so that the engine declares it again"
            )
        return self._gone(said)


def _innermost(error: object) -> str:
    """Returns the original error of the operating system or the broker, which pika wraps up to four times."""
    while True:
        inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *getattr(error, "args", ())]
        found = [each for each in inner if isinstance(each, BaseException)]
        if not found:
            return f"{type(error).__name__}: {error}"
        error = found[-1]
