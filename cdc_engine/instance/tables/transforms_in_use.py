"""Records which functions the transforms of an engine have, and refuses to read rows in a process that has others. Called by `wiring`, and
by snapshots, repairs and backfills.

A run imports a function when it reads rows, and the file may have changed since the engine imported it. A table with rows of both would
be a mix, which the engine discovers only at its next start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.records.location import record_store

FILE = "transforms.json"


def note_transforms(policies: Mapping[str, ValuePolicy], directory: Path) -> None:
    """Saves the identities of the transforms with which the engine decodes; removes the record if there are none. Raises MetaError."""
    found = _identities(policies)
    records = record_store(directory)
    if found:
        records.put(FILE, json.dumps(found, sort_keys=True))
    else:
        records.remove(FILE)


def refuse_other_functions(policies: Mapping[str, ValuePolicy], directory: Path) -> None:
    """Raises ActRefusedError if the engine transforms one of the tables by another function than these policies, with which this process
    reads rows.
    """
    now = _identities(policies)
    if not now:
        return
    in_use = json.loads(record_store(directory).get(FILE) or "{}")
    for name, identity in now.items():
        if in_use.get(name) != identity:
            raise ActRefusedError(
                f"{name}: the module of its transform was changed since the engine started: `sluice instance restart {directory.name}`, "
                "which re-snapshots the table"
            )


def _identities(policies: Mapping[str, ValuePolicy]) -> dict[str, str]:
    transforms = {name: policy.rules.transform for name, policy in policies.items()}
    return {name: each.identity for name, each in transforms.items() if each is not None}
