"""Defines the asset checks of a destination that report stopped tables and engines. The sensor publishes their results when they change.

A person can also execute the checks in Dagster's UI. The checks then read the files that the engine writes, and return the same results.
The checks never start an engine.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import ended
from sluice.cdc_engine.status_file import STATUS_FILE
from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.base.shown_tables import shown_tables
from sluice.orchestration.base.table_catalog import checkable, defined_tables, delta_key, engine_key, foreign_keys
from sluice.orchestration.checks.observations import (
    ENGINE_CHECK,
    HEALTHY_STATES,
    LAG,
    LAG_CHECK,
    RE_SNAPSHOT,
    TABLE_CHECK,
    TABLES_CHECK,
    TROUBLED,
    behind,
    result_of,
    result_of_tables,
    why_engine_stopped,
    why_stopped,
)

QUARANTINE_CHECK = "all_decoded"  # The check of a Delta table whose undecodable values go to quarantine.
# If the status file is older than this, no engine runs: a running engine writes the file more often.
STATUS_SECONDS_MAX = 60.0
LOOK_SECONDS = 2.0  # One run reads status.json at most once in this many seconds.


def destination_checks(
    config: SluiceConfig, destination: str, tables: tuple[TableVersion, ...]
) -> dg.AssetChecksDefinition:
    """Returns the asset checks of a destination. Each table has one check, except tables from whose names Dagster cannot build the name of
    a check. If a table's undecodable values go to quarantine, the table has a second check, which passes while its quarantine is empty. The
    engine has three checks: it reads the source, its lag is within the limit, and no table is stopped or has a re-snapshot in progress.
    """
    names = checkable(destination, [table.name for table in tables])
    engine = engine_key(destination)
    table_of = {delta_key(destination, name): name for name in names}
    keys = foreign_keys(config, destination)
    late_after = config.destinations[destination].lag_seconds_max
    specs = [
        dg.AssetCheckSpec(ENGINE_CHECK, asset=engine, description="The engine reads the source."),
        dg.AssetCheckSpec(
            TABLES_CHECK, asset=engine, description="No table has stopped, and no re-snapshot is in progress."
        ),
        dg.AssetCheckSpec(
            LAG_CHECK,
            asset=engine,
            description=f"Changes that the source committed more than {late_after:g} s ago (lag_seconds_max) are in the lake.",
        ),
        *(dg.AssetCheckSpec(TABLE_CHECK, asset=key, description=_taken(keys.get(table_of[key]))) for key in table_of),
        *(
            dg.AssetCheckSpec(QUARANTINE_CHECK, asset=key, description="All values could be decoded.")
            for key in table_of
            if quarantines(config, destination, table_of[key])
        ),
    ]

    @dg.multi_asset_check(name=f"check_{destination}", specs=specs, can_subset=True)
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        directory = config.destination_dir(destination)
        failing = {**older_tables(directory), **read_failures(directory, time.time(), late_after)}
        for key in context.selected_asset_check_keys:
            if key.name == QUARANTINE_CHECK:
                yield as_result(quarantine_evaluation(config, destination, table_of[key.asset_key]))
                continue
            if key.name == TABLES_CHECK:
                yield as_result(result_of_tables(key.asset_key, failing))
                continue
            reasons = {ENGINE_CHECK: failing.get("", ""), LAG_CHECK: failing.get(LAG, "")}
            why = reasons[key.name] if key.name in reasons else failing.get(table_of[key.asset_key], "")
            yield as_result(result_of(key.asset_key, key.name, why))

    return check


def as_result(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    """Converts a check evaluation, which is an event, to the result that a check function returns."""
    return dg.AssetCheckResult(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        severity=evaluation.severity,
        description=evaluation.description,
        metadata=dict(evaluation.metadata),
    )


def quarantines(config: SluiceConfig, destination: str, table: str) -> bool:
    """Returns whether undecodable values of a "database.table" go to quarantine."""
    return config.destinations[destination].table(*table.split(".", 1)).undecodable == "quarantine"


def quarantine_evaluation(config: SluiceConfig, destination: str, table: str) -> dg.AssetCheckEvaluation:
    """Returns the result of the quarantine check, with the number of values in the quarantine table. `sluice quarantine replay` writes
    these values into the lake. Raises dg.Failure, with a message for users, if the table cannot be read.
    """
    from sluice.orchestration.base.lake_settings import lake_error_line, storage_options  # noqa: PLC0415  not needed by ticks
    from sluice.spark_jobs.errors import TableError  # noqa: PLC0415
    from sluice.spark_jobs.quarantine.count import quarantined_by_column  # noqa: PLC0415

    try:
        path, options = config.quarantine_path(destination), storage_options(config.storage_options)
        found = quarantined_by_column(path, table, options)
    except (TableError, MergeFailedError) as error:
        raise dg.Failure(description=lake_error_line(config, error), allow_retries=False) from None
    values = sum(found.values())
    columns = ", ".join(f"{name} ({count})" for name, count in sorted(found.items()))
    why = (
        f"{values} values could not be decoded and are NULL in the lake: {columns}; `sluice quarantine list "
        f"{destination}` shows why. When Sluice can decode the values, `sluice quarantine replay {destination}` writes "
        "them into the lake"
    )
    return dg.AssetCheckEvaluation(
        asset_key=delta_key(destination, table),
        check_name=QUARANTINE_CHECK,
        passed=not values,
        severity=dg.AssetCheckSeverity.WARN,
        description=why if values else None,
        metadata={
            "quarantined_values": dg.MetadataValue.int(values),
            "columns": dg.MetadataValue.text(columns or "none"),
        },
    )


def _taken(sentences: list[str] | None) -> str:
    """Returns the description of a table's check, with a sentence about each foreign key that changes rows of the table without row
    events.
    """
    return " ".join(["The table's changes are merged.", *(f"{sentence}." for sentence in sentences or ())])


class FlowingTables:
    """Evaluates the check `flowing` for the tables that a run materializes. Each run has its own instance.

    Dagster shows "0 / 1 Passed" for a check whose last result is older than the last materialization of its table. Therefore each run that
    materializes a table also reports a passed check. Only the sensor reports failures, once a minute while they last. So if a run reports
    an outdated pass, the pass hides a failure for at most a minute. Runs report no failures, because the sensor would not replace a failure
    that the sensor itself has not seen.
    """

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._directory, self._destination = config.destination_dir(destination), destination
        own = shown_tables(config, destination).own(defined_tables(config, destination))
        self._names = frozenset(checkable(destination, [each.name for each in own]))
        self._failing, self._read_at = frozenset[str](), -math.inf

    def passed(self, table: str) -> list[dg.AssetCheckEvaluation]:
        """Returns a passed check for "database.table". Returns [] if the table has no check `flowing`, is stopped, or has a re-snapshot in
        progress.
        """
        if table not in self._names or table in self._failing_now():
            return []
        return [result_of(delta_key(self._destination, table), TABLE_CHECK, "")]

    def _failing_now(self) -> frozenset[str]:
        if time.monotonic() - self._read_at >= LOOK_SECONDS:
            failing = dict[str, str]()
            with contextlib.suppress(SluiceError):  # An error in a check must not fail a run that has merged.
                failing = older_tables(self._directory)
            failing |= read_failures(self._directory, time.time())
            self._failing, self._read_at = frozenset(failing), time.monotonic()
        return self._failing


def older_tables(directory: Path) -> dict[str, str]:
    """Returns each "database.table" whose re-snapshot is in progress, with the reason why its rows in the lake are older than the cursor.
    The values have the form "RE_SNAPSHOT: reason". Leaves out tables that are not in the lake yet. Raises MetaError if the records cannot
    be read.
    """
    being_read = [each for each in SnapshotRecords(directory).all() if each.is_open]
    in_lake = set(LakeTables(directory).names) if being_read else set()
    return {each.name: f"{RE_SNAPSHOT}: {each.lake_is_older}" for each in being_read if each.name in in_lake}


def read_failures(directory: Path, now_seconds: float, lag_seconds_max: float = math.inf) -> dict[str, str]:
    """Returns the failures that the engine's status.json reports. The key is "" for the engine, "database.table" for a stopped table, and
    LAG for a lag above `lag_seconds_max`. The value is "STATE: reason". If the file is missing, unreadable, or older than
    STATUS_SECONDS_MAX, the result has a failure of the engine.
    """
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
        unsaid_seconds = age_seconds if age_seconds > STATUS_SECONDS_MAX else 0.0
        late = behind(float(record["lag_seconds"]) + unsaid_seconds, lag_seconds_max)
    except FileNotFoundError:
        return {"": f"STOPPED: {path} does not exist: no engine has run yet; start the engine with `sluice up`"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"": f"UNKNOWN: {path} cannot be read: {type(error).__name__}: {error}"}
    stopped |= {LAG: late} if late else {}
    # The state of an ended engine is reported whatever the age of the file. For example, the file may be old after a failed start, because
    # no engine runs.
    if ended(state):
        return {**stopped, "": why_engine_stopped(directory.name, state, reason)}
    # Uses the absolute value, because the file's time is in the future if the clock was set back after the file was written.
    if abs(age_seconds) > STATUS_SECONDS_MAX:
        return {
            **stopped,
            "": f"STOPPED: no engine has written {path} for {age_seconds:.0f} s; start the engine with `sluice up`",
        }
    if state not in HEALTHY_STATES:
        return {**stopped, "": why_engine_stopped(directory.name, state, reason)}
    return {**stopped, "": f"{TROUBLED}: {'; '.join(troubles)}"} if troubles else stopped
