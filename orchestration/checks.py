"""The asset checks of a destination: what stands still, and why. The sensor publishes their results as they change.

Executed by hand in the UI they read the files that the engine writes, and come to the same results. They never start an engine.
"""

# no `from __future__ import annotations`: Dagster looks at the type of `context` itself

import json
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from cdc_engine.config import SluiceConfig
from cdc_engine.contracts import TableVersion
from orchestration.sensor.observations import (
    ENGINE_CHECK,
    HEALTHY_STATES,
    TABLE_CHECK,
    TABLES_CHECK,
    TROUBLED,
    result_of,
    stopped_sentence,
    why_stopped,
)
from orchestration.table_catalog import checkable, delta_key, engine_key, foreign_keys

STATUS_FILE = "status.json"  # written about once a second by the engine
STATUS_SECONDS_MAX = 60.0  # older: nobody writes it


def destination_checks(
    config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...]
) -> dg.AssetChecksDefinition:
    """One check a table, and two of the engine: it runs, and no table of it stands still."""
    names = checkable(destination, [table.name for table in tables])
    engine = engine_key(destination)
    table_of = {delta_key(destination, name): name for name in names}
    keys = foreign_keys(config, destination)
    specs = [
        dg.AssetCheckSpec(ENGINE_CHECK, asset=engine, description="The engine reads the source."),
        dg.AssetCheckSpec(TABLES_CHECK, asset=engine, description="No table has been stopped."),
        *(dg.AssetCheckSpec(TABLE_CHECK, asset=key, description=_taken(keys.get(table_of[key]))) for key in table_of),
    ]

    @dg.multi_asset_check(name=f"check_{destination}", specs=specs, can_subset=True)
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        failing = read_failures(config.destination_dir(destination), time.time())
        for key in context.selected_asset_check_keys:
            if key.name == TABLES_CHECK:
                why = stopped_sentence(failing)
            else:
                why = failing.get("" if key.name == ENGINE_CHECK else table_of[key.asset_key], "")
            evaluation = result_of(key.asset_key, key.name, why)
            yield dg.AssetCheckResult(
                asset_key=key.asset_key,
                check_name=key.name,
                passed=evaluation.passed,
                severity=evaluation.severity,
                description=evaluation.description,
                metadata=dict(evaluation.metadata),
            )

    return check


def _taken(told: list[str] | None) -> str:
    """What a table's check is about; with the foreign keys that change its rows without row events."""
    return " ".join(["The table's changes are taken.", *(f"{sentence}." for sentence in told or ())])


def read_failures(directory: Path, now_seconds: float) -> dict[str, str]:
    """What stands still by the engine's status.json, in the form of `observations.failures`."""
    path = directory / STATUS_FILE
    try:
        record = json.loads(path.read_bytes())
        age_seconds = now_seconds - record["updated_at_us"] / 1e6
        stopped = {
            (name := f"{item['database']}.{item['table']}"): why_stopped(
                directory.name, name, item["state"], item["reason"]
            )
            for item in record["stopped_tables"]
        }
        state, reason = str(record["state"]), str(record["reason"])
        troubles = [str(each) for each in record["troubles"]]
    except FileNotFoundError:
        return {"": f"STOPPED: {path} does not exist; the engine has not run, start it with ./sluice up"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"": f"UNKNOWN: {path} cannot be read: {type(error).__name__}: {error}"}
    if abs(age_seconds) > STATUS_SECONDS_MAX:  # of a time to come: the clock was set back, and nobody has written since
        return {
            **stopped,
            "": f"STOPPED: no engine has written {path} for {age_seconds:.0f} s; start it with ./sluice up",
        }
    if state not in HEALTHY_STATES:
        return {**stopped, "": f"{state}: {reason}"}
    return {**stopped, "": f"{TROUBLED}: {'; '.join(troubles)}"} if troubles else stopped
