"""Builds the events that a tick publishes about an engine: observations for the plots, and check results. Pure functions.

A tick publishes an observation at most once a minute. So the newest hundred events, which Dagster plots, show at least the last 100
minutes. The numeric keys and their types never change, so that each plot is an unbroken line. A check result is published when it changes.
A failure is also published once a minute while it lasts.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from sluice.cdc_engine.limits import OBSERVATION_SECONDS
from sluice.cdc_engine.states import OF_THE_LAKE, TableState, engine_way_out, way_out
from sluice.orchestration.base.table_catalog import delta_key, engine_key

if TYPE_CHECKING:
    from sluice.orchestration.base.ports import EngineSnapshot

TABLE_CHECK = "flowing"  # The check of a Delta table: its changes are merged.
TABLES_CHECK = "tables_flowing"  # The check of the engine: the changes of all tables are merged.
ENGINE_CHECK = "running"  # The check of the engine: it reads the source.
LAG_CHECK = "caught_up"  # The check of the engine's lag: no unmerged change is older than the limit.
# The key of a failed LAG_CHECK in the result of `failures`. In this result, the engine has the key "", and tables have "database.table".
LAG = ":lag"
BEHIND = "BEHIND"
HEALTHY_STATES = {"RUNNING", "STARTING", "STANDBY"}
TROUBLED = "TROUBLED"  # The state of an engine that reads but reports problems.
# The state of a table during its re-snapshot, in which the table's rows in the lake are older than the cursor.
RE_SNAPSHOT = "RE_SNAPSHOT"
IN_DAGSTER = (
    "or in Dagster: launch the job `decide`; its run lists this decision with links that open a filled-in launchpad"
)
# A check that fails in one of these states is a warning and not an error, because the engine or table leaves the state without an operator.
WARNING_STATES = {"RECONNECTING", RE_SNAPSHOT}

AssetEvent = dg.AssetObservation | dg.AssetCheckEvaluation | dg.AssetMaterialization


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedObservations:
    """What the sensor has published, and when. The sensor stores this object as its cursor in Dagster, so that the sensor publishes nothing
    twice.

    `observed_at_seconds` is the time of the newest observation, in seconds since 1970. `failing` has the reason of each check whose newest
    result is a failure, with the keys of `failures`. `failing` is None if nothing was published yet.
    """

    observed_at_seconds: float = 0.0
    failing: Mapping[str, str] | None = None

    def to_cursor(self) -> str:
        shown = {"observed_at_seconds": int(self.observed_at_seconds), "failing": self.failing}
        return json.dumps(shown, sort_keys=True)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> PublishedObservations:
        """Parses a cursor that `to_cursor` wrote. If the cursor is invalid, returns an object without publications."""
        try:
            record = json.loads(cursor or "{}")
            failing = record.get("failing")
            return cls(
                observed_at_seconds=float(record.get("observed_at_seconds", 0.0)),
                failing=None if failing is None else {str(key): str(why) for key, why in failing.items()},
            )
        except (ValueError, TypeError, AttributeError):
            return cls()


def observation(destination: str, status: EngineSnapshot) -> dg.AssetObservation:
    """Returns an observation of the engine's asset: its position, lag and throughput."""
    ring_bytes_max = max(1, int(status.ring_bytes_max))
    return dg.AssetObservation(
        asset_key=engine_key(destination),
        metadata={
            "lag_seconds": dg.MetadataValue.float(float(status.lag_seconds)),
            **_hours(retention_left_hours=status.retention_left_hours, oldest_binlog_hours=status.oldest_binlog_hours),
            "rows_per_second": dg.MetadataValue.float(float(status.rows_per_second)),
            "ring_fill_ratio": dg.MetadataValue.float(int(status.ring_bytes) / ring_bytes_max),
            "ring_bytes": dg.MetadataValue.int(int(status.ring_bytes)),
            "ring_events": dg.MetadataValue.int(int(status.ring_events)),
            "waiting_bytes": dg.MetadataValue.int(int(status.waiting_bytes)),
            "stopped_tables": dg.MetadataValue.int(len(status.stopped_tables)),
            "state": dg.MetadataValue.text(str(status.state)),
            "reason": dg.MetadataValue.text(status.reason or "none"),
            "read_up_to": dg.MetadataValue.text(str(status.position or "nothing yet")),
            "acked_up_to": dg.MetadataValue.text(str(status.cursor or "nothing yet")),
        },
    )


def _hours(**hours: float | None) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the hours as metadata for the plots, without the values that are None."""
    return {name: dg.MetadataValue.float(float(value)) for name, value in hours.items() if value is not None}


def stopped_sentence(failing: Mapping[str, str]) -> str:
    """Returns all stopped tables, and all tables whose re-snapshot is in progress, with reasons. Returns "" if there are none. The text
    begins with RE_SNAPSHOT if no table is stopped.
    """
    tables = {name: why for name, why in sorted(failing.items()) if name not in {"", LAG}}
    reasons = "; ".join(f"{name}: {why}" for name, why in tables.items())
    none_stopped = bool(tables) and all(why.startswith(f"{RE_SNAPSHOT}: ") for why in tables.values())
    return f"{RE_SNAPSHOT}: {reasons}" if none_stopped else reasons


def behind(lag_seconds: float, lag_seconds_max: float) -> str:
    """Returns why the lag check fails, or "". The sentence does not name the lag, because a sentence that changes would be published
    again and again while the lag grows.
    """
    if lag_seconds <= lag_seconds_max:
        return ""
    return (
        f"{BEHIND}: changes that the source committed more than {lag_seconds_max:g} s ago (lag_seconds_max) "
        "are not in the lake; the plot of lag_seconds shows since when, and the check `running` and the runs "
        "of the merge job show why"
    )


def failures(destination: str, status: EngineSnapshot | None, lag_seconds_max: float = math.inf) -> dict[str, str]:
    """Returns the reasons of all failures. The key is "" for the engine, "database.table" for a stopped table, and LAG for a lake that is
    too far behind. Returns {} if `status` is None: the engine did not start, and the caller adds the reason.
    """
    if status is None:
        return {}
    found = {
        (name := f"{table.database}.{table.table}"): why_stopped(destination, name, table.state, table.reason)
        for table in status.stopped_tables
    }
    if status.state not in HEALTHY_STATES:
        found[""] = why_engine_stopped(destination, status.state, status.reason)
    elif status.troubles:
        found[""] = f"{TROUBLED}: {'; '.join(status.troubles)}"
    if late := behind(status.lag_seconds, lag_seconds_max):
        found[LAG] = late
    return found


def why_engine_stopped(destination: str, state: str, reason: str) -> str:
    """Returns an engine's state and reason, and what to do if something can be done."""
    how = engine_way_out(state, destination)
    return ": ".join(filter(None, (str(state), reason))) + (f" ({how})" if how else "")


def why_stopped(destination: str, table: str, state: str, reason: str) -> str:
    """Returns why "database.table" stopped. Adds the commands that resume the table, unless the reason already has them."""
    how = "" if state in {*OF_THE_LAKE, TableState.DDL_HELD} else way_out(state, destination, table)
    return f"{state}: {reason}{f' ({how})' if how else ''}"


def checks(destination: str, tables: Iterable[str], failing: Mapping[str, str], *, only: set[str]) -> list[AssetEvent]:
    """Returns the results of the checks whose keys are in `only`. The keys are those of `failures`: "" and LAG for checks of the engine,
    and "database.table" for checks of tables. A check fails if `failing` has its key. If `only` has a table, the results include
    TABLES_CHECK, which fails if `failing` has any table.
    """
    found: list[AssetEvent] = [
        result_of(delta_key(destination, name), TABLE_CHECK, failing.get(name, "")) for name in tables if name in only
    ]
    if "" in only:
        found.append(result_of(engine_key(destination), ENGINE_CHECK, failing.get("", "")))
    if LAG in only:
        found.append(result_of(engine_key(destination), LAG_CHECK, failing.get(LAG, "")))
    if only - {"", LAG}:
        found.append(result_of_tables(engine_key(destination), failing))
    return found


def result_of_tables(key: dg.AssetKey, failing: Mapping[str, str]) -> dg.AssetCheckEvaluation:
    """Returns the result of TABLES_CHECK. Its state has the states of all tables in `failing`."""
    states = {why.partition(": ")[0] for name, why in failing.items() if name not in {"", LAG}}
    return result_of(key, TABLES_CHECK, stopped_sentence(failing), state=" and ".join(sorted(states)))


def result_of(key: dg.AssetKey, check: str, why: str, *, state: str = "") -> dg.AssetCheckEvaluation:
    """Returns the result of a check. `why` is empty if the check passes. Otherwise it is "STATE: reason", or, if `state` has the states,
    any sentence. A reason with several lines has the plan of a pending schema change.
    """
    first, _, reason = why.partition(": ")
    if state and first != state:
        reason = why
    state = state or first
    metadata: dict[str, dg.MetadataValue[Any]] = {
        "state": dg.MetadataValue.text(state or "RUNNING"),
        "reason": dg.MetadataValue.text(reason.partition("\n")[0] or why or "none"),
    }
    if "\n" in reason:
        metadata["plan"] = dg.MetadataValue.md(f"{reason}\n- {IN_DAGSTER}")
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check,
        passed=not why,
        severity=dg.AssetCheckSeverity.WARN if state in WARNING_STATES else dg.AssetCheckSeverity.ERROR,
        description=why.partition("\n")[0] or None,
        metadata=metadata,
    )


def due(
    destination: str,
    tables: Iterable[str],
    status: EngineSnapshot | None,
    failing: Mapping[str, str],
    *,
    published: PublishedObservations,
    now_seconds: float,
) -> tuple[list[AssetEvent], PublishedObservations]:
    """Returns the events to publish now, and the `PublishedObservations` to store afterwards.

    `tables` are those with a check of their own. `failing` has the present failures (`failures`), and `published` is what was published
    before. If `status` is None, the engine did not start: all results except that of ENGINE_CHECK stay as they were published, and no
    observation is published.
    """
    known = {""} if status is None else {"", LAG, *tables, *failing}
    before = published.failing
    if status is None:
        failing = {**{name: why for name, why in (before or {}).items() if name}, **failing}
    changed = (
        known if before is None else {name for name in {*before, *failing} if before.get(name) != failing.get(name)}
    )
    minute_over = not 0 <= now_seconds - published.observed_at_seconds < OBSERVATION_SECONDS
    events = checks(destination, tables, failing, only=changed | set(failing) if minute_over else changed)
    now_published = dataclasses.replace(published, failing=failing)
    if not minute_over:
        return events, now_published
    now_published = dataclasses.replace(now_published, observed_at_seconds=now_seconds)
    if status is None:
        return events, now_published
    return [observation(destination, status), *events], now_published
