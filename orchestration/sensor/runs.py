"""Dagster's run storage, as settling needs it: the runs of a batch, why the newest failed, the runs that are still open, and ending one.

The only reader of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.storage.dagster_run import RunRecord as StoredRun
from dagster._core.storage.tags import RUN_KEY_TAG

from orchestration.batch_reference import (
    BATCH,
    BATCH_TAG,
    DELIVERY_TAG,
    DRAIN,
    END_TAG,
    EPOCH_TAG,
    LEDGER_TAG,
    RUNS_TAG,
    BatchReference,
)
from orchestration.ports import TableFailure
from orchestration.run.merge_run import BATCH_DAMAGED, FAILED_TABLES, SPARK_AWAY
from orchestration.sensor.backoff import Failed, failed_in_a_row
from orchestration.sensor.failing_runs import FailedRuns
from orchestration.sensor.giving_up import TRIES_MAX
from orchestration.sensor.settle import RULES, RunRecord

_log = logging.getLogger(__name__)

# Those that have, or should have, a process.
OPEN_STATUSES = [
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]

RUNS_LOOKED_AT = 50  # of the newest, to count failures in a row
OTHER_RUNS_LOOKED_AT = 10  # of the newest of a job that does not merge


class KeptInstance:
    """Dagster's instance, kept from tick to tick: to open one anew looks at all migrations of its database, for 50 ms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instance: DagsterInstance | None = None

    def of(self, context: dg.SensorEvaluationContext) -> DagsterInstance:
        """The one that the tick is of. Of a tick that was asked for in this process: the one that it brings."""
        ref = context.instance_ref
        if ref is None:
            return context.instance
        with self._lock:
            if self._instance is None or self._instance.get_ref() != ref:
                self._instance = DagsterInstance.from_ref(ref)
            return self._instance


@dataclasses.dataclass(frozen=True)
class Said:
    """What a failed run says of itself (`merge_run.failure`)."""

    sentence: str
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tables(self) -> dict[str, TableFailure]:
        """ "database.table" → why it failed; empty where the run does not say."""
        value = getattr(self.metadata.get(FAILED_TABLES), "data", None)
        return {str(name): TableFailure(**why) for name, why in (value or {}).items()}


def _ends(newest: Sequence[StoredRun], delivery: str) -> list[tuple[str, DagsterRunStatus]]:
    """Delivery and status of the runs, the newest first, down to one that failed with `delivery` after it had merged others.

    Such a run was made for another batch than it failed with: it drained, or its batch grew, which one does that never failed. What was
    before it ended well.
    """
    ends, found = [], False
    for run in (each.dagster_run for each in newest):
        tags = run.tags
        ends.append((tags.get(DELIVERY_TAG, ""), run.status))
        found = found or tags.get(DELIVERY_TAG, "") == delivery
        if found and tags.get(RUN_KEY_TAG, tags.get(BATCH_TAG)) != tags.get(BATCH_TAG):
            break
    return ends


class RunStore:
    """The runs of one destination, which are those of its merge job."""

    def __init__(self, instance: DagsterInstance, job_name: str) -> None:
        self._instance = instance
        self._job_name = job_name

    def of_batch(self, reference: BatchReference) -> list[RunRecord]:
        """All runs with the tags of this very delivery; of the merge job only, so that a tag set by hand elsewhere acks nothing."""
        records = self._instance.get_run_records(
            dg.RunsFilter(job_name=self._job_name, tags={BATCH_TAG: reference.run_key})
        )
        return [self._fact(record) for record in records]

    def failed(self, reference: BatchReference, run: RunRecord) -> Failed:
        """The failure of a run of the batch, and how many deliveries before it failed too."""
        newest = self._instance.get_run_records(dg.RunsFilter(job_name=self._job_name), limit=RUNS_LOOKED_AT)
        ends = _ends(newest, str(reference.delivery))
        said = self._what_failed(run.run_id)
        return Failed(
            in_a_row=failed_in_a_row(str(reference.delivery), ends),
            ago_seconds=run.state_seconds,
            away=SPARK_AWAY in said.metadata,
            reason=said.sentence,
            damaged=BATCH_DAMAGED in said.metadata,
            tables=self._failed_tables(reference),
        )

    def _failed_tables(self, reference: BatchReference) -> list[dict[str, TableFailure]]:
        """What the failed runs of the batch, over its deliveries, say of its tables: the newest first, up to one that did not fail."""
        tags = {name: value for name, value in reference.to_tags().items() if name in {LEDGER_TAG, EPOCH_TAG, END_TAG}}
        runs = self._instance.get_run_records(dg.RunsFilter(job_name=self._job_name, tags=tags), limit=TRIES_MAX)
        failed = itertools.takewhile(lambda run: run.dagster_run.status == DagsterRunStatus.FAILURE, runs)
        return [self._what_failed(run.dagster_run.run_id).tables for run in failed]

    def _what_failed(self, run_id: str) -> Said:
        """The run's own sentence and metadata; Dagster's sentence where the run could not say anything."""
        for kind in (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE):
            for record in self._instance.get_records_for_run(run_id, of_type=kind, limit=1).records:
                event = record.event_log_entry.dagster_event
                data = event.step_failure_data.user_failure_data if event and event.is_step_failure else None
                if data is not None:
                    return Said(data.description or run_id, data.metadata)
                return Said(record.event_log_entry.user_message or (event.message if event else "") or run_id)
        return Said(f"run {run_id[:8]} failed without a word")

    def failed_in_a_row(
        self, job_name: str, concerns: Callable[[Mapping[str, Any]], bool], at_least: int
    ) -> FailedRuns | None:
        """The newest runs of another job of the destination that failed one after the other; None where they are fewer than `at_least`.

        A run that succeeded, or was ended by hand, is a break; one that has not ended yet is none. `concerns`: by a run's config.
        """
        newest = self._instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=OTHER_RUNS_LOOKED_AT)
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
        """Every run of the destination that should have a process, whatever its batch.

        Asked for by status alone and picked here: few runs are open, while by tag or job the database would go through all there ever were.
        """
        records = self._instance.get_run_records(dg.RunsFilter(statuses=OPEN_STATUSES))
        return [self._fact(record) for record in records if record.dagster_run.job_name == self._job_name]

    def draining(self) -> list[RunRecord]:
        """The open runs that take what follows their own batch."""
        return [run for run in self.open_runs() if run.drains]

    def takers(self) -> list[RunRecord]:
        """The open runs that may be handed, or have been handed, another batch than their tags name."""
        return [run for run in self.open_runs() if run.drains or run.grows]

    def end(self, run_id: str, reason: str) -> None:
        """Marks a run FAILED and asks its process, if there is one, to stop. A run that has ended meanwhile stays as it is.

        The process may go on: nothing it does counts any more, because its delivery is rolled back and never handed out again.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        if run.status in OPEN_STATUSES:
            self._ask_to_stop(run_id)
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(
                run, message=f"Sluice ended this run: {reason}. Its batch is handed out again."
            )

    def _ask_to_stop(self, run_id: str) -> None:
        try:
            self._instance.run_launcher.terminate(run_id)
        except Exception as error:  # the launcher's server may be gone, which is why the run is ended
            _log.warning("the process of run %s could not be asked to stop: %s", run_id, type(error).__name__)

    def _fact(self, record: StoredRun) -> RunRecord:
        run = record.dagster_run
        state_seconds = max(0.0, time.time() - record.update_timestamp.timestamp())
        limit = RULES[run.status].silent_seconds_max
        silent_seconds = state_seconds
        if limit is not None and state_seconds > limit:  # only then is the look into the event log worth its price
            silent_seconds = self._silent_seconds(run.run_id, state_seconds)
        return RunRecord(
            run_id=run.run_id,
            status=run.status,
            state_seconds=state_seconds,
            silent_seconds=silent_seconds,
            drains=run.tags.get(RUNS_TAG) == DRAIN,
            grows=run.tags.get(RUNS_TAG) == BATCH,
        )

    def _silent_seconds(self, run_id: str, state_seconds: float) -> float:
        newest: Sequence[dg.EventLogEntry] = [
            entry.event_log_entry
            for entry in self._instance.get_records_for_run(run_id, limit=1, ascending=False).records
        ]
        return min([state_seconds, *(max(0.0, time.time() - entry.timestamp) for entry in newest)])
