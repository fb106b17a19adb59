"""Converts Canal's settings canal.serverMode and canal.mq.* to the setting `brokers` of a destination. `rules` calls this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.console.canal_import.kafka import kafka_of
from sluice.console.canal_import.properties import GTID_ON, SHOWN_KINDS, ImportReport, Settings, left_out
from sluice.console.canal_import.pulsar import pulsar_of
from sluice.console.canal_import.rabbitmq import rabbitmq_of
from sluice.console.canal_import.rocketmq import rocketmq_of

# Canal sends an instance's changes to a broker as the client with this id, and stores the broker's cursor under this id. The imported
# broker gets the same id, so that it continues at this cursor.
CLIENT = 1001
RULES = tuple(
    f"canal.mq.{key}"
    for key in (
        *("flatMessage", "topic", "dynamicTopic", "canalBatchSize", "partition", "partitionsNum", "partitionHash"),
        *("dynamicTopicPartitionNum", "database.hash", "enableDynamicQueuePartition"),
    )
)
# The keys that Canal uses only if canal.mq.partitionHash is set.
HASH_RULES = ("canal.mq.partitionsNum", "canal.mq.dynamicTopicPartitionNum", "canal.mq.database.hash")
BATCH_UNITS = 50  # Canal's default of canal.mq.canalBatchSize, which is a number of units of 1024 bytes.
# Canal's serverMode in lower case → the function that converts the settings of this kind of broker.
KINDS: dict[str, Callable[[str, Settings, ImportReport], dict[str, Any]]] = {
    "kafka": kafka_of,
    "rabbitmq": rabbitmq_of,
    "rocketmq": rocketmq_of,
    "pulsarmq": pulsar_of,
}
NAMES = {"pulsarmq": "pulsar"}  # Canal's serverMode in lower case → Sluice's `kind`, if the two names differ.


def brokers_of(name: str, settings: Settings, report: ImportReport) -> list[Any]:
    """Returns the setting `brokers` of a destination, a list with one broker. The list is empty if Canal serves clients with its own
    protocol, or if Sluice does not have the kind of broker that canal.serverMode names. Adds Canal's keys to the report.
    """
    mode = settings.get("canal.serverMode", "tcp")
    kind = mode.lower()
    if kind == "tcp":
        return []
    if kind not in KINDS:
        own = sorted(
            {key for file in settings.files for key in file if key.lower().startswith(f"{kind}.") and file[key]}
        )
        report.left.append(
            f"canal.serverMode {mode}{''.join(f', {key}' for key in own)}: Sluice has no built-in broker of "
            "this kind: install or write a plug-in, or forward the changes with a client of Canal's protocol"
        )
        return []
    if keys := settings.given("canal.port", "canal.ip", "canal.user", "canal.passwd", "canal.withoutNetty"):
        report.no_meaning.append(f"{keys}: Canal does not serve clients while it sends to a broker")
    broker: dict[str, Any] = {
        "kind": NAMES.get(kind, kind),
        "client_id": CLIENT,
        "decimals": "canal",
        **KINDS[kind](name, settings, report),
    }
    if settings.flag(GTID_ON):
        broker["gtids"] = True
    broker |= left_out(settings, report, SHOWN_KINDS)
    broker |= _rules(settings, report.left)
    broker |= _without_partitions(settings, report.left) if kind == "rabbitmq" else _partitions(settings, report)
    report.taken.append(f"canal.serverMode {mode}: converted to `brokers`; the broker is consumer {CLIENT}")
    if keys := settings.given(*(key for key in RULES if not report.names(key))):
        report.taken.append(f"{keys}: converted to the broker's rules for topics and partitions")
    report.left.append(
        "Sluice writes TIMESTAMP values in messages in UTC, and Canal writes them in the time zone of Canal's machine: "
        "set time_zone of the broker to use another zone"
    )
    return [broker]


def _rules(settings: Settings, left: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"format": "flat" if settings.flag("canal.mq.flatMessage", default=True) else "protobuf"}
    found["topic"] = settings.get("canal.mq.topic")
    if not found["topic"]:
        found["topic"] = "example"
        left.append(
            "canal.mq.topic is empty: `topic` of the broker is set to example; correct `topic` if the messages "
            "belong to another topic"
        )
    if text := settings.get("canal.mq.dynamicTopic"):
        found["dynamic_topic"] = text
    units = settings.number("canal.mq.canalBatchSize", BATCH_UNITS)
    if units != BATCH_UNITS and units > 0:
        found["batch_bytes_max"] = units * 1024
    return found


def _partitions(settings: Settings, report: ImportReport) -> dict[str, Any]:
    hashes = bool(settings.get("canal.mq.partitionHash"))
    found = _hash_rules(settings) if hashes else {}
    if not hashes and (number := settings.number("canal.mq.partition")):
        found["partition"] = number
    if unused := settings.given(*(("canal.mq.partition",) if hashes else HASH_RULES)):
        report.no_meaning.append(
            f"{unused}: Canal ignores this setting {'with' if hashes else 'without'} canal.mq.partitionHash"
        )
    if settings.flag("canal.mq.enableDynamicQueuePartition"):
        report.left.append(
            "canal.mq.enableDynamicQueuePartition: set the number of queues in partitions_num, or in "
            "dynamic_topic_partition_num"
        )
    return found


def _hash_rules(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {"partition_hash": settings.get("canal.mq.partitionHash")}
    if text := settings.get("canal.mq.dynamicTopicPartitionNum"):
        found["dynamic_topic_partition_num"] = text
    if number := settings.number("canal.mq.partitionsNum"):
        found["partitions_num"] = number
    if not settings.flag("canal.mq.database.hash", default=True):
        found["database_hash"] = False
    return found


def _without_partitions(settings: Settings, left: list[str]) -> dict[str, Any]:
    if keys := settings.given(*(key for key in RULES if "artition" in key or "hash" in key)):
        left.append(f"{keys}: a queue of RabbitMQ has no partitions, so Canal ignores this setting too")
    return {}
