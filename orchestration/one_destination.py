"""Determines the destination of a job whose launchpad may leave it empty. Pure; used by the jobs that are not bound to one destination."""

from __future__ import annotations

from collections.abc import Iterable

from cdc_engine.errors import ConfigurationError


def one_destination(given: str, configured: Iterable[str]) -> str:
    """Returns the given name, or the only configured one. Raises ConfigurationError if the destination is ambiguous or unknown."""
    names = sorted(configured)
    if not given and len(names) == 1:
        return names[0]
    if not given:
        raise ConfigurationError(f"`destination` is empty: write one of {', '.join(names)} into the launchpad")
    if given not in names:
        raise ConfigurationError(f"there is no destination {given!r}; configured: {', '.join(names)}")
    return given
