"""Defines the settings for Pulsar, and implements `Publisher` for Pulsar with Pulsar's own client. The only file that uses this client.

Each partition of a partitioned topic has its own producer, which keeps messages in order. After a lost connection, the client itself
retries a message for up to SEND_SECONDS_MAX. If the message then fails, the sender closes the client and sends the batch again with a new
client. A closed client drops its unsent messages. So no unsent message of the old client arrives after the messages of the new one.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from sluice.cdc_engine.brokers.connecting import tls_context
from sluice.cdc_engine.brokers.publisher import (
    GTID_HEADER,
    POSITION_HEADER,
    Message,
    Publisher,
    ended_amid,
    too_large,
    unknown_target,
)
from sluice.cdc_engine.config.brokers import Addresses, PartitionedConfig, addresses_of
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, PublishError
from sluice.cdc_engine.source.settings import SecretReference, TlsFilesConfig
from sluice.extras import Extra, require

PORT, TLS_PORT = 6650, 6651
LOOK_SECONDS = 0.1
# A lookup of a topic, and the creation of a producer for a partition, each fail after this time.
CALL_SECONDS = 5
# A message fails if the client cannot send it within this time, even over new connections. Its batch is then sent again.
SEND_SECONDS_MAX = 30
UNCONFIRMED_MAX = 1000
NOT_ALLOWED = ("AuthenticationError", "AuthorizationError", "NotAllowedError")

# Hides the client's own log, which has a line for each attempt to connect. Sluice's errors contain the reason of a failure.
logging.getLogger("pulsar").setLevel(logging.CRITICAL)


class PulsarConfig(PartitionedConfig):
    """Apache Pulsar. A partition number means a partition of a partitioned topic."""

    removed: ClassVar[Mapping[str, str]] = {
        "timeout_seconds": f"the client tries to send a message for {SEND_SECONDS_MAX} seconds, then Sluice sends the batch again"
    }

    kind: Literal["pulsar"] = Field(description="Apache Pulsar.")
    servers: Addresses = Field(description="Brokers or proxies of one cluster, as `host:port,host`.")
    namespace: str = Field(
        "public/default", pattern=r"^[\w.-]+/[\w.-]+$", description="Tenant and namespace of the topics."
    )
    token: SecretReference = Field(
        "", description="Token of the login, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`. Empty: no login."
    )
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings. `{}`: TLS with the system's certificate authorities."
    )

    def publisher(self) -> Publisher:
        """Returns a publisher that connects when it sends the first message. Raises ConfigurationError if the token or a file of `tls`
        cannot be read.
        """
        require(Extra.PULSAR, ConfigurationError)
        _ = self.token_now(), tls_context(self.tls) if self.tls else None
        return PulsarPublisher(self)

    def token_now(self) -> str:
        """Returns the current token, or "" if there is no login. Raises ConfigurationError if the token cannot be read."""
        return filled(self.token, "brokers.token")

    @property
    def url(self) -> str:
        port = TLS_PORT if self.tls else PORT
        scheme = "pulsar+ssl" if self.tls else "pulsar"
        return f"{scheme}://{','.join(f'{_bracketed(host)}:{each}' for host, each in addresses_of(self.servers, port))}"


class PulsarPublisher:
    """A connection to Pulsar (implements `Publisher`)."""

    def __init__(self, config: PulsarConfig) -> None:
        self._config, self._where = config, f"Pulsar at {config.servers}"
        self._client: Any = None
        self._partitions: dict[str, int] = {}
        self._producers: dict[tuple[str, int], Any] = {}

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        batch = _Confirmations()
        for message in messages:
            batch.wait(UNCONFIRMED_MAX - 1, given_up)
            if batch.failed or given_up():
                break
            with self._named(message):
                producer = self._producer(message)
                producer.send_async(
                    message.body, batch.expect(message), properties=_properties(message), partition_key=_key(message)
                )
        batch.wait(0, given_up)
        if batch.failed:
            raise self._why(*batch.failed[0])
        if batch.left or given_up():
            raise ended_amid()

    def close(self) -> None:
        client, self._client = self._client, None
        self._producers, self._partitions = {}, {}
        if client is not None:
            # Drops unsent messages. The client's `close` would wait until the broker has confirmed them.
            client.shutdown()

    def _producer(self, message: Message) -> Any:
        where = (message.topic, message.partition)
        if where not in self._producers:
            name = self._topic(message)
            self._producers[where] = self._connected().create_producer(
                name,
                send_timeout_millis=SEND_SECONDS_MAX * 1000,
                max_pending_messages=UNCONFIRMED_MAX,
                batching_enabled=True,
                batching_max_publish_delay_ms=1,
            )
        return self._producers[where]

    def _topic(self, message: Message) -> str:
        """Returns the full name of a message's topic, with the partition. Raises PublishError if the topic does not have the partition."""
        name = f"persistent://{self._config.namespace}/{message.topic}"
        if message.topic not in self._partitions:
            found = self._connected().get_topic_partitions(name)
            self._partitions[message.topic] = 0 if found == [name] else len(found)
        count = self._partitions[message.topic]
        if message.partition >= max(count, 1):
            raise unknown_target(self._where, message)
        return f"{name}-partition-{message.partition}" if count else name

    def _connected(self) -> Any:
        if self._client is None:
            import pulsar  # noqa: PLC0415

            config, tls = self._config, self._config.tls or TlsFilesConfig()
            options = {
                "tls_trust_certs_file_path": tls.ca_file,
                "tls_certificate_file_path": tls.certificate_file,
                "tls_private_key_file_path": tls.key_file,
            }
            self._client = pulsar.Client(
                config.url,
                authentication=pulsar.AuthenticationToken(config.token_now) if config.token else None,
                operation_timeout_seconds=CALL_SECONDS,
                tls_validate_hostname=True,
                logger=logging.getLogger("pulsar"),
                **{name: str(file) for name, file in options.items() if file is not None},
            )
        return self._client

    @contextlib.contextmanager
    def _named(self, message: Message) -> Iterator[None]:
        """Converts an error of Pulsar's client inside the `with` statement to a PublishError. `message` is the message that it sends."""
        import pulsar  # noqa: PLC0415

        try:
            yield
        except pulsar.PulsarException as error:
            raise self._why(message, type(error).__name__) from None

    def _why(self, message: Message, result: str) -> PublishError:
        if result == "TopicNotFound":
            return unknown_target(self._where, message)
        if result == "MessageTooBig":
            return too_large(message, "maxMessageSize of Pulsar's brokers")
        if result in NOT_ALLOWED:
            return PublishError(
                f"{self._where} does not permit writing to topic {message.topic} ({result}): correct its permissions, or the token"
            )
        return PublishError(
            f"{self._where} did not confirm a message for topic {message.topic}, partition "
            f"{message.partition} ({result}): check that Pulsar's brokers run, can be reached and accept the "
            "token; Sluice tries again"
        )


class _Confirmations:
    """Counts the messages of a batch that the broker has not confirmed yet. A thread of Pulsar's client calls the callbacks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.left = 0
        self.failed: list[tuple[Message, str]] = []

    def expect(self, message: Message) -> Callable[[Any, Any], None]:
        """Counts a message as unconfirmed. Returns the callback that Pulsar's client calls with the broker's answer."""
        with self._changed:
            self.left += 1
        return functools.partial(self._confirm, message)

    def _confirm(self, message: Message, result: Any, _id: Any) -> None:
        with self._changed:
            self.left -= 1
            if result.name != "Ok":
                self.failed.append((message, result.name))
            self._changed.notify()

    def wait(self, left_max: int, given_up: Callable[[], bool]) -> None:
        """Waits until at most `left_max` messages are unconfirmed, or a message has failed, or the batch is given up."""
        while self.left > left_max and not self.failed and not given_up():
            with self._changed:
                self._changed.wait(LOOK_SECONDS)


def _properties(message: Message) -> dict[str, str]:
    """Returns the GTID and the position of a message's event as properties, with the names of Kafka's headers."""
    named = {GTID_HEADER: message.origin.gtid, POSITION_HEADER: message.origin.position}
    return {name: value for name, value in named.items() if value}


def _key(message: Message) -> str | None:
    """Returns a message's key in base64, or None if the message has no key. Keys are texts in Pulsar. Consumers get the base64 text,
    because this client cannot set the flag by which consumers in Java decode the key.
    """
    return base64.b64encode(message.key).decode() if message.key else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
