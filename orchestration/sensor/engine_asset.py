"""Defines the asset of an engine. The sensor reports an observation of the asset once a minute. The button `Observe` in Dagster's UI
reports one from the engine's newest status file. The asset is an observable asset and not an external asset, because Dagster shows "Never
materialized" for an external asset even after observations.
"""

# There is no `from __future__ import annotations`, because Dagster inspects annotations at runtime and must find types, not strings.

import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.status_file import engine_status
from sluice.orchestration.base.table_catalog import engine_key, group_of, owners_of

# The names of the numbers in an observation by Dagster's button `Observe`. The sensor's observations have numbers of the same names, so
# that Dagster's plots have no gaps.
NUMBERS = ("lag_seconds", "rows_per_second")


def engine_asset(config: SluiceConfig, destination: str) -> dg.AssetsDefinition:
    """Returns the observable asset of a destination's engine."""
    settings, key = config.destinations[destination], engine_key(destination)
    spec = dg.AssetSpec(
        key,
        group_name=group_of(settings),
        owners=owners_of(settings),
        kinds={"mysql", "python"},
        description=f"The engine of {destination}: how far it has read, how far behind it is, and whether it runs.",
    )

    def observe() -> Iterator[dg.ObserveResult]:
        yield dg.ObserveResult(asset_key=key, metadata=observed(engine_status(config.destination_dir(destination))))

    # Suppresses Dagster's warning that `multi_observable_source_asset` is beta. Dagster's version is pinned, so the warning does not help
    # an operator.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        made: dg.AssetsDefinition = dg.multi_observable_source_asset(name=f"observe_{destination}", specs=[spec])(
            observe
        )
    return made


def observed(record: dict[str, Any]) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of an observation. `record` is the content of status.json, and is empty if no engine has run."""
    return {
        **{name: dg.MetadataValue.float(float(record[name])) for name in NUMBERS if name in record},
        "state": dg.MetadataValue.text(str(record.get("state", "UNKNOWN"))),
        "reason": dg.MetadataValue.text(
            str(
                record.get("reason")
                or ("none" if record else "no engine has run yet; start the engine with `sluice up`")
            )
        ),
    }
