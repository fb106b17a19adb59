"""Reads what ticks need from Dagster's run storage: the runs of a batch, why the newest one failed, and the open runs. Can also end a run.
No other module reads the run storage for merges.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.storage.dagster_run import RunRecord as StoredRun
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG, RUN_KEY_TAG

from sluice.orchestration.base.batch_reference import (
    BATCH_TAG,
    DRAIN,
    RUNS_TAG,
    BatchReference,
    changes_of,
    delivery_of,
    ledger_of,
)
from sluice.orchestration.base.open_runs import location_label, state_seconds
from sluice.orchestration.base.ports import TableFailure
from sluice.orchestration.base.run_stamp import stamp_of_runs
from sluice.orchestration.run.merge_run import BATCH_DAMAGED, FAILED_TABLES, SPARK_AWAY
from sluice.orchestration.sensor.backoff import Failed, FailedRuns, failed_in_a_row
from sluice.orchestration.sensor.giving_up import TRIES_MAX
from sluice.orchestration.sensor.settle import RULES, RunRecord

_log = logging.getLogger(__name__)

# A run with one of these statuses should have a process. `open_runs` returns these runs, so that a tick can end those without a process.
OPEN_STATUSES = [
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]

# The consecutive failures of merges are counted among this many of the newest runs, so the count is never larger than this.
RUNS_LOOKED_AT = 50
OTHER_RUNS_LOOKED_AT = 10  # Failures of a job other than the merge job are counted among this many of its newest runs.


class KeptInstance:
    """Keeps Dagster's instance open between ticks. Opening it takes 50 ms, because Dagster then checks all migrations of its database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instance: DagsterInstance | None = None

    def of(self, context: dg.SensorEvaluationContext) -> DagsterInstance:
        """Returns the instance for a tick. Opens it at the first call, and when the context refers to another instance. If this process
        itself executes the tick, returns the instance that the tick's context already has.
        """
        ref = context.instance_ref
        if ref is None:
            return context.instance
        with self._lock:
            if self._instance is None or self._instance.get_ref() != ref:
                self._instance = DagsterInstance.from_ref(ref)
            return self._instance


def label_of(context: dg.SensorEvaluationContext) -> str:
    """Returns the label of the sensor's code location, or "" if no code location evaluates the sensor."""
    origin = context.code_location_origin
    return f"{context.repository_name}@{origin.location_name}" if origin is not None else ""


def is_of(run: dg.DagsterRun, label: str) -> bool:
    """Returns whether a run belongs to the code location with this label. Other code locations may have jobs of the same names. Also
    returns True if `label` is empty, or if no code location launched the run.
    """
    return not label or location_label(run) in {"", label}


def newest_of(instance: DagsterInstance, job_name: str, label: str, limit: int) -> Sequence[StoredRun]:
    """Returns the newest `limit` runs of a job that belong to the code location with this label, the newest first.

    Queries the storage by the label only if one of the job's newest runs belongs to another code location, because a query by the label
    reads the tags of all runs. The result of this query has no runs that no code location launched.
    """
    newest = instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=limit)
    if all(is_of(each.dagster_run, label) for each in newest):
        return newest
    ours = dg.RunsFilter(job_name=job_name, tags={REPOSITORY_LABEL_TAG: label})
    return instance.get_run_records(ours, limit=limit)


@dataclasses.dataclass(frozen=True)
class Said:
    """What a failed run reported about its failure: a sentence and metadata (`merge_run.failure`)."""

    sentence: str
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tables(self) -> dict[str, TableFailure]:
        """The failures by "database.table". Empty if the run reported none."""
        value = getattr(self.metadata.get(FAILED_TABLES), "data", None)
        return {str(name): TableFailure(**why) for name, why in (value or {}).items()}


def _as_handed_out(newest: Sequence[StoredRun]) -> list[StoredRun]:
    """Returns those of the runs `newest` that merge batches, the newest first. Leaves out runs that somebody executed again in Dagster's UI
    after a later delivery was handed out. Such a run merges nothing, so its status says nothing about its delivery.
    """
    kept = list[StoredRun]()
    batches = list[str]()
    for each in reversed(newest):
        batch = each.dagster_run.tags.get(BATCH_TAG, "")
        if batch and batch not in batches[:-1]:
            kept.append(each)
            batches += [batch] if batch not in batches else []
    return kept[::-1]


def _ends(newest: Sequence[StoredRun], delivery: str) -> list[tuple[str, DagsterRunStatus]]:
    """Returns the delivery and the status of each run, newest first, so that the caller can count the consecutive failures up to
    `delivery`.

    A draining run changes its tags when it takes another batch, but keeps its run key, which names its first batch. If the tags name
    another batch than the run key, the run has merged its first batch successfully, so failures of older runs do not count. The list ends
    at such a run, unless the run is newer than all runs of `delivery`.
    """
    ends, found = [], False
    for run in (each.dagster_run for each in newest):
        tags = run.tags
        ends.append((delivery_of(tags), run.status))
        found = found or delivery_of(tags) == delivery
        if found and tags.get(RUN_KEY_TAG, tags.get(BATCH_TAG)) != tags.get(BATCH_TAG):
            break
    return ends


class RunStore:
    """Reads and ends the runs of one destination's merge job. `label` is that of the destination's code location (`label_of`). `ledger`
    returns the id of the destination's ledger.
    """

    def __init__(
        self, instance: DagsterInstance, job_name: str, label: str = "", ledger: Callable[[], str] = str
    ) -> None:
        self._instance = instance
        self._job_name = job_name
        self._label = label
        self._ledger = functools.cache(ledger)
        # The result of `stamp_of_runs` at the last query, if that query found no open run. Otherwise None.
        self._none_open_at: object = None

    def of_batch(self, reference: BatchReference) -> list[RunRecord]:
        """Returns all runs of the merge job whose tags name exactly this delivery. Ignores runs of other jobs, because the success of such
        a run must not ack a batch, even if the run has the same tags.
        """
        records = self._instance.get_run_records(
            dg.RunsFilter(job_name=self._job_name, tags={BATCH_TAG: reference.run_key})
        )
        return [self._fact(record) for record in records]

    def moved_on(self, reference: BatchReference) -> str:
        """Returns the id of a run that has settled this delivery and whose tags name a later batch now, or "". Only a draining run changes
        its tags. Called if the ledger has the batch in flight and no run has its tags, for example after the ledger was restored from an
        older copy. Dagster starts no second run for the same run key, so the batch then needs another delivery number.
        """
        records = self._instance.get_run_records(
            dg.RunsFilter(job_name=self._job_name, tags={RUN_KEY_TAG: reference.run_key})
        )
        runs = (each.dagster_run for each in records)
        return next((run.run_id for run in runs if run.tags.get(BATCH_TAG) != reference.run_key), "")

    def failed(self, reference: BatchReference, run: RunRecord) -> Failed:
        """Returns the failure of a run of the batch, with the number of consecutive failed deliveries."""
        newest = _as_handed_out(newest_of(self._instance, self._job_name, self._label, RUNS_LOOKED_AT))
        ends = _ends(newest, str(reference.delivery))
        said = self._what_failed(run.run_id)
        return Failed(
            in_a_row=failed_in_a_row(str(reference.delivery), ends),
            ago_seconds=run.state_seconds,
            away=SPARK_AWAY in said.metadata,
            reason=said.sentence,
            damaged=BATCH_DAMAGED in said.metadata,
            tables=self._failed_tables(reference, newest),
        )

    def _failed_tables(self, reference: BatchReference, newest: Sequence[StoredRun]) -> list[dict[str, TableFailure]]:
        """Returns the failed tables that each failed run of the batch reported, over all deliveries, newest first. Considers at most the
        newest TRIES_MAX runs of the batch, and ends at a run that did not fail.

        `newest` are the destination's newest runs. They include the newest runs of the batch, because the next batch is handed out only
        after this batch is settled.
        """
        changes = changes_of(reference.to_tags())
        runs = [each.dagster_run for each in newest if changes_of(each.dagster_run.tags) == changes][:TRIES_MAX]
        failed = itertools.takewhile(lambda run: run.status == DagsterRunStatus.FAILURE, runs)
        return [self._what_failed(run.run_id).tables for run in failed]

    def _what_failed(self, run_id: str) -> Said:
        """Returns the sentence and the metadata that the run reported. If the run reported none, returns Dagster's sentence, or a sentence
        that the run failed without a message.
        """
        for kind in (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE):
            for record in self._instance.get_records_for_run(run_id, of_type=kind, limit=1).records:
                event = record.event_log_entry.dagster_event
                data = event.step_failure_data.user_failure_data if event and event.is_step_failure else None
                if data is not None:
                    return Said(data.description or run_id, data.metadata)
                return Said(record.event_log_entry.user_message or (event.message if event else "") or run_id)
        return Said(f"run {run_id[:8]} failed without a message")

    def failed_in_a_row(
        self, job_name: str, concerns: Callable[[Mapping[str, Any]], bool], at_least: int
    ) -> FailedRuns | None:
        """Returns the newest consecutive failed runs of another job of the destination, or None if there are fewer than `at_least`.

        A run that succeeded, or that a person ended, ends the sequence. Runs that have not ended are ignored. `concerns` selects runs by
        their config.
        """
        newest = newest_of(self._instance, job_name, self._label, OTHER_RUNS_LOOKED_AT)
        ended = [
            each.dagster_run
            for each in newest
            if each.dagster_run.is_finished and concerns(each.dagster_run.run_config)
        ]
        failed = list(itertools.takewhile(lambda run: run.status == DagsterRunStatus.FAILURE, ended))
        if len(failed) < at_least:
            return None
        reason = self._what_failed(failed[0].run_id).sentence
        return FailedRuns(in_a_row=len(failed), run_id=failed[0].run_id, reason=reason)

    def open_runs(self) -> list[RunRecord]:
        """Returns every run of the destination that should have a process, whatever its batch. If the code location was renamed, the result
        includes runs of the location with the former name. Such a run is recognized by its batch, which belongs to the destination's
        ledger.

        The query filters only by status, and this function filters the result by job. Few runs are open, but a query by job or tag would
        scan all runs in the storage. If the last query found no open run, and the storage has not changed since, the storage is not queried
        again.
        """
        stamp = stamp_of_runs(self._instance)
        if stamp is not None and stamp == self._none_open_at:
            return []
        records = self._instance.get_run_records(dg.RunsFilter(statuses=OPEN_STATUSES))
        self._none_open_at = None if records else stamp
        runs = ((each, each.dagster_run) for each in records if each.dagster_run.job_name == self._job_name)
        return [
            self._fact(each)
            for each, run in runs
            if is_of(run, self._label) or (ledger_of(run.tags) or None) == self._ledger()
        ]

    def draining(self) -> list[RunRecord]:
        """Returns the open draining runs."""
        return [run for run in self.open_runs() if run.drains]

    def end(self, run_id: str, reason: str) -> None:
        """Marks a run as FAILED and requests that its process stops. Does nothing if the run has already ended. If the process does not
        stop, it can change nothing, because the run's delivery is rolled back and never handed out again.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        if run.status in OPEN_STATUSES:
            self._request_stop(run_id)
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(
                run, message=f"Sluice ended this run: {reason}. The run's batch is handed out again."
            )

    def _request_stop(self, run_id: str) -> None:
        try:
            self._instance.run_launcher.terminate(run_id)
        # The error is only logged. It usually means that the code server has ended, and the processes of its runs with it.
        except Exception as error:
            _log.warning("the request to stop the process of run %s failed: %s", run_id, type(error).__name__)

    def _fact(self, record: StoredRun) -> RunRecord:
        run = record.dagster_run
        seconds = silent_seconds = state_seconds(record)
        limit = RULES[run.status].silent_seconds_max
        # Querying the event log is expensive, so it is queried only if the run has had its status for longer than it may be silent.
        if limit is not None and seconds > limit:
            silent_seconds = self._silent_seconds(run.run_id, seconds)
        return RunRecord(
            run_id=run.run_id,
            status=run.status,
            state_seconds=seconds,
            silent_seconds=silent_seconds,
            drains=run.tags.get(RUNS_TAG) == DRAIN,
        )

    def _silent_seconds(self, run_id: str, seconds: float) -> float:
        newest: Sequence[dg.EventLogEntry] = [
            entry.event_log_entry
            for entry in self._instance.get_records_for_run(run_id, limit=1, ascending=False).records
        ]
        return min([seconds, *(max(0.0, time.time() - entry.timestamp) for entry in newest)])
