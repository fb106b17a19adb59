"""Reports to Dagster that an engine's sensor no longer ticks. The sensor itself cannot report it, so the snapshot sensor does.

It reads only the engine's status.json. When no daemon runs, no sensor can report: then `runless` publishes it, and `sluice status` shows
it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sluice.cdc_engine.limits import TICK_SILENCE_SECONDS_MAX
from sluice.cdc_engine.status_file import engine_status
from sluice.orchestration.base.table_catalog import engine_key
from sluice.orchestration.checks.observations import ENGINE_CHECK, result_of
from sluice.orchestration.checks.stopped import read_failures

if TYPE_CHECKING:
    from pathlib import Path

    import dagster as dg

# The cursor says whether this sensor published the newest result of the check. Dagster treats an empty cursor as none.
SILENT, HEARD = "silent", "heard"
_heard: dict[str, float] = {}  # Destination → the time of its last tick in this process.


def silence(destination: str, directory: Path, cursor: str | None) -> tuple[list[dg.AssetCheckEvaluation], str]:
    """Returns the engine's check if its result must be published, and the new cursor. The check fails when the engine's sensor falls
    silent, and gets the current result when ticks return.
    """
    silent = _ticks_are_silent(directory)
    if silent == (cursor == SILENT):
        return [], cursor or HEARD
    why = read_failures(directory, time.time()).get("", "")
    if silent and not why:
        return [], cursor or HEARD
    return [result_of(engine_key(destination), ENGINE_CHECK, why)], SILENT if silent else HEARD


def _ticks_are_silent(directory: Path) -> bool:
    """Returns whether the sensor has ticked before and no longer does, by status.json. That is also the case if the engine no longer writes
    it.
    """
    ticked = last_tick(directory)
    return bool(ticked) and abs(time.time() - ticked) > TICK_SILENCE_SECONDS_MAX


def hear(destination: str) -> None:
    """Records a tick, whatever its outcome. Status files do not show all ticks: an engine that cannot start writes no status, and the
    status of a standby engine is another host's.
    """
    _heard[destination] = time.time()


def heard(destination: str) -> float:
    """Returns when this process last got a tick, in seconds since 1970; 0 if never."""
    return _heard.get(destination, 0.0)


def last_tick(directory: Path) -> float:
    """Returns when the sensor last ticked for a destination's engine, in seconds since 1970; 0 if unknown."""
    return float(engine_status(directory).get("ticked_at_us") or 0) / 1e6
