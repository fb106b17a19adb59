"""What Dagster recorded of the demo's runs; read from its storage by the live view and the summary."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from orchestration.batch_reference import BATCH_TAG, DESTINATION_TAG


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """`runs`: ended well or not. `batches`: different hand-outs that ended in SUCCESS. `last`: the newest run, in words."""

    runs: int
    batches: int
    last: str


class RunLog:
    """Runs of one destination that were created at or after `since` (seconds since 1970)."""

    def __init__(self, dagster_home: Path, destination: str, since: float) -> None:
        self._instance = DagsterInstance.from_config(str(dagster_home))
        self._destination, self._since = destination, since

    def read(self) -> RunSummary:
        records = [
            record
            for record in self._instance.get_run_records(RunsFilter(tags={DESTINATION_TAG: self._destination}))
            if record.create_timestamp.timestamp() >= self._since
        ]
        ended = [record for record in records if record.dagster_run.is_finished]
        merged = {
            record.dagster_run.tags.get(BATCH_TAG, record.dagster_run.run_id)
            for record in ended
            if record.dagster_run.status == DagsterRunStatus.SUCCESS
        }
        last = "none yet"
        if records:
            newest = records[0]
            seconds = (newest.end_time or time.time()) - newest.create_timestamp.timestamp()
            last = f"{newest.dagster_run.run_id[:8]} {newest.dagster_run.status.value.lower()} ({seconds:.0f} s)"
        return RunSummary(len(ended), len(merged), last)
