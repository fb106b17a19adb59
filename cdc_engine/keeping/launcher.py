"""Starts, returns and stops the engines of this process, by destination. Importing this module starts no engine.

Dagster does not reload this module, so a reload of definitions starts no second engine. If several processes may run an engine, the lease
decides which of them does. An engine that has lost the lease is stopped, and the next `take_up` or `get_or_start` starts another engine if
the lease is free.

The start of an engine reads the schema from the source, and may compile numba functions. So it runs in a separate thread, and callers wait
only for a short time. Each destination has its own lock, so a source that does not answer does not delay other destinations.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from sluice.cdc_engine.errors import (
    ConfigurationError,
    EngineStartingError,
    EngineStoppedError,
    LeaseLostError,
    NotStartedError,
    SluiceError,
)
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.keeping.acts import holder_of
from sluice.cdc_engine.keeping.failed_start import note_failed_start
from sluice.cdc_engine.keeping.in_use import conf_in_use
from sluice.cdc_engine.keeping.served import why_not_served
from sluice.cdc_engine.limits import CONNECT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.instance.consumers.consumers import Consumers
    from sluice.cdc_engine.instance.engine.engine import Engine
    from sluice.cdc_engine.instance.engine.lifecycle import Lifecycle
    from sluice.cdc_engine.instance.status import EngineStatus
    from sluice.cdc_engine.operation.operator import Operator

# How long a newly started engine waits for changes, to stage its first batch before a tick requests one.
TAKE_UP_SECONDS = 15.0
# After an operator has released a destination, this host does not start its engine for this long, so that another host can.
LEFT_SECONDS = 30.0
# How long a tick waits for the start of an engine before it reports STARTING. A start takes less time if nothing has to be compiled.
START_WAIT_SECONDS = 0.8


class Startable(Protocol):
    """The methods of an engine that an `EngineSlot` calls."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def holds_lease(self) -> bool: ...


Kept = TypeVar("Kept", bound=Startable)
Reporter = TypeVar("Reporter")


class EngineSlot(Generic[Kept]):
    """Holds the engine of one destination or group. The slot has no engine, an engine that is being started, or a running engine. `make`
    returns a new engine, which is not started yet.
    """

    def __init__(self, name: str, make: Callable[[], Kept]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._engine: Kept | None = None
        self._start: concurrent.futures.Future[Kept] | None = None
        self._closed = False

    @property
    def engine(self) -> Kept | None:
        """The running engine, or None."""
        return self._engine

    @property
    def occupied(self) -> bool:
        """Whether an engine is running or being started."""
        return self._engine is not None or self._start is not None

    def get(self, wait_seconds: float) -> Kept:
        """Returns the running engine, and starts one if there is none. Raises EngineStartingError if the start takes longer than
        `wait_seconds`. If the start failed, raises the error of the start once. The next call then starts another engine.
        """
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

    def reported(self, say: Callable[[Kept], Reporter]) -> Reporter | None:
        """Returns what `say` returns for the running engine, or None if no engine is running."""
        engine = self._engine
        try:
            return say(engine) if engine is not None else None
        except SluiceError:  # Counts as no engine, because the engine is ending.
            return None

    def stop(self) -> None:
        """Stops the engine. If an engine is being started, first waits for the end of the start, up to CONNECT_TIMEOUT_SECONDS. If the
        start takes longer, the thread that starts the engine stops it after the start.
        """
        with self._lock:
            start = self._start
        if start is not None:
            concurrent.futures.wait([start], CONNECT_TIMEOUT_SECONDS)
        with self._lock:
            self._closed = True
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
        except BaseException as error:  # Passes every error to the caller of `get`, which raises it.
            start.set_exception(error)

    def _started(self) -> Kept:
        if self._engine is not None:  # Stops the previous engine, which has lost its lease.
            self._engine.stop()
            self._engine = None
        engine = self._make()
        engine.start()
        with self._lock:
            closed = self._closed
            self._engine = None if closed else engine
        if closed:  # Stops the new engine, because `stop` was called during the start, and found no engine to stop.
            engine.stop()
            raise EngineStoppedError(f"the engine of {self._name} was stopped while it started")
        return engine


_slots: dict[str, EngineSlot[Lifecycle[Any, Any]]] = {}
_made: dict[str, str] = {}  # Destination → digest of the settings from which its newest engine was made.
# Destination → monotonic time until which this host does not start its engine, because an operator released the destination.
_left: dict[str, float] = {}
_lock = threading.Lock()  # Protects the dictionaries and `_operator`. No thread waits while it holds this lock.
_operator: Operator | None = None


def get_or_start(destination: str) -> Engine:
    """Returns the running engine of a destination, and starts one if there is none.

    Raises LeaseLostError while another process runs the destination, EngineStartingError if the start takes longer than
    START_WAIT_SECONDS, EngineStoppedError if an operator has stopped the engine, and any other SluiceError with which a start fails.
    """
    return cast("Engine", _started(destination))


def _started(name: str) -> Lifecycle[Any, Any]:
    """Returns the running engine of a destination or group, and starts one if there is none. If the start fails, records why, and raises
    the error.
    """
    if why := why_not_served(name):
        raise EngineStoppedError(why)
    left = _left.get(name, 0.0) - time.monotonic()
    if left > 0:
        raise LeaseLostError(
            f"an operator released {name} on this host, so that another host takes {name} over; if no other host does, "
            f"this host starts the engine again in {left:.0f} s"
        )
    with _lock:
        slot = _slots.setdefault(name, EngineSlot(name, functools.partial(_make, name)))
    try:
        return slot.get(START_WAIT_SECONDS)
    except (EngineStartingError, EngineStoppedError, LeaseLostError):
        raise
    # Catches all errors. An error that is not a SluiceError, for example a full disk or a defect, gives the engine the state ERROR.
    except Exception as error:
        if _operator is not None:
            _operator.report_failed(name, error)
        _note_failed(name, error)
        raise


def _note_failed(name: str, error: Exception) -> None:
    """Records why the engine of a destination or group could not be started, for `sluice status` and `sluice check`."""
    config = conf_in_use().config
    if name in config.streams:
        note_failed_start(config.destination_dir(name), error)


def kept() -> dict[str, str]:
    """Returns, by destination, the digest of the settings with which each engine of this process was made. The digest is "" until the
    settings are read. `keeper` restarts an engine whose digest differs from that of the current settings.
    """
    with _lock:
        return {name: _made.get(name, "") for name, slot in _slots.items() if slot.occupied}


def ended(destination: str) -> bool:
    """Returns whether a destination's engine in this process has ended by itself and was not replaced yet. An engine ends when another
    source must be read, or when it loses its lease.
    """
    with _lock:
        slot = _slots.get(destination)
    engine = slot.engine if slot is not None else None
    return engine is not None and engine.ended


def take_up(name: str) -> None:
    """Starts the engine of a destination or group, and waits until it runs. In the background, the engine stages its first batch if changes
    arrive within TAKE_UP_SECONDS. Raises LeaseLostError, EngineStoppedError, or another SluiceError if the start fails.
    """
    while True:
        try:
            engine = _started(name)
            break
        except EngineStartingError:
            continue  # No further wait is needed, because `_started` waits for START_WAIT_SECONDS.
    threading.Thread(target=engine.stage_first, args=(TAKE_UP_SECONDS,), name=f"take-up-{name}", daemon=True).start()


def put_away(destination: str) -> None:
    """Stops the engine of a destination, if there is one. When the call returns, the engine's lease is free. The next `take_up` or
    `get_or_start` starts another engine.
    """
    _left.pop(destination, None)
    _end(destination)


def _end(destination: str) -> None:
    with _lock:
        slot = _slots.pop(destination, None)
        _made.pop(destination, None)
    if slot is not None:
        slot.stop()


def give_up(destination: str) -> None:
    """Stops the engine of a destination or group that an operator has released. The engine of a destination does not start again for
    LEFT_SECONDS, so that another host takes the destination over. `keeper` starts the engine of a group again at once, because a group must
    run on the host of its members.
    """
    if destination in conf_in_use().config.destinations:
        _left[destination] = time.monotonic() + LEFT_SECONDS
    _end(destination)


def stop_all() -> None:
    """Stops all engines of this process, the engines of groups first. Called when the process exits."""
    while True:
        with _lock:
            name = min(_slots, key=_stops_later, default=None)
        if name is None:
            return
        _end(name)


def _stops_later(name: str) -> bool:
    engine = _slots[name].engine
    return engine is None or not engine.stops_first


def _make(name: str) -> Lifecycle[Any, Any]:
    """Returns a new engine of a destination or group. Raises EngineStoppedError if an operator has stopped the engine."""
    from sluice.cdc_engine.instance.engine.engine import Engine  # noqa: PLC0415  imports the kernels, which takes a second
    from sluice.cdc_engine.instance.engine.group_engine import GroupEngine  # noqa: PLC0415  as above

    in_use = conf_in_use()
    config = in_use.config
    if (order := orders.stopped(config.destination_dir(name))) is not None:
        raise EngineStoppedError(
            f"{name} was stopped by {order.by} at {order.when()}; `sluice instance start {name}` starts it"
        )
    if name not in config.streams:
        raise ConfigurationError(f"the destination {name} does not exist: describe it in conf/destinations")
    _made[name] = in_use.digest(name)
    if name in config.groups:
        return GroupEngine(config, name, functools.partial(_consumers_here, config), on_status=_reporter(config, name))
    return Engine(config, name, on_status=_reporter(config, name))


def _consumers_here(config: SluiceConfig, member: str) -> Consumers:
    """Returns the consumers of a member's engine in this process. If the engine does not run in this process, raises NotStartedError, whose
    message says where the engine runs.
    """
    with _lock:
        slot = _slots.get(member)
    engine = slot.engine if slot is not None else None
    if engine is not None:
        consumers: Consumers = engine.consumers
        return consumers
    holder = holder_of(config.destination_dir(member))
    if holder is None:
        raise NotStartedError(f"the engine of {member} does not run; `sluice status` shows why")
    raise NotStartedError(
        f"process {holder.pid} on {holder.host} reads {member}, and a group must run in the process that "
        f"reads all its members: run `sluice instance release {member}` on that host"
    )


def _reporter(config: SluiceConfig, destination: str) -> Callable[[EngineStatus], None]:
    """Returns the callback that gets the status of an engine and reports alarms. Also starts the Prometheus endpoint if it does not run
    yet, because a process has one for all its engines.
    """
    global _operator  # noqa: PLW0603  one operator for all engines of the process
    from sluice.cdc_engine.operation.endpoint import keep_served  # noqa: PLC0415  as above
    from sluice.cdc_engine.operation.operator import Operator  # noqa: PLC0415

    with _lock:
        if _operator is None:
            _operator = Operator(config.alarms)
        keep_served(config.metrics.host, config.metrics.port, _statuses)
    return functools.partial(_operator.see, destination)


def _statuses() -> dict[str, EngineStatus | None]:
    with _lock:
        slots = dict(_slots)
    return {name: slot.reported(lambda engine: engine.status()) for name, slot in slots.items()}


atexit.register(stop_all)
