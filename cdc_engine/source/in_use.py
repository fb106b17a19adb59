"""Which of a destination's sources is read: `source.json` beside its other files. Whoever reads conf/ goes by it (`config`).

A running engine that finds another address there than its own gives its place to one that reads that (`instance.failover`). The file
decides nothing about continuity: wherever an engine connects, it proves that its stream goes on there.
"""

from __future__ import annotations

import json
from pathlib import Path

from cdc_engine.durable_files import keep_file
from cdc_engine.errors import ConfigurationError

SOURCE_FILE = "source.json"


def address_in_use(directory: Path) -> str:
    """host:port; empty where nobody has chosen, which means the first. Raises ConfigurationError where the file cannot be understood."""
    path = directory / SOURCE_FILE
    try:
        return str(json.loads(path.read_text())["address"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}); remove it to read the first source of the list"
        ) from error


def use(directory: Path, address: str, why: str) -> None:
    """From now on, and after every start, this one is read. Raises MetaError."""
    keep_file(directory / SOURCE_FILE, json.dumps({"address": address, "why": why}))
