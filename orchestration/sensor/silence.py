"""Tells Dagster that an engine's own sensor is silent, which that sensor cannot: the one of the destination's snapshots does it.

By the engine's status.json alone. Where no daemon runs no sensor can: then `runless` publishes it, and `sluice status` says so.
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
_heard: dict[str, float] = {}  # destination → when a tick came to this process


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
    ticked = last_tick(directory)
    return bool(ticked) and abs(time.time() - ticked) > TICK_SILENCE_SECONDS_MAX


def hear(destination: str) -> None:
    """A tick came, whatever it met: an engine that cannot start writes no status, and one that stands by is another host's."""
    _heard[destination] = time.time()


def heard(destination: str) -> float:
    """When the last tick came to this process, seconds since 1970; 0 where none did."""
    return _heard.get(destination, 0.0)


def last_tick(directory: Path) -> float:
    """When the engine of a destination was last asked, seconds since 1970; 0 where that is not known."""
    try:
        return float(json.loads((directory / STATUS_FILE).read_bytes())["ticked_at_us"]) / 1e6
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
