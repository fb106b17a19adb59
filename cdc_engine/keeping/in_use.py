"""Chooses the configuration that all processes of Sluice on a host (the stack) use: the current text of each valid file of conf/, and the
last valid text of each invalid file.

In a process that runs engines or serves Dagster's definitions, `ConfWatch` chooses the configuration and writes it into the data directory.
Child processes find this file through the environment variable `SLUICE_CONF_IN_USE`. A process without this variable reads conf/ itself,
and chooses in the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from sluice.cdc_engine.config import SluiceConfig, conf_dir
from sluice.cdc_engine.config.conf_files import MAIN, ConfFiles, file_of, mapping_of, read_conf_files
from sluice.cdc_engine.config.group import is_group
from sluice.cdc_engine.config.reading import config_of, together
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import ConfigurationError

log = structlog.get_logger()

VARIABLE = "SLUICE_CONF_IN_USE"
FOLDER = "conf-in-use"
OLD_GOES_ON = "the earlier settings of the destination stay in use"
NOT_STARTED = "the destination is not started"
NEXT_UP = "the file has changed; `sluice down` and `sluice up` apply the change"


@dataclasses.dataclass(frozen=True)
class InUse:
    """The configuration in use. `refused` maps each file of conf/ whose current text is not used to the reason."""

    config: SluiceConfig
    files: ConfFiles
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def digest(self, name: str) -> str:
        """Returns a digest of the settings of a destination or group, or "" if conf/ has no such name. When the digest changes, the engine
        restarts. The digest includes the names of the groups that have the destination as a member, because the engine stores positions for
        these groups.
        """
        groups = self.config.groups_of(name)
        return "+".join(filter(None, [self.files.digest(name), *groups])) if name in self.files.destinations else ""


def choose(found: ConfFiles, before: ConfFiles | None, *, main_may_change: bool) -> InUse:
    """Chooses which text of each file of conf/ is used. `found` are the current texts, and `before` the texts that were in use so far. If
    `main_may_change` is False, a change of sluice.yaml is not used, because running processes cannot apply it (NEXT_UP). Does no I/O,
    except that it reads which sources the destinations read now.

    Raises ConfigurationError if no valid configuration results.
    """
    refused: dict[str, str] = {}
    main = found.main
    if before is not None and not main_may_change and found.main != before.main:
        refused[MAIN], main = NEXT_UP, before.main
    wanted = ConfFiles(found.directory, main, found.destinations)
    try:
        return InUse(config_of(wanted), wanted, refused)
    except ConfigurationError as error:
        if before is None or not found.destinations:
            raise
        last = before.destinations if before.directory == found.directory else {}
        return _one_by_one(wanted, last, refused, str(error))


def _one_by_one(wanted: ConfFiles, last: Mapping[str, str], refused: dict[str, str], why: str) -> InUse:
    """Builds the configuration from one file after the other. Uses each file's current text if it is valid, otherwise its earlier text
    (`last`), if there is one. Adds each file whose current text is not used to `refused`, with the reason.

    Unchanged files come before changed files. So if a changed file conflicts with an unchanged file, the changed file is refused. Groups
    come after all destinations, because their members must exist. If each file is valid, but the files are not valid together, raises
    ConfigurationError with `why`, the error of all files together.
    """
    taken, chosen = config_of(ConfFiles(wanted.directory, wanted.main, {})), dict[str, str]()
    groups = {name for name, text in wanted.destinations.items() if is_group(mapping_of(name, text, []))}
    order = sorted((name in groups, last.get(name) != text, name) for name, text in wanted.destinations.items())
    for _, _, name in order:
        error = ""
        for text in dict.fromkeys([wanted.destinations[name], *([last[name]] if name in last else [])]):
            try:
                taken = _with(taken, wanted, name, text)
            except ConfigurationError as refusal:
                error = error or str(refusal).removeprefix(f"{wanted.directory}: ")
                continue
            chosen[name] = text
            break
        if error:
            refused[file_of(name)] = f"{error} ({OLD_GOES_ON if name in chosen else NOT_STARTED})"
    if not refused:  # Blames no single file: each file is valid, but the files are not valid together.
        raise ConfigurationError(why)
    return InUse(taken, ConfFiles(wanted.directory, wanted.main, chosen), refused)


def _with(taken: SluiceConfig, wanted: ConfFiles, name: str, text: str) -> SluiceConfig:
    """Returns the configuration `taken` with one more destination or group, whose file has the text `text`. Raises ConfigurationError if
    this file is invalid, or conflicts with `taken`.
    """
    alone = config_of(ConfFiles(wanted.directory, wanted.main, {name: text}), whole=False)
    more = taken.model_copy(
        update={
            "destinations": {**taken.destinations, **alone.destinations},
            "groups": {**taken.groups, **alone.groups},
        }
    )
    if clashes := together(more):
        raise ConfigurationError("; ".join(clashes))
    return more


def conf_in_use() -> InUse:
    """Returns the configuration that this process uses. Raises ConfigurationError if no valid configuration is known.

    Usually a parent process has recorded the configuration in the file that SLUICE_CONF_IN_USE names. If there is no such record, for
    example because Dagster was not started by `sluice up`, reads conf/. For an invalid file, uses the last valid text that an engine
    process of this host recorded.
    """
    written = os.environ.get(VARIABLE)
    kept = read_kept(Path(written)) if written else None
    if kept is None:
        found = as_kept(conf_dir())
        for file, why in found.refused.items():
            log.error("conf_refused", file=file, reason=why)
        return found
    return InUse(config_of(kept[0]), *kept)


ROLES = ("engine", "code-server")  # The roles of the processes that run engines on a host.


def as_found(directory: Path, roles: Sequence[str] = ROLES) -> tuple[InUse, Path]:
    """Returns the configuration that a starting process with the role `roles[0]` uses, and the file in which this process records the
    configuration. For an invalid file of conf/, uses the valid text that a process with one of `roles` recorded last.

    Raises ConfigurationError if conf/ is invalid and no earlier valid version is known.
    """
    found = read_conf_files(directory)
    data_dir = config_of(ConfFiles(directory, found.main, {})).data_dir
    files = [kept_file(data_dir, role) for role in roles]
    newest = max((file for file in files if file.exists()), key=lambda file: file.stat().st_mtime_ns, default=files[0])
    kept = read_kept(newest)
    return choose(found, kept[0] if kept else None, main_may_change=True), files[0]


def as_kept(directory: Path) -> InUse:
    """Returns the configuration that the stack of this host uses, for the console. Raises ConfigurationError if conf/ is invalid and no
    earlier valid version is known.
    """
    return as_found(directory)[0]


def tables_in_use() -> Path | None:
    """Returns the folder with a copy of each destination's list of tables, from which Dagster's definitions are built. Returns None if no
    configuration was recorded. `orchestration.base.table_catalog` writes and reads the copies.
    """
    written = os.environ.get(VARIABLE)
    return Path(written).with_suffix(".tables") if written else None


def stamp() -> str:
    """Returns a digest of the configuration in use, and of the lists of tables from which Dagster's definitions are built. When one of them
    changes, the digest changes. Returns "" if no configuration was recorded.
    """
    folder = tables_in_use()
    if folder is None:
        return ""
    try:
        files = [Path(os.environ[VARIABLE]), *sorted(folder.glob("*.json"))]
        each = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
        return hashlib.sha256("\n".join(each).encode()).hexdigest()
    except OSError:
        return ""


def change_since(begun: ConfFiles, destination: str) -> str:
    """Returns why this process must end: the destination's file in conf/ has changed since the process started with `begun`. Returns "" if
    the file is unchanged.
    """
    written = os.environ.get(VARIABLE)
    kept = read_kept(Path(written)) if written else None
    if kept is None or kept[0].digest(destination) == begun.digest(destination):
        return ""
    return f"{file_of(destination)} in conf/ has changed"


def troubles_now(destination: str) -> tuple[str, ...]:
    """Returns a message if the current text of a destination's file is not used, otherwise nothing."""
    written = os.environ.get(VARIABLE)
    kept = read_kept(Path(written)) if written else None
    return _troubles(kept[1], destination) if kept else ()


def _troubles(refused: Mapping[str, str], destination: str) -> tuple[str, ...]:
    file = file_of(destination)
    return (
        (f"{file} in conf/ is not used, and the last valid content of this file stays in use: {refused[file]}",)
        if file in refused
        else ()
    )


def kept_file(data_dir: Path, role: str) -> Path:
    """Returns the file in which the process of a role, such as "engine", records the configuration that it uses."""
    return data_dir / FOLDER / f"{role}.json"


def read_kept(path: Path) -> tuple[ConfFiles, dict[str, str]] | None:
    """Returns the texts of conf/ that were recorded last, and the files of conf/ that were refused at that time, each with the reason.
    Returns None if there is no record.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
        files = ConfFiles(Path(record["directory"]), str(record["main"]), dict(record["destinations"]))
        return files, dict(record["refused"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, in_use: InUse) -> None:
    """Records the configuration for the child processes of this process. Raises OSError if the file cannot be written."""
    files = in_use.files
    record = {"directory": str(files.directory), "main": files.main, "destinations": dict(files.destinations)}
    replace_file(path, json.dumps({**record, "refused": dict(in_use.refused)}))
