"""Records in status.json why an engine could not be started. `sluice status`, `sluice check` and the check of the engine's asset read this
file.

An engine writes status.json only while it runs. Without this module, status.json would still show the status of an earlier engine after a
failed start.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import EngineStartingError, EngineStoppedError, LeaseLostError, MetaError, code_and_text
from sluice.cdc_engine.keeping.acts import holder_of
from sluice.cdc_engine.states import engine_state
from sluice.cdc_engine.status_file import STATUS_FILE, engine_status

# Errors of a start that are no failures and are not recorded: the engine is still being started, must not run, or runs in another process.
NO_FAILURES = (EngineStartingError, EngineStoppedError, LeaseLostError)


def note_failed_start(directory: Path, error: BaseException) -> None:
    """Records the state and the reason of a failed start in a destination's folder. Writes nothing for the errors NO_FAILURES. Also writes
    nothing while a process holds the destination's lease, because the engine of that process writes the status.
    """
    if isinstance(error, NO_FAILURES) or _is_read(directory):
        return
    now_us = time.time_ns() // 1000
    code, reason = code_and_text(error)
    state = str(engine_state(code))
    record = {**_aged(engine_status(directory), now_us), "state": state, "reason": reason, "updated_at_us": now_us}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / STATUS_FILE, json.dumps(record, indent=1).encode())
    except OSError:
        return  # The disk is full or read-only. The tick and the log still say why the engine does not start.


def _is_read(directory: Path) -> bool:
    """Returns whether a process holds the lease of the destination. Returns False if the store of the lease does not answer."""
    try:
        return holder_of(directory) is not None
    except MetaError:
        return False


def _aged(record: dict[str, Any], now_us: int) -> dict[str, Any]:
    """Returns the status of an earlier engine without the values that only a running engine has. Increases the lag and decreases the
    retention left by the time that has passed since the status was written.
    """
    seconds = max(0.0, (now_us - record.get("updated_at_us", now_us)) / 1e6)
    hours, lag = record.get("retention_left_hours"), float(record.get("lag_seconds") or 0.0)
    left = None if hours is None else max(0.0, hours - seconds / 3600)
    stopped = record.get("stopped_tables") or []
    gone = {"waiting": "", "troubles": [], "rows_per_second": 0.0, "stream": {}, "oldest_binlog_hours": None}
    return {**record, **gone, "stopped_tables": stopped, "retention_left_hours": left, "lag_seconds": lag + seconds}
