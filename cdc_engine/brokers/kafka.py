"""Sends to Kafka as a `Publisher`, with confluent-kafka: an idempotent producer that waits for all replicas. The only file that knows
Kafka.

librdkafka itself sends again, in order and without duplicates, for `delivery.timeout.ms`; after that a message has failed. A producer
with a failed batch is discarded with everything that it still holds, so that none of it arrives after the batch is sent again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from sluice.cdc_engine.brokers.publisher import Message, ended_amid, too_large, unknown_target
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, PublishError

LOOK_SECONDS = 0.1
DEFAULTS = {
    "linger.ms": "1",
    "delivery.timeout.ms": "30000",
    "topic.metadata.propagation.max.ms": "5000",  # A missing topic may still appear within this time.
    "log.connection.close": "false",
}
GTID_HEADER, POSITION_HEADER = "sluice-gtid", "sluice-position"
FIXED = {"acks": "all", "enable.idempotence": "true"}
NO_PLACE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001  their names
NOT_ALLOWED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001
)


def settings_of(
    servers: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the settings for librdkafka. `$NAME` in an option is replaced by that variable. Raises ConfigurationError if it is not
    set.
    """
    given = {name: filled(value, f"brokers.options.{name}", environment) for name, value in options.items()}
    return {**DEFAULTS, **given, **FIXED, "bootstrap.servers": servers}


def headers_of(message: Message) -> list[tuple[str, str | bytes | None]]:
    """Returns a record's headers: the position of its event, and the GTID if the transaction has one."""
    named = ((GTID_HEADER, message.origin.gtid), (POSITION_HEADER, message.origin.position))
    return [(name, value.encode()) for name, value in named if value]


class KafkaPublisher:
    """A connection to Kafka. Implements `Publisher`. Raises ConfigurationError for an unknown option."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._servers, self._said = settings["bootstrap.servers"], ""
        try:
            self._producer = Producer({**settings, "error_cb": self._note})
        except KafkaException as error:
            raise ConfigurationError(
                f"brokers.options: Kafka's client does not take them: {error.args[0].str()}"
            ) from None

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        failed: list[tuple[Message, Any]] = []
        left = [len(messages)]

        def told(message: Message) -> Callable[[Any, Any], None]:
            def tell(error: Any, _kept: Any) -> None:
                left[0] -= 1
                if error is not None:
                    failed.append((message, error))

            return tell

        for message in messages:
            self._produce(message, told(message), given_up)
            if failed:
                break
        while left[0] and not failed:
            if given_up():
                raise ended_amid()
            self._producer.poll(LOOK_SECONDS)
        if failed:
            raise self._why(*failed[0])

    def _produce(self, message: Message, on_delivery: Callable[[Any, Any], None], given_up: Callable[[], bool]) -> None:
        while not given_up():
            try:
                self._producer.produce(
                    message.topic,
                    message.body,
                    partition=message.partition,
                    on_delivery=on_delivery,
                    headers=headers_of(message),
                )
            except BufferError:  # The queue of the producer is full.
                self._producer.poll(LOOK_SECONDS)
            except KafkaException as error:
                raise self._why(message, error.args[0]) from None
            else:
                self._producer.poll(0)
                return

    def _why(self, message: Message, error: Any) -> PublishError:
        code = error.code()
        if code in NO_PLACE:
            return unknown_target(f"Kafka at {self._servers}", message)
        if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
            return too_large(message, "message.max.bytes of `options` here, and max.message.bytes of the topic")
        if code in NOT_ALLOWED:
            return PublishError(
                f"Kafka at {self._servers} does not permit writing to topic {message.topic} ({error.str()}): correct its "
                "ACLs, or the user and password in `options`"
            )
        said = f"; its last error: {self._said}" if self._said else ""
        return PublishError(
            f"Kafka at {self._servers} did not confirm a message for topic {message.topic}, partition {message.partition} "
            f"({error.str()}{said}): check that its brokers run and can be reached; it is tried again"
        )

    def _note(self, error: Any) -> None:
        self._said = error.str()

    def close(self) -> None:
        """Closes the connection and drops the messages that were not sent."""
        self._producer.purge()
        end = time.monotonic() + 1.0
        while len(self._producer) and time.monotonic() < end:
            self._producer.poll(LOOK_SECONDS)
