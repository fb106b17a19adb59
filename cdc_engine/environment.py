"""A text of conf/ that names a variable of the environment, as secrets do. Asked by whoever hands such a text to the outside."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cdc_engine.errors import ConfigurationError


def filled(text: str, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """`$NAME` is that variable; any other text is itself. `setting`: its key in conf/. Raises ConfigurationError where it is not set."""
    if not text.startswith("$"):
        return text
    if text[1:] not in environment:
        raise ConfigurationError(
            f"{setting}: the environment variable {text[1:]} is not set: set it where the engine starts"
        )
    return environment[text[1:]]
