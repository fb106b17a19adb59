"""The engines of this process, by destination. The sensor's code server calls it; importing it starts nothing.

Kept in a module that Dagster does not build again, so that definitions may be reloaded without a second engine. Across processes the
lease decides.
"""

from __future__ import annotations

import atexit
import threading

from cdc_engine.config import load_config
from cdc_engine.errors import ConfigurationError
from cdc_engine.instance.engine import Engine

_engines: dict[str, Engine] = {}
_lock = threading.Lock()


def get_or_start(destination: str) -> Engine:
    """The running engine; started if there is none. Raises LeaseLostError when another process has the destination, else a SluiceError."""
    with _lock:
        if destination not in _engines:
            config = load_config()
            if destination not in config.destinations:
                raise ConfigurationError(f"there is no destination {destination}: describe it in conf/destinations")
            engine = Engine(config, destination)
            engine.start()
            _engines[destination] = engine
        return _engines[destination]


def stop_all() -> None:
    """Ends every engine of this process; called at its exit."""
    with _lock:
        while _engines:
            _engines.popitem()[1].stop()


atexit.register(stop_all)
