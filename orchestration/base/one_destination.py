"""Lets jobs that serve all destinations ask for one: adds the field to the launchpad, and finds which destination a run is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, cast

import dagster as dg
from pydantic import Field, create_model

from sluice.cdc_engine.errors import ConfigurationError

Config = TypeVar("Config", bound=dg.Config)
DESCRIPTION = "A file of conf/destinations."


def with_destination(base: type[Config], configured: Iterable[str]) -> type[Config]:
    """Returns the config of a job with a field `destination` that accepts only configured names.

    The only one is its default. Where there are several the launchpad opens with the sentence that `destination` is missing, and offers
    their names: a run without one would be for nobody knows which.
    """
    names = tuple(sorted(configured))
    field: Any = Field(default=names[0], description=DESCRIPTION) if len(names) == 1 else Field(description=DESCRIPTION)
    kind: Any = Literal[names]
    return cast("type[Config]", create_model(base.__name__, __base__=base, destination=(kind, field)))


def one_destination(given: str, configured: Iterable[str]) -> str:
    """Returns the given name, or the only one that is configured. Raises ConfigurationError if neither names one."""
    names = sorted(configured)
    if not given and len(names) == 1:
        return names[0]
    if not given:
        raise ConfigurationError(f"`destination` is empty: write one of {', '.join(names)} into the launchpad")
    if given not in names:
        raise ConfigurationError(f"there is no destination {given!r}; configured: {', '.join(names)}")
    return given
