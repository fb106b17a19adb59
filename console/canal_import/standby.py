"""Converts Canal's settings of master, standby and failure detection to `source`, or to `sources` and `heartbeat`. `rules` calls this
module.
"""

from __future__ import annotations

import re
from typing import Any

from sluice.cdc_engine.config.brokers import address_of
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.canal_import.properties import Settings

MASTER, STANDBY = "canal.instance.master.address", "canal.instance.standby.address"
DETECTING = "canal.instance.detecting."
DETECTING_KEYS = ("enable", "sql", "interval.time", "retry.threshold", "heartbeatHaEnable")
MYSQL_PORT = 3306
# Canal's defaults of canal.instance.detecting.interval.time (in seconds) and of canal.instance.detecting.retry.threshold.
INTERVAL_SECONDS, RETRIES = 5, 3
READS = re.compile(r"\s*(?:select|show)\b(?!.*\b(?:into|for\s+update)\b)", re.IGNORECASE | re.DOTALL)


def sources_of(settings: Settings, common: dict[str, Any], taken: list[str], left: list[str]) -> dict[str, Any]:
    """Returns the setting `source`, or `sources` and `heartbeat` if Canal has a standby with another address. `common` are the settings
    that all servers share: all except the address. Appends lines to `taken` and `left`, the lists of the report.
    """
    master = _address(settings, MASTER) or {"host": "127.0.0.1", "port": MYSQL_PORT}
    second, standby = settings.get(STANDBY), _address(settings, STANDBY)
    heartbeat = _heartbeat(settings, left if second else [])
    if not standby or standby == master:
        if second:
            taken.append(f"{STANDBY} is the master itself, so the destination has one `source`")
        return {"source": master | common}
    taken.append(
        f"{STANDBY} {second}: this standby source takes over by GTID, so both servers need GTIDs; the standby "
        "server also needs log_slave_updates and the same user"
    )
    if keys := settings.given(*(DETECTING + key for key in DETECTING_KEYS)):
        taken.append(f"{keys}: converted to `heartbeat`")
    if not heartbeat["switch"]:
        left.append(
            f"{DETECTING}heartbeatHaEnable: Canal did not switch servers by itself; with `heartbeat: "
            "{switch: false}` `sluice status` reports that the master does not answer, and you switch with "
            "`sluice source switch`"
        )
    return {"sources": [master | common, standby | common], "heartbeat": heartbeat}


def _address(settings: Settings, key: str) -> dict[str, Any]:
    """Returns the address in a key as `host` and `port`, or {} if the key has no value. Raises ConfigurationError if the value is not an
    address.
    """
    text = settings.get(key)
    if not text:
        return {}
    try:
        host, port = address_of(text, MYSQL_PORT)
    except ValueError as error:
        raise ConfigurationError(f"{key}: {error}; correct the properties file, and import again") from None
    return {"host": host, "port": port}


def _heartbeat(settings: Settings, left: list[str]) -> dict[str, Any]:
    """Returns the setting `heartbeat`. Its key `switch` says whether Sluice switches to the standby without an operator. `switch` is true
    only if Canal's keys `enable` and `heartbeatHaEnable` are both true, because only then does Canal switch servers. Both keys are false by
    default. Imports Canal's SQL statement if the statement only reads. For any other statement, `left` gets a line.
    """
    detects, changes = (settings.flag(DETECTING + key) for key in ("enable", "heartbeatHaEnable"))
    seconds = settings.number(f"{DETECTING}interval.time", INTERVAL_SECONDS)
    retries = settings.number(f"{DETECTING}retry.threshold", RETRIES)
    sql = settings.get(f"{DETECTING}sql")
    record: dict[str, Any] = {
        "seconds": float(seconds if seconds > 0 else INTERVAL_SECONDS),
        "retries": max(retries, 0),
        "switch": detects and changes,
    }
    if sql and READS.match(sql):
        return {"sql": sql, **record}
    if sql:
        left.append(f"{DETECTING}sql {sql!r} writes to the source, so it is not imported: Sluice runs SELECT 1 instead")
    return record
