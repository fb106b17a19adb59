"""Stores which transform functions and which salts of masks an engine uses, and refuses to read rows with other functions or salts. Called
by `wiring`, and by snapshots, repairs and backfills.

Snapshots, repairs and backfills run in other processes, which import the function and read the salt themselves. The function or the salt
may have changed since the engine started, or may differ on the run's host. Without this check, the table would get rows that were made with
two versions of the function or the salt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.instance.tables.filter_change import rules_digest
from sluice.cdc_engine.records.location import record_store

FILE = "transforms.json"


def note_transforms(policies: Mapping[str, ValuePolicy], directory: Path) -> None:
    """Stores digests of the engine's row rules that have a transform or a salt, so that other processes can compare their rules with them
    (`refuse_other_functions`). If no rules have a transform or a salt, removes the record. The digests do not reveal the salts. Raises
    MetaError if the record store does not answer.
    """
    found = _digests(policies)
    records = record_store(directory)
    if found:
        records.put(FILE, json.dumps(found, sort_keys=True))
    else:
        records.remove(FILE)


def refuse_other_functions(policies: Mapping[str, ValuePolicy], directory: Path) -> None:
    """Raises ActRefusedError if the engine transforms or masks a table in another way than `policies`, the value policies that this process
    uses.
    """
    now = _digests(policies)
    if not now:
        return
    in_use = json.loads(record_store(directory).get(FILE) or "{}")
    for name, digest in now.items():
        if in_use.get(name) != digest:
            raise ActRefusedError(
                f"{name}: {_what(policies[name].rules)} changed after the engine started, or differs between this "
                f"host and the engine's host. If it differs, make it the same on all hosts. If you changed it, run `sluice instance "
                f"restart {directory.name}`, which re-snapshots the table"
            )


def _digests(policies: Mapping[str, ValuePolicy]) -> dict[str, str]:
    return {name: rules_digest(policy.rules) for name, policy in policies.items() if _what(policy.rules)}


def _what(rules: RowRules) -> str:
    """Returns, for a message, the parts of a table's rules that are outside of conf/: the module of a transform, the salt of a mask.
    Returns an empty text if the rules have no such part.
    """
    function = "the module of the table's transform" if rules.transform is not None else ""
    salt = "the salt of a mask" if any(mask.salt for mask in rules.masks) else ""
    return " or ".join(filter(None, (function, salt)))
