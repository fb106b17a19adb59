"""conf/ as it is written: the text of each file, before anybody reads sense into it. For `reading` and `cdc_engine.keeping`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cdc_engine.errors import ConfigurationError

MAIN = "sluice.yaml"
UNREADABLE = "\0"  # no YAML: what stands after it is why the file cannot be read


@dataclasses.dataclass(frozen=True)
class ConfTexts:
    """`directory`: conf/ itself; the folder above it is where relative paths start. `destinations`: each file by its destination."""

    directory: Path
    main: str
    destinations: Mapping[str, str]

    def digest(self, destination: str) -> str:
        """Of one destination's file; empty where there is none."""
        text = self.destinations.get(destination)
        return "" if text is None else hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def file_of(destination: str) -> str:
    """The file of a destination, as sentences name it."""
    return f"destinations/{destination}.yaml"


def read_texts(directory: Path) -> ConfTexts:
    """Raises ConfigurationError where there is no such folder. A file that cannot be read has a text that is no YAML."""
    if not directory.is_dir():
        raise ConfigurationError(
            f"there is no folder {directory}; start `sluice` in the folder that holds conf/, or set SLUICE_CONF to it"
        )
    main = directory / MAIN
    return ConfTexts(
        directory,
        _text(main) if main.exists() else "",
        {path.stem: _text(path) for path in sorted((directory / "destinations").glob("*.yaml"))},
    )


def mapping_of(file: str, text: str, problems: list[str]) -> dict[str, Any]:
    """The keys and values of a file; none, and one problem more, where it has no such thing."""
    if text.startswith(UNREADABLE):
        problems.append(f"{file} cannot be read: {text[1:]}")
        return {}
    try:
        record = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        problems.append(f"{file} cannot be read: {error}")
        return {}
    if not isinstance(record, dict):
        problems.append(f"{file} is not a mapping of keys to values")
        return {}
    return record


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        return f"{UNREADABLE}{error}"
