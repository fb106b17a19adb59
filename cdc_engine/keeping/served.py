"""Decides which engines this process may start: all engines, or only those of the destinations that an environment variable names. `sluice
catch-up` sets this variable.

The process still reads all files of conf/, because an engine also needs the settings of other destinations and of groups. For example, an
engine does not write a Delta table of another destination, and keeps the schemas that the consumers of a group need.
"""

from __future__ import annotations

import os

# The environment variable with the names of the destinations whose engines this process may start, separated by commas. Empty means all.
ONLY = "SLUICE_DESTINATIONS"


def why_not_served(name: str) -> str:
    """Returns why this process does not start the engine of a destination or group, or "" if it may start the engine."""
    only = {each.strip() for each in os.environ.get(ONLY, "").split(",") if each.strip()}
    if not only or name in only:
        return ""
    return f"{name} is not started: this process runs for `sluice catch-up` of {', '.join(sorted(only))} only"
