"""Converts Canal's settings rocketmq.* to settings of a RocketMQ broker in conf/. `brokers` calls this module."""

from __future__ import annotations

from typing import Any

from sluice.console.canal_import.properties import ImportReport, Settings

SERVERS = "127.0.0.1:9876"
# (Canal's key, an older name of the key, Sluice's setting). If both names of a key are set, the older name takes precedence, as in Canal.
SAME = (
    ("rocketmq.namesrv.addr", "canal.mq.servers", "servers"),
    ("rocketmq.producer.group", "canal.mq.producerGroup", "group"),
    ("rocketmq.namespace", "canal.mq.namespace", "namespace"),
    ("rocketmq.tag", "", "tag"),
)
TRACED = "Sluice does not trace messages: switch tracing on in the consumers if you need it"
LEFT = (
    ("rocketmq.enable.message.trace", "true", TRACED),
    (
        "rocketmq.vip.channel.enabled",
        "true",
        "Sluice uses the ordinary port of the broker, which accepts the same requests",
    ),
    ("canal.mq.accessChannel", "cloud", "Sluice does not send message traces to Alibaba"),
)


def rocketmq_of(name: str, settings: Settings, report: ImportReport) -> dict[str, Any]:
    """Returns the settings that only a broker of kind RocketMQ has, such as `group` and `tag`. Adds Canal's keys to the report."""
    found: dict[str, Any] = {"servers": SERVERS}
    for key, older, own in SAME:
        if text := (settings.get(older) if older else "") or settings.get(key):
            found[own] = text
    if keys := settings.given(*(key for names in SAME for key in names[:2] if key)):
        report.taken.append(f"{keys}: converted to the broker's address, group, namespace and tag")
    if key := settings.get("canal.aliyun.accessKey"):
        report.taken.append("canal.aliyun.accessKey: converted to `access_key` of the broker")
        found["access_key"] = key
        found["secret_key"] = f"${report.secret(name, 'ROCKETMQ_SECRET', 'canal.aliyun.secretKey')}"
    for left, value, why in LEFT:
        if settings.get(left).lower() == value:
            report.left.append(f"{left}: {why}")
    report.taken.append(
        "canal.serverMode rocketMQ: Sluice uses the same name servers and queues. A message is sent until "
        "its broker confirms it, regardless of rocketmq.retry.times.when.send.failed; the topic and its queues must exist"
    )
    return found
