"""The conf/ that the processes of a stack work with: what conf/ says now, but for files that are wrong, of which the last good text counts.

`ConfWatch` chooses and writes the choice down beside the data, in the process that keeps engines or serves definitions; whoever is started
by that process finds it by the variable `SLUICE_CONF_IN_USE`. Without that, conf/ itself is in use, but for its wrong files.
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

from cdc_engine.config import SluiceConfig, conf_dir
from cdc_engine.config.group import is_group
from cdc_engine.config.reading import config_of, together
from cdc_engine.config.texts import MAIN, ConfTexts, file_of, mapping_of, read_texts
from cdc_engine.durable_files import replace_file
from cdc_engine.errors import ConfigurationError

log = structlog.get_logger()

VARIABLE = "SLUICE_CONF_IN_USE"
FOLDER = "conf-in-use"
OLD_GOES_ON = "what it said before goes on"
NEXT_UP = "it has changed; that takes effect with the next `sluice down` and `sluice up`"


@dataclasses.dataclass(frozen=True)
class InUse:
    """`refused`: file of conf/ → why it does not count, a sentence's end."""

    config: SluiceConfig
    texts: ConfTexts
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def digest(self, name: str) -> str:
        """Of what the engine of a destination or a group is made with; empty where there is none. A destination that becomes a member of a
        group, or is none any more, begins anew: groups read what its engine keeps for them.
        """
        groups = self.config.groups_of(name)
        return "+".join(filter(None, [self.texts.digest(name), *groups])) if name in self.texts.destinations else ""


def choose(found: ConfTexts, before: ConfTexts | None, *, main_may_change: bool) -> InUse:
    """Which text of each file counts. Pure, but that sources of several are looked up. Raises ConfigurationError where no conf/ results.

    `before`: what was in use. `main_may_change`: nothing of the stack runs yet, so sluice.yaml may be another one.
    """
    refused: dict[str, str] = {}
    main = found.main
    if before is not None and not main_may_change and found.main != before.main:
        refused[MAIN], main = NEXT_UP, before.main
    wanted = ConfTexts(found.directory, main, found.destinations)
    try:
        return InUse(config_of(wanted), wanted, refused)
    except ConfigurationError as error:
        if before is None or not found.destinations:
            raise
        last = before.destinations if before.directory == found.directory else {}
        return _one_by_one(wanted, last, refused, str(error))


def _one_by_one(wanted: ConfTexts, last: Mapping[str, str], refused: dict[str, str], why: str) -> InUse:
    """Each file as it is now where that is right, else as it was. What has not changed goes before what has: a newcomer gives way.

    Groups come last: their members must be there.
    """
    taken, chosen = config_of(ConfTexts(wanted.directory, wanted.main, {})), dict[str, str]()
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
            refused[file_of(name)] = f"{error} ({OLD_GOES_ON if name in chosen else 'nothing of it is begun'})"
    if not refused:  # each alone is right, and together they were not
        raise ConfigurationError(why)
    return InUse(taken, ConfTexts(wanted.directory, wanted.main, chosen), refused)


def _with(taken: SluiceConfig, wanted: ConfTexts, name: str, text: str) -> SluiceConfig:
    """The configuration with one destination more. Raises ConfigurationError where that is wrong, alone or beside the others."""
    alone = config_of(ConfTexts(wanted.directory, wanted.main, {name: text}), whole=False)
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
    """What this process works with. Raises ConfigurationError.

    Where nobody gave the variable (Dagster started it otherwise), a wrong file counts as who keeps engines on this host last had it.
    """
    written = os.environ.get(VARIABLE)
    kept = read_kept(Path(written)) if written else None
    if kept is None:
        found = as_kept(conf_dir())
        for file, why in found.refused.items():
            log.error("conf_refused", file=file, reason=why)
        return found
    return InUse(config_of(kept[0]), *kept)


ROLES = ("engine", "code-server")  # who keeps engines on a host


def as_found(directory: Path, roles: Sequence[str] = ROLES) -> tuple[InUse, Path]:
    """What a process works with that begins now: conf/, and of wrong files what one of the roles wrote down; and the file of the first.

    Raises ConfigurationError where conf/ is wrong and nothing is known that was right before.
    """
    found = read_texts(directory)
    data_dir = config_of(ConfTexts(directory, found.main, {})).data_dir
    files = [kept_file(data_dir, role) for role in roles]
    newest = max((file for file in files if file.exists()), key=lambda file: file.stat().st_mtime_ns, default=files[0])
    kept = read_kept(newest)
    return choose(found, kept[0] if kept else None, main_may_change=True), files[0]


def as_kept(directory: Path) -> InUse:
    """What a stack of this host works with, as the console sees it. Raises ConfigurationError as `as_found` does."""
    return as_found(directory)[0]


def tables_in_use() -> Path | None:
    """The folder beside the conf/ in use with a copy of each destination's list of tables, as definitions are built from them.

    None where nothing was written down. `orchestration.table_catalog` writes and reads it.
    """
    written = os.environ.get(VARIABLE)
    return Path(written).with_suffix(".tables") if written else None


def stamp() -> str:
    """Another text whenever another conf/ is in use, or definitions are built from other tables; empty where nothing was written down."""
    folder = tables_in_use()
    if folder is None:
        return ""
    try:
        files = [Path(os.environ[VARIABLE]), *sorted(folder.glob("*.json"))]
        each = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
        return hashlib.sha256("\n".join(each).encode()).hexdigest()
    except OSError:
        return ""


def change_since(begun: ConfTexts, destination: str) -> str:
    """Why whoever began with these texts leaves its work to others, a sentence; empty while the destination's is the one in use."""
    written = os.environ.get(VARIABLE)
    kept = read_kept(Path(written)) if written else None
    if kept is None or kept[0].digest(destination) == begun.digest(destination):
        return ""
    return f"{file_of(destination)} in conf/ has changed"


def troubles_now(destination: str) -> tuple[str, ...]:
    """What is wrong with the file of a destination in this moment, a sentence; none when nothing."""
    written = os.environ.get(VARIABLE)
    kept = read_kept(Path(written)) if written else None
    return _troubles(kept[1], destination) if kept else ()


def _troubles(refused: Mapping[str, str], destination: str) -> tuple[str, ...]:
    file = file_of(destination)
    return (f"{file} in conf/ is not what is in use: {refused[file]}",) if file in refused else ()


def kept_file(data_dir: Path, role: str) -> Path:
    """Where the process of a role, such as "engine", writes down what it works with."""
    return data_dir / FOLDER / f"{role}.json"


def read_kept(path: Path) -> tuple[ConfTexts, dict[str, str]] | None:
    """What was written down last, and what was refused then; None where that is nothing."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
        texts = ConfTexts(Path(record["directory"]), str(record["main"]), dict(record["destinations"]))
        return texts, dict(record["refused"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, in_use: InUse) -> None:
    """Written down for the processes that this one starts. Raises OSError."""
    texts = in_use.texts
    record = {"directory": str(texts.directory), "main": texts.main, "destinations": dict(texts.destinations)}
    replace_file(path, json.dumps({**record, "refused": dict(in_use.refused)}))
