"""Reads the secrets that conf/ refers to, when they are needed: from an environment variable, a file, or the output of a command.

Callers call `value_of` at each connect, so a rotated secret needs no restart. This package imports only the standard library, because
engines, runs and stores use it."""

from sluice.secret_values.location import SecretLocation, SecretUnavailable, described, is_reference
from sluice.secret_values.value import filled_text, value_of

__all__ = ["SecretLocation", "SecretUnavailable", "described", "filled_text", "is_reference", "value_of"]
