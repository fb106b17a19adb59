"""Reads status.json, in which an engine reports about itself once per second. Other processes than the engine call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"


def engine_status(directory: Path) -> dict[str, Any]:
    """Returns the status in a destination's folder, or {} if no engine has written one or it cannot be read. A status is always complete,
    because the engine renames a complete file into place.
    """
    try:
        record = json.loads((directory / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
