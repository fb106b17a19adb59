"""Converts Canal's settings pulsarmq.* to settings of a Pulsar broker in conf/. `brokers` calls this module."""

from __future__ import annotations

import re
from typing import Any

from sluice.console.canal_import.properties import ImportReport, Settings

SERVERS = "127.0.0.1:6650"
URL = re.compile(r"pulsar(?P<tls>\+ssl)?://(?P<servers>[^/]+)/?")
# Matches `tenant/namespace`, with or without the prefix `persistent://`.
PREFIX = re.compile(r"(?:persistent://)?(?P<namespace>[\w.-]+/[\w.-]+)/?")


def pulsar_of(name: str, settings: Settings, report: ImportReport) -> dict[str, Any]:
    """Returns the settings that only a broker of kind Pulsar has, such as `servers` and `token`. Adds Canal's keys to the report."""
    found: dict[str, Any] = {"servers": SERVERS}
    if text := settings.get("pulsarmq.serverUrl"):
        if url := URL.fullmatch(text):
            found |= {"servers": url["servers"], **({"tls": {}} if url["tls"] else {})}
            report.taken.append("pulsarmq.serverUrl: converted to `servers` of the broker")
        else:
            report.left.append("pulsarmq.serverUrl is not a pulsar:// URL: set `servers` of the broker")
    if text := settings.get("pulsarmq.topicTenantPrefix"):
        if prefix := PREFIX.fullmatch(text):
            found["namespace"] = prefix["namespace"]
            report.taken.append("pulsarmq.topicTenantPrefix: converted to `namespace` of the broker")
        else:
            report.left.append(
                "pulsarmq.topicTenantPrefix is not of the form tenant/namespace: set `namespace` of the broker"
            )
    if settings.unchecked("pulsarmq.roleToken"):
        found["token"] = f"${report.secret(name, 'PULSAR_TOKEN', 'pulsarmq.roleToken')}"
    report.taken.append(
        "canal.serverMode pulsarMQ: create each topic with its partitions, because Sluice creates no topics"
    )
    return found
