"""Records which functions the transforms of an engine have, and refuses to read rows in a process that has others. Called by `wiring`, and
by snapshots, repairs and backfills.

A run imports a function when it reads rows, and the file may have changed since the engine imported it. A table with rows of both would
be a mix, which the engine discovers only at its next start."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.instance.tables.transform_functions import transform_of
from sluice.cdc_engine.records.location import record_store

FILE = "transforms.json"


def note_transforms(config: DestinationConfig, directory: Path) -> None:
    """Saves the identities of the tables' transforms; removes the record if there are none. Raises MetaError, ConfigurationError."""
    found = _identities(config, config.tables)
    records = record_store(directory)
    if found:
        records.put(FILE, json.dumps(found, sort_keys=True))
    else:
        records.remove(FILE)


def refuse_other_functions(config: DestinationConfig, directory: Path, names: Iterable[str]) -> None:
    """Raises ActRefusedError if the engine transforms one of the tables "database.table" by another function than this process would."""
    now = _identities(config, names)
    if not now:
        return
    in_use = json.loads(record_store(directory).get(FILE) or "{}")
    for name, identity in now.items():
        if in_use.get(name) != identity:
            raise ActRefusedError(
                f"{name}: the module of its transform was changed since the engine started: `sluice instance restart {config.name}`, which "
                "re-snapshots the table"
            )


def _identities(config: DestinationConfig, names: Iterable[str]) -> dict[str, str]:
    settings = {name: config.tables[name].transform for name in names if name in config.tables}
    return {name: transform_of(name, each).identity for name, each in settings.items() if each is not None}
