"""Converts positions to and from the JSON in which Canal stores a client's cursor in ZooKeeper (class LogPosition, with Canal's spelling).
Pure.

Canal's cursor is the *start* of the event that was acked last. This position is within a transaction, so Sluice does not start there.
Sluice starts after the cursor's GTID set or, without GTIDs, at the cursor's time (`instance.canal_takeover`).

Sluice's own cursor is the end of a transaction. Sluice writes its cursor in Canal's JSON, so that Canal can continue from there.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from sluice.cdc_engine.position import Position

CLASS = "com.alibaba.otter.canal.protocol.position.LogPosition"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanalCursor:
    """A cursor of Canal. The last acked event begins at the byte `offset` of `file`, and has the time `time_ms` (milliseconds since 1970).
    `gtid_set` is the executed set, which includes the transaction of this event.
    """

    file: str
    offset: int
    gtid_set: str = ""
    time_ms: int = 0


def to_text(position: Position, host: str, port: int) -> str:
    """Returns Canal's JSON of a cursor. `host` and `port` are the address of the source."""
    record = {
        "gtid": position.gtid_set,
        "included": False,
        "journalName": position.file,
        "position": position.offset,
        "serverId": 0,
        "timestamp": position.time_us // 1000,
    }
    identity = {"slaveId": -1, "sourceAddress": {"address": host, "port": port}}
    return json.dumps({"@type": CLASS, "identity": identity, "postion": record}, separators=(",", ":"))


def from_text(text: str) -> CanalCursor:
    """Parses a cursor that `to_text` or Canal wrote. Raises ValueError with the reason if the text is not such a cursor."""
    record = json.loads(text)
    position = record.get("postion") if isinstance(record, dict) else None
    if not isinstance(position, dict):
        raise ValueError("the cursor has no position (in Canal's JSON: postion)")
    cursor = CanalCursor(
        file=_text_at(position, "journalName"),
        offset=_number(position, "position"),
        gtid_set=_text_at(position, "gtid"),
        time_ms=_number(position, "timestamp"),
    )
    if not cursor.file and not cursor.gtid_set:
        raise ValueError("the cursor names neither a file nor a GTID set")
    return cursor


def _text_at(position: dict[str, Any], name: str) -> str:
    value = position.get(name) or ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, not a string")
    return value


def _number(position: dict[str, Any], name: str) -> int:
    value = position.get(name) or 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, but must be an integer of at least 0")
    return value
