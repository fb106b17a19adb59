"""The engines of this process, by destination. The sensor's code server calls it; importing it starts nothing.

Kept in a module that Dagster does not build again, so that definitions may be reloaded without a second engine. Across processes the
lease decides: an engine that lost it is put away, and the next call waits for the lease as any other engine does.

A start reads the schema from the source and may compile kernels, so it has a thread of its own: a caller waits for a moment only. Each
destination has its own lock: a source that does not answer holds up no other.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cdc_engine.errors import (
    ConfigurationError,
    EngineStartingError,
    EngineStoppedError,
    LeaseLostError,
    NotStartedError,
    SluiceError,
)
from cdc_engine.keeping import orders
from cdc_engine.keeping.acts import held
from cdc_engine.keeping.failed_start import note_failed_start
from cdc_engine.keeping.in_use import conf_in_use
from cdc_engine.limits import CONNECT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from cdc_engine.instance.consumers.consumers import Consumers
    from cdc_engine.instance.consumers.group.engine import GroupEngine
    from cdc_engine.instance.engine import Engine
    from cdc_engine.instance.status import EngineStatus
    from cdc_engine.operation.operator import Operator

TAKE_UP_SECONDS = 15.0  # for the first change to come and its batch to be staged; what takes longer is met by the ticks
LEFT_SECONDS = 30.0  # for which an engine that an operator released leaves its destination to other hosts
# What a tick spends on a start before it says STARTING: a start with nothing to compile is done by then.
START_WAIT_SECONDS = 0.8


class Startable(Protocol):
    """What a place keeps."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def holds_lease(self) -> bool: ...


Kept = TypeVar("Kept", bound=Startable)
Told = TypeVar("Told")


class EngineSlot(Generic[Kept]):
    """Room for one destination's engine: none, being started, or running. `make` gives a new one, not started yet."""

    def __init__(self, name: str, make: Callable[[], Kept]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._engine: Kept | None = None
        self._start: concurrent.futures.Future[Kept] | None = None
        self._closed = False

    @property
    def engine(self) -> Kept | None:
        """The running one."""
        return self._engine

    @property
    def occupied(self) -> bool:
        """Whether an engine is here, or is being started."""
        return self._engine is not None or self._start is not None

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

    def told(self, say: Callable[[Kept], Told]) -> Told | None:
        """What the engine says; None where none runs."""
        engine = self._engine
        try:
            return say(engine) if engine is not None else None
        except SluiceError:  # it ends at this moment
            return None

    def stop(self) -> None:
        """Ends the engine; one that is being started is waited for as long as a connection may take."""
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
        except BaseException as error:  # it is raised where the engine is asked for
            start.set_exception(error)

    def _started(self) -> Kept:
        if self._engine is not None:  # it lost its lease
            self._engine.stop()
            self._engine = None
        engine = self._make()
        engine.start()
        with self._lock:
            closed = self._closed
            self._engine = None if closed else engine
        if closed:  # whoever ended it had waited long enough
            engine.stop()
            raise EngineStoppedError(f"the engine of {self._name} was stopped while it started")
        return engine


_places: dict[str, EngineSlot[Engine]] = {}
_groups: dict[str, EngineSlot[GroupEngine]] = {}
_made: dict[str, str] = {}  # destination → digest of the file that its newest engine was made with
_left: dict[str, float] = {}  # destination → until when it is left to other hosts, of the monotonic clock
_lock = threading.Lock()  # of what is below and the dictionary, never held while something is waited for
_operator: Operator | None = None


def get_or_start(destination: str) -> Engine:
    """The running engine; started if there is none.

    Raises LeaseLostError while another process has the destination, EngineStartingError when the start needs longer than a moment,
    EngineStoppedError where an operator stopped it, else a SluiceError.
    """
    left = _left.get(destination, 0.0) - time.monotonic()
    if left > 0:
        raise LeaseLostError(
            f"{destination} was released here by an operator and is left to other hosts; this one may have it again in {left:.0f} s"
        )
    with _lock:
        place = _places.setdefault(destination, EngineSlot(destination, functools.partial(_make, destination)))
    try:
        return place.get(START_WAIT_SECONDS)
    except (EngineStartingError, EngineStoppedError, LeaseLostError):
        raise
    except SluiceError as error:
        if _operator is not None:
            _operator.tell_failed(destination, error)
        _note_failed(destination, error)
        raise
    except Exception as error:  # a defect: it has the state ERROR
        _note_failed(destination, error)
        raise


def _note_failed(name: str, error: Exception) -> None:
    """Keeps why the engine of a destination or a group could not be started, for `sluice status` and `check`."""
    config = conf_in_use().config
    if name in config.destinations or name in config.groups:
        note_failed_start(config.destination_dir(name), error)


def kept() -> dict[str, str]:
    """Destination → digest of the file with which its engine here was made; empty while that begins."""
    with _lock:
        places: dict[str, EngineSlot[Engine] | EngineSlot[GroupEngine]] = {**_places, **_groups}
        return {name: _made.get(name, "") for name, place in places.items() if place.occupied}


def ended(destination: str) -> bool:
    """Whether its engine here has ended by itself, for another source is to be read or its lease is lost, and no other has followed yet."""
    with _lock:
        place = _places.get(destination)
    engine = place.engine if place is not None else None
    return engine is not None and engine.ended


def take_up(destination: str) -> None:
    """Starts the engine, and has its first batch staged, if one waits: nobody waits for that. Raises as `get_or_start` does."""
    if destination in conf_in_use().config.groups:
        _take_up_group(destination)
        return
    while True:
        try:
            engine = get_or_start(destination)
            break
        except EngineStartingError:
            continue  # the call itself waits for a moment
    threading.Thread(target=_stage_first, args=(engine,), name=f"take-up-{destination}", daemon=True).start()


def _stage_first(engine: Engine) -> None:
    with contextlib.suppress(SluiceError):
        engine.hand_out(TAKE_UP_SECONDS)


def put_away(destination: str) -> None:
    """Ends the engine of a destination, if there is one; its lease is free when this returns. The next call starts another."""
    _left.pop(destination, None)
    _end(destination)


def _end(destination: str) -> None:
    with _lock:
        places = [kept.pop(destination, None) for kept in (_groups, _places)]
        _made.pop(destination, None)
    for place in places:
        if place is not None:
            place.stop()


def give_up(destination: str) -> None:
    """As `put_away`; and this process leaves the destination to other hosts for a while.

    A group goes where its members go, so it begins anew.
    """
    if destination in conf_in_use().config.groups:
        put_away(destination)
        _take_up_group(destination)
        return
    _left[destination] = time.monotonic() + LEFT_SECONDS
    _end(destination)


def stop_all() -> None:
    """Ends every engine of this process, those of groups first; called at its exit."""
    while True:
        with _lock:
            if not _places and not _groups:
                return
            _, place = _groups.popitem() if _groups else _places.popitem()
        place.stop()


def _make(destination: str) -> Engine:
    from cdc_engine.instance.engine import Engine  # noqa: PLC0415  with it come the kernels, which take a second

    config = _may_run(destination)
    if destination not in config.destinations:
        raise ConfigurationError(f"there is no destination {destination}: describe it in conf/destinations")
    return Engine(config, destination, on_status=_told(config, destination))


def _may_run(name: str) -> SluiceConfig:
    """The conf/ in use, with which an engine is made now. Raises EngineStoppedError where an operator stopped it."""
    in_use = conf_in_use()
    config = in_use.config
    if (order := orders.stopped(config.destination_dir(name))) is not None:
        raise EngineStoppedError(
            f"{name} was stopped by {order.by} at {order.when()}; `sluice instance start {name}` starts it"
        )
    _made[name] = in_use.digest(name)
    return config


def _take_up_group(name: str) -> None:
    """Its engine waits for those of its members by itself. Raises SluiceError."""
    with _lock:
        place = _groups.setdefault(name, EngineSlot(name, functools.partial(_make_group, name)))
    while True:
        try:
            place.get(START_WAIT_SECONDS)
        except EngineStartingError:
            continue  # the call itself waits for a moment
        except Exception as error:
            _note_failed(name, error)
            raise
        else:
            return


def _make_group(name: str) -> GroupEngine:
    from cdc_engine.instance.consumers.group.engine import GroupEngine  # noqa: PLC0415  as above

    config = _may_run(name)
    return GroupEngine(config, name, functools.partial(_consumers_here, config), on_status=_told(config, name))


def _consumers_here(config: SluiceConfig, member: str) -> Consumers:
    """Of the engine of a group's member in this process. Raises NotStartedError, saying where it runs instead."""
    with _lock:
        place = _places.get(member)
    engine = place.engine if place is not None else None
    if engine is not None:
        return engine.consumers
    holder = held(config.destination_dir(member))
    if holder is None:
        raise NotStartedError(f"the engine of {member} does not run; `sluice status` says why")
    raise NotStartedError(
        f"process {holder.pid} on {holder.host} reads {member}, and a group is served where all its members are read: "
        f"`sluice instance release {member}` there"
    )


def _told(config: SluiceConfig, destination: str) -> Callable[[EngineStatus], None]:
    """What hears the engine: alarms, and the endpoint for Prometheus beside it. Both are this process's own."""
    global _operator  # noqa: PLW0603  one a process, as its engines are
    from cdc_engine.operation.endpoint import keep_served  # noqa: PLC0415  as above
    from cdc_engine.operation.operator import Operator  # noqa: PLC0415

    with _lock:
        if _operator is None:
            _operator = Operator(config.alarms)
        keep_served(config.metrics.host, config.metrics.port, _statuses)
    return functools.partial(_operator.see, destination)


def _statuses() -> dict[str, EngineStatus | None]:
    with _lock:
        places: dict[str, EngineSlot[Engine] | EngineSlot[GroupEngine]] = {**_places, **_groups}
    return {name: place.told(lambda engine: engine.status()) for name, place in places.items()}


atexit.register(stop_all)
