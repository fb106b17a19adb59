"""Converts Canal's settings rabbitmq.* to settings of a RabbitMQ broker in conf/. `brokers` calls this module."""

from __future__ import annotations

import urllib.parse
from typing import Any

from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.canal_import.properties import ImportReport, Settings

SERVER = "127.0.0.1"
SAME = (("rabbitmq.exchange", "exchange"), ("rabbitmq.virtual.host", "virtual_host"), ("rabbitmq.username", "user"))
BINDING = (("rabbitmq.routingKey", "routing_key"), ("rabbitmq.deliveryMode", "exchange_type"))


def rabbitmq_of(name: str, settings: Settings, report: ImportReport) -> dict[str, Any]:
    """Returns the settings that only a broker of kind RabbitMQ has, such as `exchange` and `queue`. Adds Canal's keys to the report."""
    found = _address(name, settings.get("canal.mq.servers") or settings.get("rabbitmq.host") or SERVER, report)
    found |= {own: settings.get(key) for key, own in SAME if settings.get(key)}
    if settings.unchecked("rabbitmq.password"):
        found["password"] = f"${report.secret(name, 'RABBITMQ_PASSWORD', 'rabbitmq.password')}"
    if keys := settings.given("canal.aliyun.accessKey", "rabbitmq.resource.ownerId"):
        report.left.append(
            f"{keys}: Sluice does not support Alibaba's login to RabbitMQ, whose password changes with the "
            "time: set a user and a password"
        )
    if queue := settings.get("rabbitmq.queue"):
        found["queue"] = queue
    if keys := settings.given("canal.mq.servers", "rabbitmq.host", *(key for key, _ in SAME), "rabbitmq.queue"):
        report.taken.append(f"{keys}: converted to the broker's address, user and queue")
    found |= _binding(settings, report, bindable={"queue", "exchange"} <= found.keys())
    report.taken.append(
        "canal.serverMode rabbitMQ: RabbitMQ confirms every message before its ack. A message that no queue "
        "receives is lost in Canal; in Sluice, the consumer is STOPPED until a queue receives the message"
    )
    return found


def _address(name: str, text: str, report: ImportReport) -> dict[str, Any]:
    """Converts the address of RabbitMQ in Canal to settings of the broker. `text` is a host, host:port, or a URI, which may contain a user,
    a password and a virtual host.
    """
    if not text.startswith("amqp"):
        return {"servers": text}
    try:
        uri = urllib.parse.urlsplit(text)
        port = uri.port
    except ValueError:  # Does not show urllib's message, because it may contain a part of the password.
        raise ConfigurationError(
            "RabbitMQ's address (canal.mq.servers or rabbitmq.host) is not a URI such as amqp://user:password@host:5672/virtual_host; "
            "write / and @ of a password as %2F and %40"
        ) from None
    found: dict[str, Any] = {"servers": f"{uri.hostname}:{port}" if port else uri.hostname or SERVER}
    if uri.username:
        found["user"] = urllib.parse.unquote(uri.username)
    if uri.password:
        found["password"] = f"${report.secret(name, 'RABBITMQ_PASSWORD', 'the password in the address of RabbitMQ')}"
    if len(uri.path) > 1:
        found["virtual_host"] = urllib.parse.unquote(uri.path[1:])
    if uri.scheme == "amqps":
        found["tls"] = {}
        report.left.append(
            "the address of RabbitMQ is amqps: Canal accepts any certificate, but Sluice verifies it. Set tls.ca_file of the "
            "broker"
        )
    return found


def _binding(settings: Settings, report: ImportReport, *, bindable: bool) -> dict[str, Any]:
    """Returns the settings that bind the queue to the exchange. Like Canal, Sluice binds a queue only if the queue, the exchange, the
    routing key and the exchange type are all set. `bindable`: the queue and the exchange are set.
    """
    said = {own: settings.get(key) for key, own in BINDING}
    if all(said.values()) and bindable:
        report.taken.append("rabbitmq.routingKey, rabbitmq.deliveryMode: the queue is declared and bound")
        return {**said, "exchange_type": said["exchange_type"].lower()}
    if any(said.values()):
        report.left.append(
            "rabbitmq.routingKey, rabbitmq.deliveryMode: Canal and Sluice bind a queue only if the queue, the exchange "
            "and both of these keys are set"
        )
    return {}
