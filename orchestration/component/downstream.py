"""Defines the automation condition for a user's assets downstream of Sluice's tables."""

from __future__ import annotations

import dagster as dg


def on_updates() -> dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]:
    """Returns a condition that requests a run of an asset if one of its dependencies was materialized after the last request.

    `AutomationCondition.eager()` differs in two ways:

    - `eager()` resets when the asset itself is materialized. So it misses a batch that is merged while a run of the asset reads. This
      condition requests another run for that batch.
    - `eager()` waits until no dependency is in progress, which may never happen for tables that change all the time. This condition does
      not wait.
    """
    conditions = dg.AutomationCondition
    # If the update of a dependency and the request of a run are in one tick, `since` must compare their times. Dagster compares them only
    # if neither operand of `since` is itself a combination with & or |. So the other conditions are combined with the result of `since`.
    updated = conditions.any_deps_match(conditions.newly_updated()).since(conditions.newly_requested())
    return (updated & ~conditions.any_deps_missing() & ~conditions.in_progress()).with_label("on_updates")
