"""Which destination a job is about, when its launchpad may leave that empty. Pure; used by the jobs that are not of one destination."""

from __future__ import annotations

from collections.abc import Iterable

from cdc_engine.errors import ConfigurationError


def one_destination(given: str, configured: Iterable[str]) -> str:
    """Returns the given name, or the only one that is configured. Raises ConfigurationError where neither says which one."""
    names = sorted(configured)
    if not given and len(names) == 1:
        return names[0]
    if not given:
        raise ConfigurationError(f"`destination` is empty: write one of {', '.join(names)} into the launchpad")
    if given not in names:
        raise ConfigurationError(f"there is no destination {given!r}; configured: {', '.join(names)}")
    return given
