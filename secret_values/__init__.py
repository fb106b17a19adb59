"""Reads the secrets to which conf/ refers: from an environment variable, from a file, or from the output of a command.

Callers call `value_of` at each connect, so a secret can be rotated without a restart. Engines, runs and stores use this package. Therefore
it imports only the standard library.
"""

from sluice.secret_values.location import SecretLocation, SecretUnavailable, described, is_reference
from sluice.secret_values.value import filled_text, value_of

__all__ = ["SecretLocation", "SecretUnavailable", "described", "filled_text", "is_reference", "value_of"]
