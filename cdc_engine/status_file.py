"""Reads status.json, in which an engine reports about itself once per second. Processes other than the engine call this module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"


def engine_status(directory: Path) -> dict[str, Any]:
    """Returns the status that the engine wrote into a destination's folder. Returns {} if there is no status file or it cannot be read. A
    status is never partly written, because the engine renames a complete file into place.
    """
    try:
        record = json.loads((directory / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
