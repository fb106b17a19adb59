"""Reads the texts of conf/ for a user's code location, from a folder or from the inline settings of a component. Inline settings are
written to `.sluice/conf` of the project, so that the engine process and the console can read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sluice.cdc_engine.config.conf_files import MAIN, ConfFiles, mapping_of, read_conf_files
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import ConfigurationError

INLINE_FOLDER = Path(".sluice") / "conf"  # The folder for inline settings, relative to the project's root.
# The setting `engine` of a user's code location. The engines must be in another process, because Dagster may replace the process of a code
# location at any time.
OWN_PROCESS = {"kind": "remote"}


def folder_texts(directory: Path) -> ConfFiles:
    """Returns the texts of a conf/ folder. Raises ConfigurationError unless its settings put the engines into a process of their own."""
    files = read_conf_files(directory.resolve())
    _refuse_same_process(str(files.directory / MAIN), mapping_of(MAIN, files.main, []).get("engine"))
    return files


def _refuse_same_process(where: str, engine: object) -> None:
    if not isinstance(engine, dict) or engine.get("kind") != OWN_PROCESS["kind"]:
        raise ConfigurationError(
            f"{where}: set engine: {{kind: remote}}. In your own code location, the engines need a "
            "separate process, because Dagster may replace the process of a code location at any time"
        )


def inline_texts(root: Path, settings: Mapping[str, Any], destinations: Mapping[str, Mapping[str, Any]]) -> ConfFiles:
    """Converts inline settings to the texts of a conf/. `settings` is the content of sluice.yaml. `root` is the project's folder. Raises
    ConfigurationError if the settings of a destination are not a mapping, or if the engines would not be in a process of their own.
    """
    for name, each in destinations.items():
        if not isinstance(each, Mapping):
            raise ConfigurationError(
                f"destinations.{name}: write the settings of the destination, such as source and include, not {each!r}"
            )
    main = {"engine": OWN_PROCESS, **settings}
    _refuse_same_process("settings", main["engine"])
    return ConfFiles(
        root.resolve() / INLINE_FOLDER,
        yaml.safe_dump(main, sort_keys=False),
        {name: yaml.safe_dump(dict(each), sort_keys=False) for name, each in destinations.items()},
    )


def write_conf(files: ConfFiles) -> None:
    """Writes each text that differs from its file, and removes the files of destinations that have no text. Raises OSError if a file
    cannot be written or removed.
    """
    folder = files.directory / "destinations"
    wanted = {files.directory / MAIN: files.main}
    wanted |= {folder / f"{name}.yaml": text for name, text in files.destinations.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            replace_file(path, text)
    for path in folder.glob("*.yaml"):
        if path not in wanted:
            path.unlink()
