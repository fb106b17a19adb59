"""Replaces `$NAME` in a setting of conf/ by that environment variable, as for secrets. Called where such a setting is passed to a
library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sluice.cdc_engine.errors import ConfigurationError


def filled(text: str, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the variable's value for `$NAME`, and any other text unchanged. `setting`: its key in conf/. Raises ConfigurationError if
    it is not set.
    """
    if not text.startswith("$"):
        return text
    if text[1:] not in environment:
        raise ConfigurationError(
            f"{setting}: the environment variable {text[1:]} is not set: set it where the engine starts"
        )
    return environment[text[1:]]
