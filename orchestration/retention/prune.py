"""Removes old runs and events from Dagster's storage, because Dagster removes only old ticks and keeps runs and events for ever. The job
that `retention.jobs` defines calls this module.

Each step looks at what the storage contains, so a run can continue the work of a killed run.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

from dagster import DagsterInstance
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage

from sluice.orchestration.base.ports import MergeFailedError
from sluice.orchestration.retention.rules import RunRetention, is_outdated
from sluice.orchestration.retention.space import give_back
from sluice.orchestration.retention.stored_events import StoredEvents
from sluice.orchestration.retention.stored_runs import StoredRuns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruned:
    """How much `prune` removed from Dagster's storage. `files` are SQLite's event files of runs. `snapshots` are stored definitions of jobs
    to which no run refers. `bytes_given_back` is the number of bytes by which SQLite's files shrank.
    """

    runs: int
    files: int
    events: int
    check_results: int
    snapshots: int
    bytes_given_back: int


def prune(
    instance: DagsterInstance,
    retention: RunRetention,
    *,
    label: str,
    destinations: Collection[str],
    clock: Callable[[], float] = time.time,
) -> Pruned:
    """Removes old runs and events. `label` is the tag with which Dagster marks the runs of this code location. Events without a run are
    removed only if they belong to assets of `destinations`. `clock` returns seconds since 1970. Raises MergeFailedError if the storage is
    not a SQL database.
    """
    run_storage, event_storage = instance.run_storage, instance.event_log_storage
    if not isinstance(run_storage, SqlRunStorage) or not isinstance(event_storage, SqlEventLogStorage):
        raise MergeFailedError(
            f"old runs stay, because Dagster's storage is {type(event_storage).__name__}, which is not an SQL database: set "
            '`dagster.prune` to "" in conf/sluice.yaml, and limit the size of the storage with its own tools'
        )
    now = clock()
    is_old = functools.partial(retention.is_old, now=now)
    runs = StoredRuns(run_storage, label)
    events = StoredEvents(event_storage, destinations, runs.existing)
    removed, oldest_kept = 0, runs.oldest_kept()
    for page in runs.ended():
        outdated = [each.run_id for each in page if is_outdated(each, retention, oldest_kept, now)]
        if outdated:
            for run_id in outdated:
                # This folder has the outputs of the run's steps.
                shutil.rmtree(Path(instance.storage_directory()) / run_id, ignore_errors=True)
            runs.remove(outdated)
        removed += len(outdated)
    return Pruned(
        runs=removed,
        files=events.remove_files(),
        events=events.remove_events(is_old) + events.remove_runless_copies(is_old),
        check_results=events.remove_check_results(is_old),
        snapshots=runs.remove_snapshots(),
        bytes_given_back=sum(give_back(file) for file in (runs.file, *events.files) if file),
    )
