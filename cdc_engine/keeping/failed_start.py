"""Writes into status.json why an engine could not be started. `launcher` calls it; `sluice status`, `check` and the asset's check read it.

An engine writes its status once a second from its start on. One that fails to start never does, so an earlier status would stay.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cdc_engine.durable_files import replace_file
from cdc_engine.errors import EngineStartingError, EngineStoppedError, LeaseLostError, MetaError, SluiceError
from cdc_engine.keeping.acts import STATUS_FILE, held
from cdc_engine.states import engine_state

NO_FAILURES = (EngineStartingError, EngineStoppedError, LeaseLostError)  # it starts, must not run, or runs elsewhere


def note_failed_start(directory: Path, error: BaseException) -> None:
    """Keeps state and reason of a start that failed. Writes nothing while an engine has the destination: its own status counts."""
    if isinstance(error, NO_FAILURES) or _is_read(directory):
        return
    now_us = time.time_ns() // 1000
    state = engine_state(error.code) if isinstance(error, SluiceError) else engine_state("")
    reason = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
    record = {**_aged(_read(directory), now_us), "state": str(state), "reason": reason, "updated_at_us": now_us}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / STATUS_FILE, json.dumps(record, indent=1).encode())
    except OSError:
        return  # a disk that is full or read-only: the tick and the log say why the engine does not start


def _is_read(directory: Path) -> bool:
    """Whether some process has the destination. False where nobody answers who knows."""
    try:
        return held(directory) is not None
    except MetaError:
        return False


def _aged(record: dict[str, Any], now_us: int) -> dict[str, Any]:
    """The earlier status, with what grows or shrinks while nothing is read; without what only a running engine can say."""
    seconds = max(0.0, (now_us - record.get("updated_at_us", now_us)) / 1e6)
    hours, lag = record.get("runway_hours"), float(record.get("lag_seconds") or 0.0)
    left = None if hours is None else max(0.0, hours - seconds / 3600)
    stopped = record.get("stopped_tables") or []
    gone = {"waiting": "", "troubles": [], "rows_per_second": 0.0, "stream": {}}
    return {**record, **gone, "stopped_tables": stopped, "runway_hours": left, "lag_seconds": lag + seconds}


def _read(directory: Path) -> dict[str, Any]:
    try:
        record = json.loads((directory / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
