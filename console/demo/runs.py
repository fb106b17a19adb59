"""Reads the runs of a demo from Dagster's storage, and the number of merged batches from the lake, for the live view and the summary."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from dagster import DagsterInstance, RunsFilter
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.consistent_snapshot.find import consistent_snapshots_path
from sluice.orchestration.base.batch_reference import DESTINATION_TAG


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A summary of the runs since this start of the demo. `runs` is the number of all these runs, including those that have not ended.
    `batches` is the number of batches that these runs merged. `last` describes the newest run, or says that there is none yet.
    """

    runs: int
    batches: int
    last: str


class RunLog:
    """Reads the runs of one destination that were created at or after `since`, in seconds since 1970."""

    def __init__(self, dagster_home: Path, lake: str, destination: str, since: float) -> None:
        self._instance = DagsterInstance.from_config(str(dagster_home))
        self._destination, self._since = destination, since
        self._consistent_snapshots = consistent_snapshots_path(lake, destination)

    def read(self) -> RunSummary:
        records = [
            record
            for record in self._instance.get_run_records(RunsFilter(tags={DESTINATION_TAG: self._destination}))
            if record.create_timestamp.timestamp() >= self._since
        ]
        last = "none yet"
        if records:
            newest = records[0]
            seconds = (newest.end_time or time.time()) - newest.create_timestamp.timestamp()
            last = f"{newest.dagster_run.run_id[:8]} {newest.dagster_run.status.value.lower()} ({seconds:.0f} s)"
        return RunSummary(len(records), self._batches(), last)

    def _batches(self) -> int:
        """Returns the number of batches that were merged since this start of the demo. Counts the consistent snapshots in the lake, because
        a run writes one after the last table of each batch. The number of runs is not used, because a draining run merges many batches.
        """
        try:
            rows = pa.table(DeltaTable(self._consistent_snapshots).scan(columns=["order_key", "published_at"]))
        except TableNotFoundError:
            return 0
        since = dt.datetime.fromtimestamp(self._since, dt.UTC)
        ours: Any = pc.greater_equal(rows["published_at"], pa.scalar(since, rows["published_at"].type))
        return len(rows.filter(ours)["order_key"].unique())
