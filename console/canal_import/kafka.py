"""Converts Canal's settings kafka.* to settings of a Kafka broker in conf/. `brokers` calls this module."""

from __future__ import annotations

import re
from typing import Any

from sluice.console.canal_import.properties import ImportReport, Settings
from sluice.secret_values import is_reference

SERVERS = "127.0.0.1:9092"
# The newer name of a key → the older name. Canal reads both names.
OLDER = {
    "kafka.bootstrap.servers": "canal.mq.servers",
    "kafka.compression.type": "canal.mq.compressionType",
    "kafka.batch.size": "canal.mq.batchSize",
    "kafka.linger.ms": "canal.mq.lingerMs",
    "kafka.max.request.size": "canal.mq.maxRequestSize",
    "kafka.buffer.memory": "canal.mq.bufferMemory",
    "kafka.acks": "canal.mq.acks",
}
# Settings that have the same name in Kafka's Java producer and in librdkafka.
SAME = (
    *("batch.size", "linger.ms", "compression.type", "security.protocol", "sasl.mechanism", "request.timeout.ms"),
    *("delivery.timeout.ms", "client.id", "metadata.max.age.ms", "connections.max.idle.ms", "reconnect.backoff.ms"),
    *("reconnect.backoff.max.ms", "retry.backoff.ms", "ssl.endpoint.identification.algorithm", "client.dns.lookup"),
)
RENAMED = {"max.request.size": "message.max.bytes", "send.buffer.bytes": "socket.send.buffer.bytes"}
BY_ITSELF = {
    "acks": "acks is always `all`",
    "retries": "a message is sent again until delivery.timeout.ms; then the whole batch is sent again",
    "max.in.flight.requests.per.connection": "the idempotent producer keeps the order of messages with several requests in flight",
}
JAAS = re.compile(r"""(username|password)\s*=\s*\\?["']([^"'\\]*)""")


def kafka_of(name: str, settings: Settings, report: ImportReport) -> dict[str, Any]:
    """Returns the settings that only a broker of kind Kafka has, such as `servers` and `options`. Adds Canal's keys to the report."""
    found: dict[str, Any] = {"servers": _kafka(settings, "kafka.bootstrap.servers") or SERVERS}
    if keys := settings.given("kafka.bootstrap.servers", OLDER["kafka.bootstrap.servers"]):
        report.taken.append(f"{keys}: converted to `servers` of the broker")
    if options := _options(name, settings, report):
        found["options"] = options
    report.taken.append(
        "canal.serverMode kafka: acks is all, and the producer is idempotent. Sluice sends an update that moves a row to another "
        "partition as a delete and an insert, which keeps the order of each key; with `key_changes: update` Sluice sends one "
        "update, as Canal does"
    )
    return found


def _kafka(settings: Settings, key: str) -> str:
    """Returns the value of a setting of Canal. If both the newer and the older name of the key are set, the older name takes precedence, as
    in Canal.
    """
    older = settings.get(OLDER[key]) if key in OLDER else ""
    return older or settings.get(key)


def _options(name: str, settings: Settings, report: ImportReport) -> dict[str, str]:
    taken: list[str] = []
    given = {key for file in settings.files for key in file if file[key]}
    names = {key.removeprefix("kafka.") for key in given if key.startswith("kafka.")}
    names |= {key.removeprefix("kafka.") for key, older in OLDER.items() if older in given}
    found: dict[str, str] = {}
    for option in sorted(names - {"bootstrap.servers"}):
        value, keys = _kafka(settings, f"kafka.{option}"), _keys(settings, option)
        if option in SAME or option in RENAMED or option == "buffer.memory":
            taken.append(keys)
        if option in SAME:
            found[option] = value
        elif option in RENAMED:
            found[RENAMED[option]] = value
        elif option == "buffer.memory":
            found["queue.buffering.max.kbytes"] = str(max(1, int(value) // 1024)) if value.isdigit() else value
        elif option == "sasl.jaas.config":
            found |= _login(name, value, report)
        elif option in BY_ITSELF:
            _say_by_itself(option, value, keys, report)
        elif option.startswith("kerberos."):
            _say_kerberos(option, value, report)
        else:
            report.left.append(
                f"kafka.{option}: only Kafka's Java client has this setting; set a similar setting of librdkafka in `options` of the broker"
            )
    if taken:
        report.taken.append(f"{', '.join(taken)}: converted to `options` of the broker, with librdkafka's names")
    return found


def _keys(settings: Settings, option: str) -> str:
    """Returns the keys that set an option, for a line of the report: its newer key, its older key, or both with a comma between them."""
    return settings.given(f"kafka.{option}", OLDER.get(f"kafka.{option}", ""))


def _say_by_itself(option: str, value: str, keys: str, report: ImportReport) -> None:
    if option == "acks" and value not in {"all", "-1"}:
        report.left.append(
            f"{keys} {value}: acks is always `all`, because otherwise a message may be lost after its ack"
        )
    else:
        report.no_meaning.append(f"{keys}: {BY_ITSELF[option]}")


def _say_kerberos(option: str, value: str, report: ImportReport) -> None:
    if option == "kerberos.enable" and value.lower() == "true":
        report.left.append(
            "kafka.kerberos.enable: instead of a JAAS file, set librdkafka's sasl.kerberos.* in `options` of the broker"
        )
    else:
        report.no_meaning.append(
            f"kafka.{option}: librdkafka reads no JAAS file, and configures Kerberos with sasl.kerberos.*"
        )


def _login(name: str, value: str, report: ImportReport) -> dict[str, str]:
    """Returns the options of librdkafka for the user and the password in a JAAS line (`value`). The password is a reference to an
    environment variable, whose name contains the destination's name `name`. A user that begins with `$` is such a reference too. If the
    line lacks a user or a password, returns {}, and the report says what to set.
    """
    found = dict(JAAS.findall(value))
    if set(found) != {"username", "password"}:
        report.left.append("kafka.sasl.jaas.config: set sasl.username and sasl.password in `options` of the broker")
        return {}
    user = found["username"]
    if is_reference(user):
        # Refers to a variable for the user too, because Sluice would read a user such as `$ConnectionString` as a reference to a variable.
        user = f"${report.secret(name, 'KAFKA_USER', 'the user in kafka.sasl.jaas.config')}"
    variable = report.secret(name, "KAFKA_PASSWORD", "the password in kafka.sasl.jaas.config")
    return {"sasl.username": user, "sasl.password": f"${variable}"}
