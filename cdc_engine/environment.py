"""Reads the secrets that conf/ refers to. Callers read a secret at each new connection, so that a replaced secret takes effect. Raises
SecretUnavailableError if a secret is not where conf/ says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sluice.cdc_engine.errors import SecretUnavailableError
from sluice.secret_values import SecretLocation, SecretUnavailable, described, filled_text, value_of

__all__ = ["described", "filled", "secret_at"]


def filled(text: str, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the secret if `text` is a reference such as `$NAME`, otherwise returns `text`. `setting` is the key in conf/, for messages.
    Raises SecretUnavailableError if the secret cannot be read.
    """
    try:
        return filled_text(text, setting, environment)
    except SecretUnavailable as error:
        raise SecretUnavailableError(str(error)) from None


def secret_at(location: SecretLocation, setting: str) -> str:
    """Returns the secret at a location, or "" if there is no location. Raises SecretUnavailableError if it cannot be read."""
    try:
        return value_of(location, setting)
    except SecretUnavailable as error:
        raise SecretUnavailableError(str(error)) from None
