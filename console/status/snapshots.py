"""Reads the open snapshots of a destination for `sluice status`, and describes those that have failed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.snapshot.record import progress, progress_record
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState


def open_snapshots(config: SluiceConfig, name: str, now: float) -> list[dict[str, Any]]:
    """Returns the open snapshots of a destination. If their records cannot be read, returns one failed snapshot without a table."""
    records = SnapshotRecords(config.destination_dir(name))
    try:
        found = [each for each in records.all() if each.is_open]
        in_lake = set(LakeTables(config.destination_dir(name)).names) if found else set()
        still = records.still_seconds(now) if found else {}
    except MetaError as error:
        return [{"table": "", "state": SnapshotState.FAILED, "reason": str(error)}]
    return [
        {
            "table": each.name,
            "state": each.state,
            "reason": each.reason,
            "lake_is_older": each.lake_is_older if each.name in in_lake else "",
            "still_seconds": still.get(each.name, 0.0),
            **progress_record(progress(each, now)),
        }
        for each in found
    ]


def failed_sentence(destination: str, snapshot: Mapping[str, Any]) -> str:
    """Returns the message about a failed snapshot, with the command that reads its table again, or about records that cannot be read."""
    table, reason = str(snapshot["table"]), snapshot["reason"]
    if not table:
        return f"{destination}: its snapshots are unknown: {reason}"
    resume = f"`sluice snapshot resume {destination} {shlex.quote(table)}`"
    return f"{destination}: the snapshot of {table} failed: {reason} ({resume} reads the table again)"
