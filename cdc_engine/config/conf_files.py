"""Reads the texts of the files of conf/, which `reading` then parses."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sluice.cdc_engine.config.remote.record import RemoteRecord, read_record
from sluice.cdc_engine.config.remote.settings import REMOTE, RemoteConfig
from sluice.cdc_engine.errors import ConfFilesError, ConfigurationError

MAIN = "sluice.yaml"
# Marks a file that could not be read: the text in `ConfFiles` is then this character and the reason. YAML does not allow this character.
UNREADABLE = "\0"
_QUOTED = re.compile(r"'(?!<)[^']{2,}'")  # Matches the part of a file that an error message of PyYAML quotes.


class ConfLoader(yaml.SafeLoader):
    """Parses a file of conf/. Every error is a YAMLError, also for a value such as 2026-02-30, for which PyYAML raises ValueError. Refuses
    a value that contains itself, which no setting can have. If a mapping has a key twice, the last value applies, and `repeated` has the
    position of the second key.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[yaml.Mark] = []
        self._around: list[yaml.Node | None] = []  # The nodes that contain the node which is composed now.

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # types-PyYAML gives peek_event no type.
        alias = self.peek_event() if self.check_event(yaml.AliasEvent) else None  # type: ignore[no-untyped-call]
        self._around.append(parent)
        node = super().compose_node(parent, index)
        if alias is not None and any(node is each for each in self._around):
            problem = "the value contains itself; write the value instead of the alias"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=alias.start_mark)
        self._around.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Compares the keys before PyYAML resolves merge keys (`<<`). Afterwards, a key that replaces a merged value would seem to appear
        # twice.
        node = super().compose_mapping_node(anchor)
        found: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in found:
                    self.repeated.append(key.start_mark)
                found.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):  # Leaves the message out, because it may quote the value.
            problem = f"the value is no {node.tag.rpartition(':')[2]}; if it is a text, put it into quotation marks"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


def yaml_value(text: str) -> Any:
    """Returns the value that the YAML text of a file of conf/ describes. Raises YAMLError if the text is invalid."""
    try:
        return yaml.load(text, ConfLoader)  # noqa: S506  ConfLoader is a SafeLoader.
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="too many brackets or levels are nested") from None


def repeated_keys(text: str) -> list[str]:
    """Returns a message for each key that a mapping in a file of conf/ has twice. Returns no message if the text is invalid."""
    try:
        loader = ConfLoader(text)
        loader.get_single_node()
    except (yaml.YAMLError, RecursionError):
        return []
    return [
        f"the key in line {mark.line + 1}, column {mark.column + 1} appears twice: remove one of the two, because only the last value "
        "applies"
        for mark in loader.repeated
    ]


@dataclasses.dataclass(frozen=True)
class ConfFiles:
    """The texts of the files of conf/. `directory` is conf/ itself: relative paths in the files start in the parent of `directory`. `main`
    is the text of sluice.yaml, or empty if this file does not exist. `destinations` has the text of each destination's file, by
    destination.
    """

    directory: Path
    main: str
    destinations: Mapping[str, str]

    def digest(self, destination: str) -> str:
        """Returns a digest of a destination's file, or "" if the destination has no file."""
        text = self.destinations.get(destination)
        return "" if text is None else hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def file_of(destination: str) -> str:
    """Returns the name of a destination's file, for messages."""
    return f"destinations/{destination}.yaml"


def read_conf_files(directory: Path) -> ConfFiles:
    """Reads the files of conf/. If conf/remote.yaml exists, returns the files of the pulled revision that is in use.

    The text of a file that cannot be read begins with UNREADABLE. Raises ConfigurationError if `directory` does not exist, if `directory`
    or its folder destinations/ cannot be read, or if no revision was pulled yet.
    """
    if not _is_there(directory) or not directory.is_dir():
        raise ConfigurationError(
            f"the folder {directory} does not exist; start `sluice` in the folder that contains conf/, or set "
            "SLUICE_CONF to the path of conf/"
        )
    if (remote := read_remote(directory)) is not None:
        return _pulled(directory, remote)
    main = directory / MAIN
    return ConfFiles(
        directory,
        _text(main) if _is_there(main) else "",
        {path.stem: _text(path) for path in _destination_files(directory)},
    )


def _destination_files(directory: Path) -> list[Path]:
    """Returns the files of the destinations in conf/. Raises ConfigurationError if conf/ has a folder destinations/ that cannot be read,
    because its destinations would otherwise seem to be removed.
    """
    folder = directory / "destinations"
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(".yaml")) if _is_there(folder) else []
    except OSError as error:
        raise _unreadable(folder, error) from error


def _is_there(path: Path) -> bool:
    """Returns whether a file or folder exists, also if it is a symbolic link to a missing file. Raises ConfigurationError if the folder
    that contains it cannot be read.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be read ({error.strerror}): permit the user that starts `sluice` to read it, or mount its disk"
    )


def read_remote(directory: Path) -> RemoteConfig | None:
    """Returns the settings of conf/remote.yaml, which name the repository or archive from which conf/ is pulled. Returns None if the file
    does not exist. Raises ConfigurationError if the file is invalid or cannot be read.
    """
    if not _is_there(directory / REMOTE):
        return None
    problems: list[str] = []
    record = mapping_of(REMOTE, _text(directory / REMOTE), problems)
    if not problems:
        try:
            found = RemoteConfig.model_validate(record, context={"root": directory.parent})
        except ValidationError as error:  # Leaves the values out of the message, because a value may be a secret.
            for each in error.errors():
                key = ".".join(map(str, each["loc"]))
                problems.append(": ".join(filter(None, [REMOTE, key, each["msg"].removeprefix("Value error, ")])))
    if not problems and (_is_there(directory / MAIN) or _destination_files(directory)):
        problems.append(
            f"conf/ has {REMOTE}, and also {MAIN} or destinations/: remove either {REMOTE} or the local files"
        )
    if problems:
        raise ConfFilesError(directory, problems)
    return found


def remote_record(directory: Path) -> RemoteRecord | None:
    """Returns the record of the last pull. Returns None if conf/remote.yaml does not exist or nothing was pulled. Raises ConfigurationError
    if conf/remote.yaml is invalid.
    """
    remote = read_remote(directory)
    return read_record(remote.record_file) if remote is not None else None


def _pulled(directory: Path, remote: RemoteConfig) -> ConfFiles:
    """Returns the texts of the pulled revision that is in use. Raises ConfigurationError if no revision was pulled yet."""
    record = read_record(remote.record_file)
    if record is None or not record.revision:
        why = f": {record.refused or record.away}" if record is not None else ""
        raise ConfigurationError(
            f"{directory}: nothing was pulled from {remote.shown} yet{why}; run `sluice conf pull`"
        )
    return ConfFiles(directory, record.main, record.destinations)


def mapping_of(file: str, text: str, problems: list[str]) -> dict[str, Any]:
    """Parses the YAML text of a file into keys and values. If the text is invalid, appends a message to `problems` and returns {}."""
    if text.startswith(UNREADABLE):
        problems.append(f"{file} cannot be read: {text[1:]}")
        return {}
    try:
        record = yaml_value(text) or {}
    except yaml.YAMLError as error:
        problems.append(f"{file} cannot be read: {_of_yaml(error)}")
        return {}
    if not isinstance(record, dict):
        problems.append(f"{file} is not a mapping of keys to values")
        return {}
    return record


def _of_yaml(error: yaml.YAMLError) -> str:
    """Returns the reason, line and column of an error of PyYAML. Leaves out the file's text, because it may contain a secret."""
    what = _QUOTED.sub("…", str(getattr(error, "problem", "") or "the file is not YAML"))
    mark = getattr(error, "problem_mark", None)
    return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else what


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        return f"{UNREADABLE}{error}"
