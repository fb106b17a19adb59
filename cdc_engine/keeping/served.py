"""Limits the engines that this process starts to some destinations, for `sluice catch-up`. The process still reads all of conf/, because
other destinations and groups may need the same shared files.
"""

from __future__ import annotations

import os

ONLY = "SLUICE_DESTINATIONS"  # An environment variable with names, separated by commas. Empty means all.


def why_not_served(name: str) -> str:
    """Returns a sentence that tells why the engine of a destination or group is not started here, or "" if it may be started."""
    only = {each.strip() for each in os.environ.get(ONLY, "").split(",") if each.strip()}
    if not only or name in only:
        return ""
    return f"{name} is not started: this process runs for `sluice catch-up` of {', '.join(sorted(only))} only"
