"""The engines of this process, by destination. The sensor's code server calls it; importing it starts nothing.

Kept in a module that Dagster does not build again, so that definitions may be reloaded without a second engine. Across processes the
lease decides: an engine that lost it is put away, and the next call waits for the lease as any other engine does.

A start reads the schema from the source and may compile kernels, so it has a thread of its own: a caller waits for a moment only. Each
destination has its own lock: a source that does not answer holds up no other.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cdc_engine.config import load_config
from cdc_engine.errors import ConfigurationError, EngineStartingError
from cdc_engine.limits import CONNECT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from cdc_engine.instance.engine import Engine

START_WAIT_SECONDS = (
    0.8  # what a tick spends on a start before it says STARTING: a start with nothing to compile is done by then
)


class Startable(Protocol):
    """What a place keeps."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def holds_lease(self) -> bool: ...


Kept = TypeVar("Kept", bound=Startable)


class EngineSlot(Generic[Kept]):
    """Room for one destination's engine: none, being started, or running. `make` gives a new one, not started yet."""

    def __init__(self, name: str, make: Callable[[], Kept]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._engine: Kept | None = None
        self._start: concurrent.futures.Future[Kept] | None = None

    def get(self, wait_seconds: float) -> Kept:
        """The running engine. Raises EngineStartingError while it starts, once what its start raised; the next call then begins another."""
        with self._lock:
            if self._engine is not None and self._engine.holds_lease:
                return self._engine
            start = self._start = self._start or self._begin()
        concurrent.futures.wait([start], wait_seconds)
        with self._lock:
            if not start.done():
                raise EngineStartingError(f"the engine of {self._name} is being started")
            if self._start is start:
                self._start = None
        return start.result()

    def stop(self) -> None:
        """Ends the engine; one that is being started is waited for as long as a connection may take."""
        with self._lock:
            start = self._start
        if start is not None:
            concurrent.futures.wait([start], CONNECT_TIMEOUT_SECONDS)
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def _begin(self) -> concurrent.futures.Future[Kept]:
        start: concurrent.futures.Future[Kept] = concurrent.futures.Future()
        threading.Thread(target=self._run, args=(start,), name=f"start-{self._name}", daemon=True).start()
        return start

    def _run(self, start: concurrent.futures.Future[Kept]) -> None:
        try:
            start.set_result(self._started())
        except BaseException as error:  # it is raised where the engine is asked for
            start.set_exception(error)

    def _started(self) -> Kept:
        if self._engine is not None:  # it lost its lease
            self._engine.stop()
            self._engine = None
        engine = self._make()
        engine.start()
        with self._lock:
            self._engine = engine
        return engine


_places: dict[str, EngineSlot[Engine]] = {}
_lock = threading.Lock()  # of the dictionary, never held while something is waited for


def get_or_start(destination: str) -> Engine:
    """The running engine; started if there is none.

    Raises LeaseLostError while another process has the destination, EngineStartingError when the start needs longer than a moment, else
    a SluiceError.
    """
    with _lock:
        place = _places.setdefault(destination, EngineSlot(destination, functools.partial(_make, destination)))
    return place.get(START_WAIT_SECONDS)


def stop_all() -> None:
    """Ends every engine of this process; called at its exit."""
    while True:
        with _lock:
            if not _places:
                return
            _, place = _places.popitem()
        place.stop()


def _make(destination: str) -> Engine:
    from cdc_engine.instance.engine import Engine  # noqa: PLC0415  with it come the kernels, which take a second

    config = load_config()
    if destination not in config.destinations:
        raise ConfigurationError(f"there is no destination {destination}: describe it in conf/destinations")
    return Engine(config, destination)


atexit.register(stop_all)
