"""Implements `Publisher` for Kafka with confluent-kafka: an idempotent producer that waits for all replicas. The only file that uses
Kafka's client.

librdkafka itself retries a message for up to `delivery.timeout.ms`, in order and without duplicates. If the message then fails, the sender
discards the producer with its unsent messages, and sends the batch again with a new producer. So no unsent message of the old producer
arrives after the messages of the new one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from sluice.cdc_engine.brokers.publisher import (
    GTID_HEADER,
    POSITION_HEADER,
    Message,
    ended_amid,
    too_large,
    unknown_target,
)
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, PublishError

LOOK_SECONDS = 0.1
# A call in `_until_done` blocks for at most CALL_SECONDS. `_until_done` repeats the call for up to CALL_SECONDS_MAX.
CALL_SECONDS, CALL_SECONDS_MAX = 0.5, 30.0
ABORT_SECONDS_MAX = 5.0
DEFAULTS = {
    "linger.ms": "1",
    "delivery.timeout.ms": "30000",
    "topic.metadata.propagation.max.ms": "5000",  # How long a new topic may be unknown before a message for it fails.
    "log.connection.close": "false",
}
# The option that limits the duration of a transaction, and Sluice's default in ms. Kafka's default of a minute is too short for a large
# batch.
TIMEOUT, TIMEOUT_MS = "transaction.timeout.ms", "300000"
FIXED = {"acks": "all", "enable.idempotence": "true"}
NO_PARTITION = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001  their names
NOT_ALLOWED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001
)


def settings_of(
    servers: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the settings for librdkafka. Replaces references to secrets, such as `$NAME`, by the secrets. Raises ConfigurationError if a
    secret cannot be read.
    """
    given = {name: filled(value, f"brokers.options.{name}", environment) for name, value in options.items()}
    return {**DEFAULTS, **given, **FIXED, "bootstrap.servers": servers}


def headers_of(message: Message) -> list[tuple[str, str | bytes | None]]:
    """Returns the headers of a message: the position of its event, and the GTID of its transaction if the source has GTIDs."""
    named = ((GTID_HEADER, message.origin.gtid), (POSITION_HEADER, message.origin.position))
    return [(name, value.encode()) for name, value in named if value]


# Errors that mean only that the broker has just started, and has not loaded its consumer groups yet. The call is repeated.
NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)  # noqa: SLF001  their names


class KafkaPublisher:
    """A connection to Kafka (implements `Publisher`). The constructor raises ConfigurationError for options that librdkafka refuses."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._servers, self._said = settings["bootstrap.servers"], ""
        self._name, self._timeout_ms = settings.get("transactional.id", ""), settings.get(TIMEOUT, "")
        try:
            self.producer = Producer({**settings, "error_cb": self._note})
        except KafkaException as error:
            raise ConfigurationError(
                f"brokers.options: Kafka's client refuses these options: {error.args[0].str()}"
            ) from None

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        failed: list[tuple[Message, Any]] = []
        left = [len(messages)]

        def callback(message: Message) -> Callable[[Any, Any], None]:
            def report(error: Any, _kept: Any) -> None:
                left[0] -= 1
                if error is not None:
                    failed.append((message, error))

            return report

        for message in messages:
            self._produce(message, callback(message), given_up)
            if failed:
                break
        while left[0] and not failed:
            if given_up():
                raise ended_amid()
            self.producer.poll(LOOK_SECONDS)
        if failed:
            raise self._why(*failed[0])

    def _produce(self, message: Message, on_delivery: Callable[[Any, Any], None], given_up: Callable[[], bool]) -> None:
        while not given_up():
            try:
                self.producer.produce(
                    message.topic,
                    message.body,
                    message.key or None,
                    partition=message.partition,
                    on_delivery=on_delivery,
                    headers=headers_of(message),
                )
            # The producer's queue is full. Waits until some messages are confirmed, then tries again.
            except BufferError:
                self.producer.poll(LOOK_SECONDS)
            except KafkaException as error:
                raise self._why(message, error.args[0]) from None
            else:
                self.producer.poll(0)
                return

    def _why(self, message: Message, error: Any) -> PublishError:
        code = error.code()
        if self.is_fenced(error):
            return self.fenced()
        if code in NO_PARTITION:
            return unknown_target(f"Kafka at {self._servers}", message)
        if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            return too_large(
                message, "message.max.bytes in the broker's `options` in conf/, and max.message.bytes of the topic"
            )
        if code == KafkaError.INVALID_RECORD:
            return PublishError(
                f"Kafka at {self._servers} refuses a message for topic {message.topic} ({error.str()}): a topic with "
                "cleanup.policy compact accepts only messages with a key, so set cleanup.policy of the topic to delete, or "
                "send a table that has a key in the format avro or protobuf_rows"
            )
        if code == KafkaError.TOPIC_EXCEPTION:
            return PublishError(
                f"Kafka at {self._servers} does not accept the name of topic {message.topic} ({error.str()}): Kafka's names have up to 249 "
                "letters from a to z, digits, dots, underscores and hyphens; give the table another topic in dynamic_topic"
            )
        if code in NOT_ALLOWED:
            return PublishError(
                f"Kafka at {self._servers} does not permit writing to topic {message.topic} ({error.str()}): correct its "
                "ACLs, or the user and password in `options`"
            )
        said = f"; the client's last error: {self._said}" if self._said else ""
        return PublishError(
            f"Kafka at {self._servers} did not confirm a message for topic {message.topic}, partition "
            f"{message.partition} ({error.str()}{said}): check that Kafka's brokers run and can be reached; "
            "Sluice tries again"
        )

    def is_fenced(self, error: Any) -> bool:
        """Returns whether the error means that Kafka has fenced this producer. Kafka does this if another producer with the same
        `transactional.id` has started, or if a transaction took longer than its timeout. Kafka reports the same errors for both causes.
        """
        return error.code() in FENCED

    def fenced(self) -> PublishError:
        return PublishError(
            f"Kafka at {self._servers} has fenced this producer: another producer with transactional_id "
            f"{self._name} has started, or a batch took longer than {TIMEOUT} ({self._timeout_ms} ms). If no "
            "other host runs this destination, give each broker in conf/ a different transactional_id, or "
            f"raise {TIMEOUT} in `options`"
        )

    def _note(self, error: Any) -> None:
        self._said = error.str()

    def close(self) -> None:
        """Closes the connection, and discards messages that were not sent."""
        end = time.monotonic() + 1.0
        # Ignores the error: after a fatal error, these calls only raise that error again.
        with contextlib.suppress(KafkaException):
            self.producer.purge()
            while len(self.producer) and time.monotonic() < end:
                self.producer.poll(LOOK_SECONDS)


class TransactionalPublisher:
    """A connection to Kafka with a `transactional.id` (implements `CommittingPublisher`). Each batch is one Kafka transaction, so readers
    get either the whole batch or nothing.

    The committed position is stored as an offset of the consumer group `group_of(name)`. The transaction of `commit` commits this offset,
    for the partition of the batch's last message. The offset is the number of positions that were committed so far, and its metadata is the
    position of the batch's end. When a producer starts, Kafka fences the older producer with the same `transactional.id`, and aborts the
    older producer's open transaction. So the older producer cannot change the position after the new producer has read the position.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        settings = {TIMEOUT: TIMEOUT_MS, **settings}
        self._publisher = KafkaPublisher(settings)
        self._producer = self._publisher.producer
        self._timeout_ms = settings[TIMEOUT]
        self._servers, self._name = settings["bootstrap.servers"], settings["transactional.id"]
        self._offsets = CommittedOffsets(settings, self._name)
        self._last: CommittedOffset | None = None  # None until the producer has started.

    def committed(self, given_up: Callable[[], bool]) -> str:
        return self._begun(given_up).position

    def send(self, messages: Sequence[Message], given_up: Callable[[], bool]) -> None:
        if messages:
            self._begun(given_up)
            self._transaction(messages, None, given_up)

    def commit(self, messages: Sequence[Message], position: str, given_up: Callable[[], bool]) -> None:
        following = CommittedOffset(self._begun(given_up).number + 1, position)
        self._transaction(messages, following, given_up)
        self._last = following

    def close(self) -> None:
        self._publisher.close()

    def _begun(self, given_up: Callable[[], bool]) -> CommittedOffset:
        """Starts the producer at the first call. Returns the offset that was committed last."""
        if self._last is None:
            self._until_done(self._producer.init_transactions, given_up)
            self._last = self._offsets.last(given_up)
        return self._last

    def _transaction(
        self, messages: Sequence[Message], following: CommittedOffset | None, given_up: Callable[[], bool]
    ) -> None:
        try:
            self._producer.begin_transaction()
            self._publisher.send(messages, given_up)
            if following is not None:
                at = TopicPartition(messages[-1].topic, messages[-1].partition, following.number, following.position)
                group = self._offsets.group
                self._until_done(
                    lambda seconds: self._producer.send_offsets_to_transaction([at], group, seconds), given_up
                )
            if given_up():
                raise ended_amid()
        except KafkaException as error:
            raise self._why(error.args[0]) from None
        except PublishError:
            self._abort()
            raise
        self._until_done(self._producer.commit_transaction, given_up)

    def _until_done(self, call: Callable[[float], None], given_up: Callable[[], bool]) -> None:
        """Repeats `call`, with a time limit of CALL_SECONDS each time, until it succeeds. After a time-out, the next call continues the
        same operation of librdkafka. Raises PublishError after an error that Kafka does not call retriable, after CALL_SECONDS_MAX, or if
        `given_up` returns True.
        """
        end = time.monotonic() + CALL_SECONDS_MAX
        while True:
            try:
                call(CALL_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > end:
                    raise self._why(error.args[0]) from None
                if given_up():
                    raise ended_amid() from None
            else:
                return

    def _abort(self) -> None:
        """Aborts the transaction. If the abort fails, Kafka aborts the transaction when the next producer starts."""
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(ABORT_SECONDS_MAX)

    def _why(self, error: KafkaError) -> PublishError:
        where = f"Kafka at {self._servers}"
        if self._publisher.is_fenced(error):
            return self._publisher.fenced()
        if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            return PublishError(
                f"{where} does not permit committing the position of a batch ({error.str()}): permit READ of the group "
                f"{group_of(self._name)} and of the topics; transactional_id {self._name} needs both"
            )
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return PublishError(
                f"{where} does not accept {TIMEOUT} {self._timeout_ms}, because this value is above "
                "transaction.max.timeout.ms of Kafka's brokers: raise transaction.max.timeout.ms on the "
                f"brokers, or set a smaller {TIMEOUT} in `options`"
            )
        if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            return PublishError(
                f"{where} refuses the position of a batch, because the position with its GTID set is larger "
                "than offset.metadata.max.bytes: raise offset.metadata.max.bytes on Kafka's brokers, or "
                "remove transactional_id"
            )
        return PublishError(
            f"{where} did not commit a transaction of {self._name} ({error.str()}): check that Kafka's "
            "brokers run, can be reached and permit transactions with this transactional_id; Sluice tries "
            "again"
        )


def group_of(name: str) -> str:
    """Returns the name of the consumer group that stores the positions for a transactional_id."""
    return f"sluice-{name}"


def _result(answer: concurrent.futures.Future[Any], given_up: Callable[[], bool]) -> Any:
    """Waits for an answer of Kafka, and returns it. Raises KafkaException if Kafka returns an error, and PublishError if `given_up` returns
    True during the wait.
    """
    while not answer.done():
        concurrent.futures.wait([answer], LOOK_SECONDS)
        if given_up():
            raise ended_amid()
    return answer.result()


@dataclasses.dataclass(frozen=True)
class CommittedOffset:
    """The offset that was committed last. `position` is the end of the batch of this commit, or empty if no batch was committed. `number`
    counts the transactions that have committed a position.
    """

    number: int = 0
    position: str = ""


class CommittedOffsets:
    """Reads the positions that transactions of a `transactional.id` have committed. `group`: the metadata of the consumer group, which a
    transaction needs to commit an offset.
    """

    def __init__(self, settings: Mapping[str, str], name: str) -> None:
        self._where, self._group_id = f"Kafka at {settings['bootstrap.servers']}", group_of(name)
        # Hides librdkafka's warnings that this consumer gets options that only a producer uses.
        self._settings = {**settings, "group.id": self._group_id, "log_level": "3"}
        del self._settings["transactional.id"]
        consumer = Consumer(self._settings)
        self.group = consumer.consumer_group_metadata()
        consumer.close()

    def last(self, given_up: Callable[[], bool]) -> CommittedOffset:
        """Returns the committed offset with the highest number over all partitions. Raises PublishError if Kafka does not return the
        offsets.
        """
        admin, end = AdminClient({**self._settings}), time.monotonic() + CALL_SECONDS_MAX
        while True:
            try:
                return self._answer(admin, given_up)
            except KafkaException as error:
                if error.args[0].code() in NOT_YET and time.monotonic() < end:
                    admin.poll(LOOK_SECONDS)
                    continue
                raise PublishError(
                    f"{self._where} does not return the committed offsets of the group {self._group_id} "
                    f"({error.args[0].str()}): check that Kafka's brokers run, and permit READ of this group, "
                    "which transactional_id needs"
                ) from None

    def _answer(self, admin: AdminClient, given_up: Callable[[], bool]) -> CommittedOffset:
        # Describes the group first, because this call raises an error while the group's coordinator is not available. Listing the offsets
        # at such a time would end the process with SIGSEGV (librdkafka 2.16).
        described = admin.describe_consumer_groups([self._group_id], request_timeout=CALL_SECONDS_MAX)
        _result(described[self._group_id], given_up)
        group = ConsumerGroupTopicPartitions(self._group_id)
        listed = admin.list_consumer_group_offsets([group], require_stable=True, request_timeout=CALL_SECONDS_MAX)
        answer = _result(listed[self._group_id], given_up)
        found = [CommittedOffset()]
        for each in answer.topic_partitions:
            if each.error is not None:
                raise KafkaException(each.error)
            found.append(CommittedOffset(each.offset, each.metadata or ""))
        return max(found, key=lambda offset: offset.number)
