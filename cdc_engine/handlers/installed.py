"""Loads handlers of installed packages: entry points of the group `sluice.handlers`. Used by the engine's start and by `check`.

An entry point is a class or a function that takes the destination's name and the options from conf/, and returns a `BatchHandler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.handlers.contract import BatchHandler

GROUP = "sluice.handlers"
METHODS = ("before", "after", "retry")


class Named(Protocol):
    """A handler of conf/ and its settings."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def handlers_of(destination: str, wanted: Iterable[Named]) -> tuple[tuple[str, BatchHandler], ...]:
    """Returns the handlers by name, in the order of conf/. Raises ConfigurationError with the name of a handler that cannot be created."""
    return tuple((each.name, _made(each.name, destination, each.options)) for each in wanted)


def problem_of(name: str) -> str:
    """Returns why a name in conf/ is not a handler's, with the existing names; empty if it is one."""
    found = _named(name)
    if not found:
        names = sorted({each.name for each in entry_points(group=GROUP)})
        return (
            f"there is no handler {name!r}: installed are {', '.join(names) or 'none'} (entry points of the group {GROUP}, "
            "in the environment that Sluice runs in)"
        )
    if len({each.value for each in found}) > 1:
        brought = ", ".join(sorted(f"{each.value} of {_package(each)}" for each in found))
        return f"the handler {name!r} is installed more than once: {brought}; remove all of these packages except one"
    return ""


def _named(name: str) -> list[EntryPoint]:
    return list(entry_points(group=GROUP, name=name))


def _made(name: str, destination: str, options: Mapping[str, Any]) -> BatchHandler:
    if why := problem_of(name):
        raise ConfigurationError(f"handlers: {why}")
    entry = _named(name)[0]
    given = {key: _given(name, key, value) for key, value in options.items()}
    try:
        handler: BatchHandler = entry.load()(destination, given)
    except Exception as error:  # The handler's package is not part of Sluice and may raise any error.
        raise ConfigurationError(
            f"handlers: {name} ({entry.value} of {_package(entry)}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    if missing := [each for each in METHODS if not callable(getattr(handler, each, None))]:
        raise ConfigurationError(
            f"handlers: {name} ({entry.value} of {_package(entry)}) is not a handler: it lacks the methods {', '.join(missing)}"
        )
    return handler


def _given(name: str, key: str, value: object) -> object:
    """Returns the value of an option that the handler gets. Only texts are changed."""
    return filled(value, f"handlers: {name}: options {key}") if isinstance(value, str) else value


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"
