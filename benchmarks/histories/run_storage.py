"""Simulates the parts of Dagster that Sluice uses: the run storage that `RunStore` queries, and the daemon that creates runs from requests.

The daemon starts only one run per run key. The daemon searches all existing runs for the key, including failed runs. So a key can be used
again only after the storage was wiped.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus

from benchmarks.histories.faults import Clock, Trouble

RUN_KEY_TAG = "dagster/run_key"


@dataclasses.dataclass
class PlayedRun:
    """A run, as `DagsterInstance.get_run_by_id` returns it. `failure` is the failure that the run reported, with metadata."""

    run_id: str
    job_name: str
    tags: dict[str, str]
    config: Mapping[str, Any]
    status: DagsterRunStatus = DagsterRunStatus.QUEUED
    updated_at: float = 0.0
    failure: dg.Failure | None = None
    remote_job_origin: None = None  # No code location launched the run.

    @property
    def is_finished(self) -> bool:
        return self.status in {DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}


class PlayedInstance:
    """Replaces `DagsterInstance`."""

    def __init__(self, clock: Clock, trouble: Trouble) -> None:
        self._clock, self._trouble = clock, trouble
        self.runs: list[PlayedRun] = []
        self.made = 0

    # ── queries of RunStore ──

    def get_run_records(self, filters: dg.RunsFilter, limit: int | None = None) -> list[Any]:
        """Returns the records of runs that match the filter, newest first."""
        found: list[Any] = self._call(
            lambda: [self._record(run) for run in reversed(self.runs) if _meets(run, filters)][:limit]
        )
        return found

    def get_run_by_id(self, run_id: str) -> PlayedRun | None:
        return next((run for run in self.runs if run.run_id == run_id), None)

    def get_records_for_run(
        self,
        run_id: str,
        of_type: dg.DagsterEventType | None = None,
        limit: int | None = None,
        *,
        ascending: bool = True,
    ) -> Any:
        """Returns the failure event of a run's step, which is the only event in this storage. If `of_type` is None, returns an entry
        with the time of the run's newest event.
        """
        del limit, ascending
        run = self.get_run_by_id(run_id)
        if run is None:
            return SimpleNamespace(records=[])
        if of_type is None:
            return SimpleNamespace(records=[SimpleNamespace(event_log_entry=SimpleNamespace(timestamp=run.updated_at))])
        if of_type is not dg.DagsterEventType.STEP_FAILURE or run.failure is None:
            return SimpleNamespace(records=[])
        data = SimpleNamespace(user_failure_data=run.failure)
        event = SimpleNamespace(is_step_failure=True, step_failure_data=data, message="")
        entry = SimpleNamespace(dagster_event=event, user_message="")
        return SimpleNamespace(records=[SimpleNamespace(event_log_entry=entry)])

    def report_run_failed(self, run: PlayedRun, message: str) -> None:
        del message
        self._call(lambda: self.set_status(run, DagsterRunStatus.FAILURE))

    def add_run_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        def add() -> None:
            if run := self.get_run_by_id(run_id):
                # The dict is replaced and not changed, because production may have read the old dict, and must not see the change.
                run.tags = {**run.tags, **tags}

        self._call(add)

    @property
    def run_storage(self) -> None:
        """This instance has no storage whose stamp tells whether a run has changed."""
        return

    @property
    def run_launcher(self) -> Any:
        """A launcher that ignores requests to end a run. Here, all runs that are ended are stalled or dead, so they would not end."""
        return SimpleNamespace(terminate=lambda run_id: None)  # noqa: ARG005

    # ── the daemon and the runs ──

    def submit(self, request: dg.RunRequest, job_name: str) -> None:
        """Creates the run of a request. If a run with the key exists and was never queued, queues that run. Dagster's daemon does the same
        with the result of a sensor.
        """
        same = next((run for run in self.runs if run.tags.get(RUN_KEY_TAG) == request.run_key), None)
        if same is None:
            config = next(iter(request.run_config["ops"].values()))["config"]
            self.add(job_name, {**request.tags, RUN_KEY_TAG: str(request.run_key)}, config)
        elif same.status is DagsterRunStatus.NOT_STARTED:
            self.set_status(same, DagsterRunStatus.QUEUED)

    def add(self, job_name: str, tags: Mapping[str, str], config: Mapping[str, Any]) -> PlayedRun:
        self.made += 1
        run = PlayedRun(f"run-{self.made:06d}", job_name, dict(tags), config, updated_at=self._clock.time())
        self.runs.append(run)
        return run

    def set_status(self, run: PlayedRun, status: DagsterRunStatus, failure: dg.Failure | None = None) -> None:
        """Sets a run's status. Does nothing if the run has ended, or is no longer in the storage."""
        if run.is_finished or run not in self.runs:
            return
        run.status, run.updated_at, run.failure = status, self._clock.time(), failure

    def wipe(self) -> None:
        self.runs = []

    def _call(self, act: Any) -> Any:
        return self._trouble.reach("storage", act, lambda: RuntimeError("the run storage does not answer: played"))

    def _record(self, run: PlayedRun) -> Any:
        updated = dt.datetime.fromtimestamp(run.updated_at, dt.UTC)
        # Production gets a copy, so that it does not see later changes.
        return SimpleNamespace(dagster_run=dataclasses.replace(run), update_timestamp=updated)


def _meets(run: PlayedRun, filters: dg.RunsFilter) -> bool:
    if filters.job_name and run.job_name != filters.job_name:
        return False
    if filters.statuses and run.status not in filters.statuses:
        return False
    return all(run.tags.get(name) == value for name, value in (filters.tags or {}).items())
