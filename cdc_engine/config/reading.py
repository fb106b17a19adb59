"""Reads and checks conf/, and reports all mistakes at once."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.cdc_engine import config_paths
from sluice.cdc_engine.config.conf_files import MAIN, ConfFiles, file_of, mapping_of, read_conf_files
from sluice.cdc_engine.config.group import group_problems, is_group
from sluice.cdc_engine.config.sluice import SluiceConfig, path_clashes
from sluice.cdc_engine.config.stream import transactional_id_problems
from sluice.cdc_engine.errors import ConfFilesError, ConfigurationError


def conf_dir() -> Path:
    """Returns the folder of the configuration: $SLUICE_CONF if it is set and not empty, otherwise conf/ in the working directory. Relative
    paths in the files start in the parent of this folder.
    """
    return Path(os.environ.get("SLUICE_CONF") or "conf").resolve()


def load_config(directory: Path | None = None) -> SluiceConfig:
    """Reads and checks all files of conf/. In the result, `source` of each destination is the source in use, even after a failover. Raises
    ConfFilesError with all mistakes in the files. Raises ConfigurationError if there are no files to read, or if it is unknown which source
    a destination reads now.
    """
    return config_of(read_conf_files((directory or conf_dir()).resolve()))


def config_of(files: ConfFiles, *, whole: bool = True) -> SluiceConfig:
    """Parses and checks the texts of conf/. In the result, `source` of each destination is the source in use, even after a failover. With
    `whole`, also checks whether the files conflict with each other. Raises ConfFilesError with all mistakes, and ConfigurationError if it
    is unknown which source a destination reads now.
    """
    texts = tuple(sorted(files.destinations.items()))
    return _checked(files.directory, files.main, texts, whole).with_sources_in_use()


# Cached because each engine reads the configuration at its start, and parsing the files of a hundred destinations takes 0.06 s.
@functools.lru_cache(maxsize=2)
def _checked(directory: Path, main: str, destinations: tuple[tuple[str, str], ...], whole: bool) -> SluiceConfig:
    problems: list[str] = []
    record = mapping_of(MAIN, main, problems)
    described = {name: {"name": name, **mapping_of(f"{name}.yaml", text, problems)} for name, text in destinations}
    problems += _names_elsewhere(record, described)
    try:
        groups = {name: each for name, each in described.items() if is_group(each)}
        alone = {name: each for name, each in described.items() if name not in groups}
        record = {**record, "destinations": alone, "groups": groups}
        config = SluiceConfig.model_validate(record, context={"root": directory.parent})
    except ValidationError as error:
        problems += [_sentence(item) for item in error.errors()]
    else:
        problems += together(config) if whole else ()
    if problems:
        raise ConfFilesError(directory, problems)
    return config


def _names_elsewhere(record: dict[str, Any], described: dict[str, dict[str, Any]]) -> list[str]:
    """Returns a message for each key that would name a destination. The name of a destination's file is the destination's name. Sluice
    would ignore `destinations` and `groups` in sluice.yaml. With another `name` in a destination's file, some commands would use the folder
    of that name.
    """
    misplaced = [
        f"{MAIN}: {key}: describe each of them in its own file conf/destinations/NAME.yaml, and remove this key"
        for key in ("destinations", "groups")
        if key in record
    ]
    renamed = [
        f"{file_of(name)}: name: the file's name is the destination's name; remove this key"
        for name, each in described.items()
        if each["name"] != name
    ]
    return [*misplaced, *renamed]


def together(config: SluiceConfig) -> list[str]:
    """Returns a message for each conflict between files of conf/ that are valid individually."""
    return [
        *path_clashes(config, {}),
        *group_problems(config.groups, config.destinations),
        *transactional_id_problems(config.streams),
    ]


def _sentence(item: Any) -> str:
    """Formats a pydantic error as `file: key: what is wrong`. Leaves out the value, which may be a secret."""
    where = [str(part) for part in item["loc"]]
    file = "sluice.yaml"
    if where[:1] in (["destinations"], ["groups"]) and len(where) > 1:
        file, where = f"destinations/{where[1]}.yaml", where[2:]
    return ": ".join(filter(None, [file, ".".join(where), item["msg"].removeprefix("Value error, ")]))


def archive_of_request(archive: str, schemas: str, folder: Path | None = None) -> tuple[str, Path | None]:
    """Returns the location of the binlog archive that a request names (`--archive`), and the file with its schemas (`--schemas`). Relative
    paths start in `folder`, and are refused if `folder` is None. Raises ConfigurationError if a path is invalid.
    """
    if schemas and not archive:
        raise ConfigurationError("--schemas needs --archive: name the archive too, or leave out --schemas")
    try:
        found = config_paths.archive_location(archive, folder)
        return found, config_paths.local_file(schemas, folder) if schemas else None
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
