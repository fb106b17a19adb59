"""Loads handlers from installed packages. Each handler is an entry point of the group `sluice.handlers`.

An entry point is a class or function that is called with the destination's name and the options in conf/, and returns a `BatchHandler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.handlers.contract import BatchHandler
from sluice.plugins import PluginGroup, described

HANDLERS = PluginGroup("sluice.handlers", "handler")
METHODS = ("before", "after", "retry")


class Named(Protocol):
    """The settings of a handler in conf/: the name of its entry point, and its options."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def handlers_of(destination: str, wanted: Iterable[Named]) -> tuple[tuple[str, BatchHandler], ...]:
    """Returns the handlers of a destination as (name, handler), in the order of conf/. If a handler cannot be created, raises
    ConfigurationError, whose message names the handler.
    """
    return tuple((each.name, _made(each.name, destination, each.options)) for each in wanted)


def problem_of(name: str) -> str:
    """Returns "" if a handler of this name is installed, otherwise a message with the names of the installed handlers."""
    return HANDLERS.problem_of(name)


def _made(name: str, destination: str, options: Mapping[str, Any]) -> BatchHandler:
    if why := problem_of(name):
        raise ConfigurationError(f"handlers: {why}")
    entry = HANDLERS.entry(name)
    given = {key: _given(name, key, value) for key, value in options.items()}
    try:
        handler: BatchHandler = entry.load()(destination, given)
    except Exception as error:  # Catches all errors, because the handler's package is not part of Sluice.
        raise ConfigurationError(
            f"handlers: {name} ({described(entry)}) cannot be created: {type(error).__name__}: {error}; correct the "
            "handler's `options` in conf/, or the handler's package"
        ) from error
    if missing := [each for each in METHODS if not callable(getattr(handler, each, None))]:
        raise ConfigurationError(
            f"handlers: {name} ({described(entry)}) is not a handler: it lacks the methods {', '.join(missing)}; "
            "add them in the handler's package"
        )
    return handler


def _given(name: str, key: str, value: object) -> object:
    """Returns the value of an option as the handler gets it: a reference to a secret, such as `$NAME`, is replaced by the secret."""
    return filled(value, f"handlers: {name}: options {key}") if isinstance(value, str) else value
