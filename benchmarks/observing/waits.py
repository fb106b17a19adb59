"""Splits the time between a change's commit in MySQL and its ack into parts, for `bench e2e` and `bench wide`.

This module reads only public records. The ledger shows when a batch was handed out, staged, taken and settled. Dagster's storage has the
times of its run. Each commit in a Delta log names its delivery.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import dagster as dg
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks.observing.sampler import Sampler
from sluice.cdc_engine.destination_files import read_ledger, run_lock_held
from sluice.cdc_engine.errors import SluiceError
from sluice.console.demo.lake import Marked, percentile
from sluice.orchestration.base.batch_reference import delivery_of
from sluice.spark_jobs.tables.commit_record import read_commit

LOOK_SECONDS = 0.02
RUNS_LOOKED_AT = 1000
# By the name of a part: the field of `DeliveryTimes` with the time at which the part ends. `shown` is the time of the commit with the
# observed change.
PARTS = {
    "wait_for_batch": "handed_out",
    "staging": "staged",
    "request": "requested",
    "queue": "dequeued",
    "start": "started",
    "take": "taken",
    "first_commit": "first_commit",
    "shown": "shown",
    "last_commit": "last_commit",
    "settling": "settled",
}


@dataclasses.dataclass(kw_only=True)
class DeliveryTimes:
    """The times of one delivery, in seconds since 1970, or 0 if they were not observed. A draining run is requested once for many
    deliveries. So only its first delivery has `requested`, `dequeued` and `started`.
    """

    handed_out: float = 0.0
    staged: float = 0.0
    requested: float = 0.0
    dequeued: float = 0.0
    started: float = 0.0
    taken: float = 0.0
    first_commit: float = 0.0
    shown: float = 0.0
    last_commit: float = 0.0
    settled: float = 0.0

    def parts(self, sent: float) -> dict[str, float]:
        """Returns the seconds of each part for a change that was committed at `sent`. A part that ended before the previous part has 0
        seconds.
        """
        found, reached = dict[str, float](), sent
        for name, field in PARTS.items():
            until = max(reached, getattr(self, field))
            found[name], reached = until - reached, until
        return found


class BatchWatch(Sampler):
    """Observes the deliveries of a destination until the block ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(LOOK_SECONDS)
        self._directory = directory
        self._head = 0
        self.deliveries: dict[int, DeliveryTimes] = {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._sample()  # A batch may have been settled after the last sample, so one more sample is taken.

    def _sample(self) -> None:
        with contextlib.suppress(SluiceError):
            self._look()

    def _look(self) -> None:
        now, batch = time.time(), read_ledger(self._directory).head
        delivery = batch.delivery if batch else 0
        if self._head not in {0, delivery}:
            self.deliveries[self._head].settled = now
        self._head = delivery
        if batch is None:
            return
        times = self.deliveries.setdefault(delivery, DeliveryTimes(handed_out=now))
        if batch.path and not times.staged:
            times.staged = now
        if times.staged and not times.taken and not batch.appendable and run_lock_held(self._directory):
            times.taken = now

    def add_runs(self, home: Path) -> None:
        """Adds the times of the runs, from Dagster's storage in `home`."""
        with dg.DagsterInstance.from_config(str(home)) as instance:
            for record in instance.get_run_records(limit=RUNS_LOOKED_AT):
                delivery = delivery_of(record.dagster_run.tags)
                times = self.deliveries.get(int(delivery)) if delivery else None
                stats = instance.get_run_stats(record.dagster_run.run_id) if times else None
                # The tags of a draining run name its last batch, but its start belongs to its first batch.
                if times and stats and (stats.start_time or 0.0) >= times.handed_out:
                    times.requested = record.create_timestamp.timestamp()
                    times.dequeued, times.started = stats.launch_time or 0.0, stats.start_time or 0.0

    def add_commits(self, tables: Iterable[Path]) -> None:
        """Adds the times of each delivery's first and last commit in the tables."""
        for table in tables:
            for delivery, at in commit_times(table):
                times = self.deliveries.get(delivery)
                if times:
                    times.first_commit = min(times.first_commit or at, at)
                    times.last_commit = times.shown = max(times.last_commit, at)

    def parts(self, markers: Sequence[Marked]) -> list[dict[str, float]]:
        """Returns the parts for each marker whose delivery was observed. The parts up to `shown` add up to the marker's freshness."""
        found = []
        for each in markers:
            times = self.deliveries.get(each.delivery)
            if times is not None and times.taken:
                found.append(dataclasses.replace(times, shown=each.shown).parts(each.sent))
        return found


def commit_times(table: Path) -> list[tuple[int, float]]:
    """Returns (delivery, time in seconds since 1970) of each commit of a batch in a table."""
    try:
        commits = [read_commit(commit) for commit in DeltaTable(str(table)).history()]
    except TableNotFoundError:
        return []
    log = table / "_delta_log"
    return [(each.delivery, (log / f"{each.version:020}.json").stat().st_mtime) for each in commits if each.delivery]


def medians(parts: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Returns the median of each part."""
    return {f"{name}_p50_s": percentile(sorted(part[name] for part in parts), 0.5) for name in PARTS}
