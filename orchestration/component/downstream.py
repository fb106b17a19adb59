"""The automation condition for assets downstream of Sluice's tables."""

from __future__ import annotations

import dagster as dg


def on_updates() -> dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]:
    """Requests a run of an asset whenever one of its dependencies was materialized after the last request.

    `AutomationCondition.eager()` takes each materialization of the asset itself as an answer to all earlier ones of its dependencies. A
    batch that is merged while the asset's run is reading is then left out until the next change. This condition runs the asset again.
    It also does not wait until no dependency is in progress, which may never happen for tables that change all the time.
    """
    conditions = dg.AutomationCondition
    # If both became true in one tick, Dagster compares their times, but only for conditions that are not joined with & or |.
    updated = conditions.any_deps_match(conditions.newly_updated()).since(conditions.newly_requested())
    return (updated & ~conditions.any_deps_missing() & ~conditions.in_progress()).with_label("on_updates")
