"""Reports to Dagster, as a failed asset check, that an engine's sensor no longer ticks. The snapshot sensor calls this module, because the
engine's sensor cannot report its own silence.

This module reads only the engine's status.json. If Dagster's daemon does not run, the snapshot sensor does not tick either. In this case,
the module `runless` publishes the failed check, and `sluice status` shows the failure.
"""

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

# The values of the snapshot sensor's cursor. SILENT: the snapshot sensor has published a failure, because the engine's sensor does not
# tick. HEARD: all other cases. The cursor is never empty, because Dagster treats an empty cursor as None.
SILENT, HEARD = "silent", "heard"
# The time at which each destination's last tick in this process ended, in seconds since 1970.
_heard: dict[str, float] = {}


def silence(destination: str, directory: Path, cursor: str | None) -> tuple[list[dg.AssetCheckEvaluation], str]:
    """Returns the results of the engine's check that the snapshot sensor must publish, and the snapshot sensor's new cursor. `cursor` is
    the snapshot sensor's present cursor.

    There is a result in two cases only. If the engine's sensor has stopped ticking, the result is the failure in the engine's status. It is
    returned once, as soon as the status has a failure. If the engine's sensor ticks again afterwards, the result is what the status says
    then: a failure or a pass.
    """
    silent = _ticks_are_silent(directory)
    if silent == (cursor == SILENT):
        return [], cursor or HEARD
    why = read_failures(directory, time.time()).get("", "")
    if silent and not why:
        return [], cursor or HEARD
    return [result_of(engine_key(destination), ENGINE_CHECK, why)], SILENT if silent else HEARD


def _ticks_are_silent(directory: Path) -> bool:
    """Returns True if the last tick in status.json is more than TICK_SILENCE_SECONDS_MAX before or after the current time. A tick is after
    the current time if a clock was set back. If the engine no longer writes the file, the recorded tick becomes too old. Returns False if
    no tick is recorded.
    """
    ticked = last_tick(directory)
    return bool(ticked) and abs(time.time() - ticked) > TICK_SILENCE_SECONDS_MAX


def hear(destination: str) -> None:
    """Records that a tick of this process has ended. The status file does not show every tick: an engine that cannot start writes no status
    file, and a standby host sees the status file of another host's engine.
    """
    _heard[destination] = time.time()


def heard(destination: str) -> float:
    """Returns when the last tick in this process ended, in seconds since 1970, or 0 if there was none."""
    return _heard.get(destination, 0.0)


def last_tick(directory: Path) -> float:
    """Returns when the sensor last ticked according to the engine's status file, in seconds since 1970, or 0 if this is unknown."""
    return float(engine_status(directory).get("ticked_at_us") or 0) / 1e6
