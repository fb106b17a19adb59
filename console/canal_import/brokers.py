"""Canal's serverMode and canal.mq.*, kafka.* → `brokers` of a destination. Pure; asked by `rules`."""

from __future__ import annotations

import re
from typing import Any

from console.canal_import.properties import Settings

CLIENT = 1001  # as whom Canal's own sender reads
KAFKA_SERVERS = "127.0.0.1:9092"
BATCH_UNITS = 50  # of 1024 bytes
# Of Canal's older names, the newer ones.
OLDER = {
    "kafka.bootstrap.servers": "canal.mq.servers",
    "kafka.compression.type": "canal.mq.compressionType",
    "kafka.batch.size": "canal.mq.batchSize",
    "kafka.linger.ms": "canal.mq.lingerMs",
    "kafka.max.request.size": "canal.mq.maxRequestSize",
    "kafka.buffer.memory": "canal.mq.bufferMemory",
    "kafka.acks": "canal.mq.acks",
}
# Settings of Kafka's Java producer that librdkafka has under the same name, or another.
SAME = (
    *("batch.size", "linger.ms", "compression.type", "security.protocol", "sasl.mechanism", "request.timeout.ms"),
    *("delivery.timeout.ms", "client.id", "metadata.max.age.ms", "connections.max.idle.ms", "reconnect.backoff.ms"),
    *("reconnect.backoff.max.ms", "retry.backoff.ms", "ssl.endpoint.identification.algorithm", "client.dns.lookup"),
)
RENAMED = {"max.request.size": "message.max.bytes", "send.buffer.bytes": "socket.send.buffer.bytes"}
BY_ITSELF = {
    "acks": "all",
    "retries": "a message is sent again until delivery.timeout.ms, then its batch",
    "max.in.flight.requests.per.connection": "the idempotent producer keeps the order with several",
}
JAAS = re.compile(r"""(username|password)\s*=\s*\\?["']([^"'\\]*)""")


def brokers_of(name: str, settings: Settings, taken: list[str], left: list[str], secrets: dict[str, str]) -> list[Any]:
    """Empty where Canal serves its protocol. `taken`, `left`, `secrets`: what is told, which grows."""
    mode = settings.get("canal.serverMode", "tcp")
    if mode.lower() == "tcp":
        return []
    if mode.lower() != "kafka":
        left.append(
            f"canal.serverMode {mode}: of the brokers Sluice sends to Kafka alone; a consumer of the protocol may send on to another"
        )
        return []
    for key in ("canal.port", "canal.ip", "canal.user", "canal.passwd"):
        settings.get(key)  # of the protocol's server, which is off
    broker: dict[str, Any] = {"kind": "kafka", "client_id": CLIENT}
    broker["servers"] = _kafka(settings, "kafka.bootstrap.servers") or KAFKA_SERVERS
    broker |= _rules(settings, left)
    options = _options(name, settings, left, secrets)
    if options:
        broker["options"] = options
    taken.append(
        f"canal.serverMode kafka: `brokers`, as consumer {CLIENT}; acks is all and the producer idempotent. An update that moves a row to "
        "another partition is a delete there and an insert here, which keeps each key's order; `key_changes: update` is Canal's way"
    )
    left.append(
        "TIMESTAMP values in messages are in UTC, Canal takes its machine's zone: time_zone of the broker says another"
    )
    return [broker]


def _rules(settings: Settings, left: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"format": "flat" if settings.flag("canal.mq.flatMessage", default=True) else "protobuf"}
    found["topic"] = settings.get("canal.mq.topic")
    if not found["topic"]:
        found["topic"] = "example"
        left.append("canal.mq.topic is empty: `topic` of the broker says example, name the one you want")
    for key, own in (
        ("dynamicTopic", "dynamic_topic"),
        ("partitionHash", "partition_hash"),
        ("dynamicTopicPartitionNum", "dynamic_topic_partition_num"),
    ):
        if text := settings.get(f"canal.mq.{key}"):
            found[own] = text
    for key, own in (("partition", "partition"), ("partitionsNum", "partitions_num")):
        if number := settings.number(f"canal.mq.{key}"):
            found[own] = number
    if not settings.flag("canal.mq.database.hash", default=True):
        found["database_hash"] = False
    units = settings.number("canal.mq.canalBatchSize", BATCH_UNITS)
    if units != BATCH_UNITS and units > 0:
        found["batch_bytes_max"] = units * 1024
    if settings.flag("canal.mq.enableDynamicQueuePartition"):
        left.append("canal.mq.enableDynamicQueuePartition: of RocketMQ alone; partitions_num says how many there are")
    return found


def _kafka(settings: Settings, key: str) -> str:
    """An older name wins over the newer one, as in Canal."""
    older = settings.get(OLDER[key]) if key in OLDER else ""
    return older or settings.get(key)


def _options(name: str, settings: Settings, left: list[str], secrets: dict[str, str]) -> dict[str, str]:
    given = {key for file in settings.files for key in file if file[key]}
    names = {key.removeprefix("kafka.") for key in given if key.startswith("kafka.")}
    names |= {key.removeprefix("kafka.") for key, older in OLDER.items() if older in given}
    found: dict[str, str] = {}
    for option in sorted(names - {"bootstrap.servers"}):
        value = _kafka(settings, f"kafka.{option}")
        if option in SAME:
            found[option] = value
        elif option in RENAMED:
            found[RENAMED[option]] = value
        elif option == "buffer.memory":
            found["queue.buffering.max.kbytes"] = str(max(1, int(value) // 1024)) if value.isdigit() else value
        elif option == "sasl.jaas.config":
            found |= _login(name, value, left, secrets)
        elif option in BY_ITSELF:
            _say_by_itself(option, value, left)
        elif option.startswith("kerberos."):
            _say_kerberos(option, value, left)
        else:
            left.append(
                f"kafka.{option}: a setting of Kafka's Java client; `options` of the broker takes those of librdkafka"
            )
    return found


def _say_by_itself(option: str, value: str, left: list[str]) -> None:
    if option == "acks" and value not in {"all", "-1"}:
        left.append(f"kafka.acks {value}: it is always all, for with less a message may be lost after its ack")


def _say_kerberos(option: str, value: str, left: list[str]) -> None:
    if option == "kerberos.enable" and value.lower() == "true":
        left.append(
            "kafka.kerberos.enable: name librdkafka's sasl.kerberos.* in `options` of the broker, in place of a JAAS file"
        )


def _login(name: str, value: str, left: list[str], secrets: dict[str, str]) -> dict[str, str]:
    """User and password of a JAAS line; the password goes into a variable of the environment."""
    found = dict(JAAS.findall(value))
    if set(found) != {"username", "password"}:
        left.append("kafka.sasl.jaas.config: say sasl.username and sasl.password in `options` of the broker")
        return {}
    variable = f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_KAFKA_PASSWORD"
    secrets[variable] = f"password in kafka.sasl.jaas.config of {name}"
    return {"sasl.username": found["username"], "sasl.password": f"${variable}"}
