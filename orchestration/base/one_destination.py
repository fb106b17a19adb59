"""Lets a job that serves all destinations run for one of them: adds the field `destination` to the job's launchpad, and
checks its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, cast

import dagster as dg
from pydantic import Field, create_model

from sluice.cdc_engine.errors import ConfigurationError

Config = TypeVar("Config", bound=dg.Config)
DESCRIPTION = "A file of conf/destinations."


def with_destination(base: type[Config], configured: Iterable[str]) -> type[Config]:
    """Returns a subclass of a job's config with the field `destination`, which accepts only configured names.

    If there is one destination, it is the default. If there are several, the field has no default, so that nobody starts a run for the
    wrong one: the launchpad reports that `destination` is missing, and offers the names.
    """
    names = tuple(sorted(configured))
    field: Any = Field(default=names[0], description=DESCRIPTION) if len(names) == 1 else Field(description=DESCRIPTION)
    kind: Any = Literal[names]
    return cast("type[Config]", create_model(base.__name__, __base__=base, destination=(kind, field)))


def one_destination(given: str, configured: Iterable[str]) -> str:
    """Returns `given`, the name of a destination. If `given` is empty and only one destination is configured, returns the name of this
    destination. Raises ConfigurationError if `given` is unknown, or is empty although several destinations are configured.
    """
    names = sorted(configured)
    if not given and len(names) == 1:
        return names[0]
    if not given:
        raise ConfigurationError(f"`destination` is empty: write one of {', '.join(names)} into the launchpad")
    if given not in names:
        raise ConfigurationError(
            f"the destination {given!r} does not exist; configured destinations: {', '.join(names)}"
        )
    return given
