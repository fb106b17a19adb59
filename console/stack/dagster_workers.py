"""Gives each sensor a thread of Dagster's daemon, and each tick a thread of the code server.

Each tick waits for changes of its destination. A waiting tick occupies its thread, so with fewer threads, it would delay other sensors. If
ticks did not wait, they would have to be repeated all the time: for a hundred destinations, this would take a whole core while nothing
changes.
"""

from __future__ import annotations

from typing import Any

import yaml

from sluice.cdc_engine.limits import SENSOR_WORKERS, SENSORS

# `with_workers` provides threads for this many destinations more than conf/ has, because destinations may be added while Dagster runs.
MORE_DESTINATIONS = 2
# Threads of the code server for calls other than ticks: the webserver's requests, and the daemon's requests to start runs.
OTHER_CALLS = 8


def with_workers(settings: str, destinations: int) -> str:
    """Returns the text of a dagster.yaml whose `sensors.num_workers` is large enough for the ticks of all destinations. Returns the given
    text unchanged if its number of workers is large enough, or if it does not have `sensors.use_threads`.
    """
    configured: dict[str, Any] = yaml.safe_load(settings) or {}
    sensors = configured.get("sensors") or {}
    enough = _workers(sensors) >= SENSORS * destinations
    if enough or not sensors.get("use_threads"):
        return settings
    needed = SENSORS * (destinations + MORE_DESTINATIONS)
    return yaml.safe_dump({**configured, "sensors": {**sensors, "num_workers": needed}}, sort_keys=False)


def calls_at_once(settings: str) -> int:
    """Returns how many calls the code server must be able to answer at the same time. `settings` is the text of dagster.yaml."""
    return _workers((yaml.safe_load(settings) or {}).get("sensors") or {}) + OTHER_CALLS


def _workers(sensors: dict[str, Any]) -> int:
    return int(sensors.get("num_workers") or SENSOR_WORKERS)
