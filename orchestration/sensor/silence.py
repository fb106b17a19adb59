"""Tells Dagster that an engine's own sensor is silent, which that sensor cannot: the one of the destination's snapshots does it.

By the engine's status.json alone. Where no daemon runs nobody can publish anything: then `sluice status` says so, and Dagster's own page of
daemons.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from cdc_engine.limits import TICK_SILENCE_SECONDS_MAX
from orchestration.checks import STATUS_FILE, read_failures
from orchestration.sensor.observations import ENGINE_CHECK, result_of
from orchestration.table_catalog import engine_key

if TYPE_CHECKING:
    from pathlib import Path

    import dagster as dg

# The cursor: whether the newest result of the check is ours. Dagster takes an empty cursor for none.
SILENT, HEARD = "silent", "heard"


def silence(destination: str, directory: Path, cursor: str | None) -> tuple[list[dg.AssetCheckEvaluation], str]:
    """The engine's check where its result is due, and the new cursor: failed when its sensor falls silent, asked when that is back."""
    silent = _ticks_are_silent(directory)
    if silent == (cursor == SILENT):
        return [], cursor or HEARD
    why = read_failures(directory, time.time()).get("", "")
    if silent and not why:
        return [], cursor or HEARD
    return [result_of(engine_key(destination), ENGINE_CHECK, why)], SILENT if silent else HEARD


def _ticks_are_silent(directory: Path) -> bool:
    """Whether an engine was ever asked and is no longer, by its own word or because it does not write any more."""
    try:
        record = json.loads((directory / STATUS_FILE).read_bytes())
        ticked = float(record["ticked_at_us"]) / 1e6
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(ticked) and abs(time.time() - ticked) > TICK_SILENCE_SECONDS_MAX
