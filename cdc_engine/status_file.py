"""Reads status.json, the report that an engine writes about itself once per second. Called by other processes than the engine.

`instance.status` writes it, and `keeping.failed_start` for an engine that cannot start.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"


def engine_status(directory: Path) -> dict[str, Any]:
    """Returns the status in a destination's folder; empty if no engine has written one or it is unreadable.

    A file is never half-written: the engine renames complete files.
    """
    try:
        record = json.loads((directory / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
