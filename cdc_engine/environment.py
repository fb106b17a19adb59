"""Reads the secrets that conf/ names, and turns problems with their locations into Sluice's errors. Called at each connect."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sluice.cdc_engine.errors import SecretUnavailableError
from sluice.secret_values import SecretLocation, SecretUnavailable, described, filled_text, value_of

__all__ = ["described", "filled", "secret_at"]


def filled(text: str, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the secret for a reference such as `$NAME`, and any other text unchanged. `setting`: its key in conf/. Raises
    SecretUnavailableError.
    """
    try:
        return filled_text(text, setting, environment)
    except SecretUnavailable as error:
        raise SecretUnavailableError(str(error)) from None


def secret_at(location: SecretLocation, setting: str) -> str:
    """Returns the secret at a location; empty if there is no location. Raises SecretUnavailableError."""
    try:
        return value_of(location, setting)
    except SecretUnavailable as error:
        raise SecretUnavailableError(str(error)) from None
