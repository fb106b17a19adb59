"""What a tick tells Dagster of an engine: observations to plot, and checks of what stands still. Pure; `tick` publishes it.

An observation is published once a minute at most: Dagster plots the newest hundred events. It always has the same numeric keys of the
same types, so each is one unbroken line. A check is published when its result changes, and once a minute while it fails.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from cdc_engine.limits import OBSERVATION_SECONDS
from cdc_engine.states import HEALED_BY_ROWS, way_out
from orchestration.sensor.chart import Point, chart, later
from orchestration.table_catalog import delta_key, engine_key

if TYPE_CHECKING:
    from orchestration.ports import EngineState

TABLE_CHECK = "flowing"  # on each Delta table: its changes are taken
TABLES_CHECK = "tables_flowing"  # on the engine: those of all tables are
ENGINE_CHECK = "running"  # on the engine: it reads the source
LAG_CHECK = "caught_up"  # on the engine: what it has not merged yet is not too old
LAG = ":lag"  # its key beside "" and "database.table"
BEHIND = "BEHIND"
HEALTHY_STATES = {"RUNNING", "STARTING", "STANDBY"}
TROUBLED = "TROUBLED"  # it reads, and still not all is well
RE_SNAPSHOT = "RE_SNAPSHOT"  # of a table that the lake has in an older state until its rows are re-read
WARNING_STATES = {"RECONNECTING", RE_SNAPSHOT}  # it goes on by itself: a warning, not an error

AssetEvent = dg.AssetObservation | dg.AssetCheckEvaluation | dg.AssetMaterialization


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """What was published when; the sensor's cursor, but for `points`. Only a memory against repetition: the truth is the engine's.

    `failing`: check → why, of checks whose newest result is a failure; None: nothing was ever published. `points`: of the last hour's
    observations, lag in seconds and rows a second; they stay out of the cursor, which Dagster shows to people.
    """

    observed_at_seconds: float = 0.0
    failing: Mapping[str, str] | None = None
    points: tuple[Point, ...] = ()

    def to_cursor(self) -> str:
        shown = {"observed_at_seconds": int(self.observed_at_seconds), "failing": self.failing}
        return json.dumps(shown, sort_keys=True)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Published:
        """Inverse of `to_cursor`; a cursor that is not one counts as nothing published, and is written anew."""
        try:
            record = json.loads(cursor or "{}")
            failing = record.get("failing")
            return cls(
                observed_at_seconds=float(record.get("observed_at_seconds", 0.0)),
                failing=None if failing is None else {str(key): str(why) for key, why in failing.items()},
            )
        except (ValueError, TypeError, AttributeError):
            return cls()


def observation(destination: str, status: EngineState, points: Sequence[Point] = ()) -> dg.AssetObservation:
    """Where the engine is and how fast, on the engine's asset. `points`: up to now, for the chart."""
    ring_bytes_max = max(1, int(status.ring_bytes_max))
    return dg.AssetObservation(
        asset_key=engine_key(destination),
        metadata={
            **({"chart": dg.MetadataValue.md(chart(points))} if points else {}),
            "lag_seconds": dg.MetadataValue.float(float(status.lag_seconds)),
            **_runway(status.runway_hours),
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


def _runway(hours: float | None) -> dict[str, dg.MetadataValue[Any]]:
    """A number is plotted; where the source keeps its binlog for ever, or has not said, there is none."""
    return {} if hours is None else {"runway_hours": dg.MetadataValue.float(float(hours))}


def stopped_sentence(failing: Mapping[str, str]) -> str:
    """Returns all tables that stand still, or an empty text. It begins with RE_SNAPSHOT where none has stopped."""
    tables = {name: why for name, why in sorted(failing.items()) if name not in {"", LAG}}
    told = "; ".join(f"{name}: {why}" for name, why in tables.items())
    none_stopped = bool(tables) and all(why.startswith(f"{RE_SNAPSHOT}: ") for why in tables.values())
    return f"{RE_SNAPSHOT}: {told}" if none_stopped else told


def behind(lag_seconds: float, lag_seconds_max: float) -> str:
    """Why the check of the lag fails, or empty. The sentence stays the same as the lag grows, so that it is news once."""
    if lag_seconds <= lag_seconds_max:
        return ""
    return (
        f"{BEHIND}: what the source committed more than {lag_seconds_max:g} s ago (lag_seconds_max) is not in the lake; the plot of "
        "lag_seconds shows for how long, the check `running` and the runs of the merge job why"
    )


def failures(destination: str, status: EngineState | None, lag_seconds_max: float = math.inf) -> dict[str, str]:
    """What stands still: "" → why the engine does, "database.table" → why the table does, LAG → that all is too late."""
    if status is None:
        return {}
    found = {
        (name := f"{table.database}.{table.table}"): why_stopped(destination, name, table.state, table.reason)
        for table in status.stopped_tables
    }
    if status.state not in HEALTHY_STATES:
        found[""] = f"{status.state}: {status.reason}" if status.reason else str(status.state)
    elif status.troubles:
        found[""] = f"{TROUBLED}: {'; '.join(status.troubles)}"
    if late := behind(status.lag_seconds, lag_seconds_max):
        found[LAG] = late
    return found


def why_stopped(destination: str, table: str, state: str, reason: str) -> str:
    """Why a "database.table" stands still, with the command where its rows are what it lacks."""
    how = f" ({way_out(state, destination, table)})" if state in HEALED_BY_ROWS else ""
    return f"{state}: {reason}{how}"


def checks(destination: str, tables: Iterable[str], failing: Mapping[str, str], *, only: set[str]) -> list[AssetEvent]:
    """The results of the checks in `only` ("" and LAG are the engine's own), failed where `failing` says so."""
    found: list[AssetEvent] = [
        result_of(delta_key(destination, name), TABLE_CHECK, failing.get(name, "")) for name in tables if name in only
    ]
    if "" in only:
        found.append(result_of(engine_key(destination), ENGINE_CHECK, failing.get("", "")))
    if LAG in only:
        found.append(result_of(engine_key(destination), LAG_CHECK, failing.get(LAG, "")))
    if only - {"", LAG}:
        found.append(result_of(engine_key(destination), TABLES_CHECK, stopped_sentence(failing)))
    return found


def result_of(key: dg.AssetKey, check: str, why: str) -> dg.AssetCheckEvaluation:
    """A check's result; `why` it fails, "STATE: reason", or empty. A reason of several lines is a plan that waits for a decision."""
    state, _, reason = why.partition(": ")
    metadata: dict[str, dg.MetadataValue[Any]] = {
        "state": dg.MetadataValue.text(state or "RUNNING"),
        "reason": dg.MetadataValue.text(reason.partition("\n")[0] or why or "none"),
    }
    if "\n" in reason:
        metadata["plan"] = dg.MetadataValue.md(reason)
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
    status: EngineState | None,
    failing: Mapping[str, str],
    *,
    published: Published,
    now_seconds: float,
) -> tuple[list[AssetEvent], Published]:
    """The events that are due, and what is published once they are.

    `tables`: those with a check of their own. `status` None: the engine did not start, so only its own check has a result.
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
    points = later(published.points, (round(float(status.lag_seconds), 1), round(float(status.rows_per_second), 1)))
    now_published = dataclasses.replace(now_published, points=points)
    return [observation(destination, status, points), *events], now_published
