"""Reads the texts of conf/ before they are parsed. Used by `reading` and `cdc_engine.keeping`."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sluice.cdc_engine.errors import ConfigurationError

MAIN = "sluice.yaml"
# The text of an unreadable file begins with this character, which is not valid YAML; the reason follows.
UNREADABLE = "\0"
_QUOTED = re.compile(r"'(?!<)[^']{2,}'")  # The parser's errors quote parts of the file like this.


@dataclasses.dataclass(frozen=True)
class ConfFiles:
    """The texts of conf/. `directory`: conf/ itself; relative paths start in its parent. `destinations`: destination → text."""

    directory: Path
    main: str
    destinations: Mapping[str, str]

    def digest(self, destination: str) -> str:
        """Returns a digest of one destination's file, or an empty text if there is none."""
        text = self.destinations.get(destination)
        return "" if text is None else hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def file_of(destination: str) -> str:
    """Returns the name of a destination's file for messages."""
    return f"destinations/{destination}.yaml"


def read_conf_files(directory: Path) -> ConfFiles:
    """Reads the files of conf/. Raises ConfigurationError if there is no such folder. The text of an unreadable file
    begins with UNREADABLE.
    """
    if not directory.is_dir():
        raise ConfigurationError(
            f"there is no folder {directory}; start `sluice` in the folder that holds conf/, or set SLUICE_CONF to it"
        )
    main = directory / MAIN
    return ConfFiles(
        directory,
        _text(main) if main.exists() else "",
        {path.stem: _text(path) for path in sorted((directory / "destinations").glob("*.yaml"))},
    )


def mapping_of(file: str, text: str, problems: list[str]) -> dict[str, Any]:
    """Parses a file into its keys and values. If that fails, appends to `problems` and returns an empty mapping."""
    if text.startswith(UNREADABLE):
        problems.append(f"{file} cannot be read: {text[1:]}")
        return {}
    try:
        record = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        problems.append(f"{file} cannot be read: {_of_yaml(error)}")
        return {}
    if not isinstance(record, dict):
        problems.append(f"{file} is not a mapping of keys to values")
        return {}
    return record


def _of_yaml(error: yaml.YAMLError) -> str:
    """Returns what is wrong in a file and where, without the file's text, which may contain a secret."""
    what = _QUOTED.sub("…", str(getattr(error, "problem", "") or "it is not YAML"))
    mark = getattr(error, "problem_mark", None)
    return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else what


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        return f"{UNREADABLE}{error}"
