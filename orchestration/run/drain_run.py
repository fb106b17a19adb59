"""Runs a draining run: one Dagster run that requests batch after batch from the engine and merges them. Each batch is settled and reported
separately. `assets` calls this module inside a run.

The run holds the run lock while it merges a batch, and releases the lock between batches, so that publications and backfills can take the
lock. The run's tags name its current batch (`BatchClaim`). So ticks can treat a draining run like a run that merges only this batch.
`drain_rules` lists the states in which the run can end.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import dagster as dg

from sluice.batch_manifest.file import ManifestError, from_record, to_record
from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import BatchNotFoundError, SluiceError
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import DRAIN, RUNS_TAG, BatchReference
from sluice.orchestration.base.ports import NO_ENGINE, MergeFailedError, Ports, RunEngine
from sluice.orchestration.run import drain_rules
from sluice.orchestration.run.merge_run import MergedTable, give_way, merge_one, only_writer, take

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig

_log = logging.getLogger(__name__)

# A request for the next batch waits at most this long in the engine. Between two requests the run checks whether it must end.
HAND_OUT_SECONDS = 2.0
# A request to an engine that does not answer is repeated for this many seconds. Then the run ends, and ticks settle its batch.
ANSWER_SECONDS_MAX = 3.0
POLL_SECONDS = 0.05
# While a draining run merges a batch, its log gets at most one sentence about merged tables in this many seconds.
NEWS_SECONDS = 60.0

Answer = TypeVar("Answer")


class BatchClaim(Protocol):
    def __call__(self, reference: BatchReference) -> str:
        """Writes the batch into the run's tags, and returns "". If the run may not take a batch, only returns the reason."""


def claim_of(instance: dg.DagsterInstance, run_id: str) -> BatchClaim:
    """Returns the function that writes a batch into the tags of a Dagster run. The function refuses a batch if the run's status is not
    STARTED.
    """

    def claim(reference: BatchReference) -> str:
        run = instance.get_run_by_id(run_id)
        if run is None or run.status != dg.DagsterRunStatus.STARTED:
            return f"Dagster shows this run as {run.status.value if run else 'removed'}"
        instance.add_run_tags(run_id, {**reference.to_tags(), RUNS_TAG: DRAIN})
        return ""

    return claim


class Unreported:
    """Stores what the run has to report about the tables of a batch, in Dagster's storage. If the run dies before the report, the next
    draining run reports the tables. If the run dies after the report and before `remove`, the tables are reported twice.
    """

    def __init__(self, instance: dg.DagsterInstance, destination: str) -> None:
        self._storage, self._key = instance.daemon_cursor_storage, f"sluice/unreported/{destination}"

    def keep(self, tables: Sequence[MergedTable]) -> None:
        if tables:
            merged = [[to_record(each.outcome), each.lag_seconds] for each in tables]
            record = {"batch": to_record(tables[0].batch), "tables": merged}
            self._storage.set_cursor_values({self._key: json.dumps(record)})

    def remove(self) -> None:
        self._storage.set_cursor_values({self._key: ""})

    def left(self, say: Callable[[str], None]) -> list[MergedTable]:
        """Returns the tables that an earlier run stored and did not report. If the stored record cannot be read, for example because
        another version of Sluice wrote the record, logs a sentence with `say` and returns [].
        """
        text = self._storage.get_cursor_values({self._key}).get(self._key)
        if not text:
            return []
        try:
            record = json.loads(text)
            batch = from_record(OutstandingBatch, record["batch"])
            return [
                MergedTable(outcome=from_record(TableReport, outcome), batch=batch, lag_seconds=lag_seconds)
                for outcome, lag_seconds in record["tables"]
            ]
        except (ManifestError, KeyError, TypeError, ValueError) as error:
            say(
                "a run merged a batch and ended before it reported the merge, and Dagster does not show the merge, "
                f"because the stored report cannot be read: {error}"
            )
            return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrainRun:
    """The dependencies of a draining run. `claim` writes a batch into the run's tags (`BatchClaim`). `unreported` stores the merged tables
    until they are reported to Dagster. `run` is the run's id. `say` writes to the run's log in Dagster.
    """

    ports: Ports
    config: SluiceConfig
    claim: BatchClaim
    unreported: Unreported
    run: str
    say: Callable[[str], None]


def drain(work: DrainRun, first: BatchReference) -> Iterator[Sequence[MergedTable]]:
    """Merges the batch for which the run was started (`first`), and then further batches. Yields the tables of each batch after the batch
    is settled. Before the tables of the first batch, yields those that an earlier run merged and did not report.

    If a batch fails, yields the tables that were merged, and raises MergeFailedError. The run's tags then name the failed batch.
    """
    directory = work.config.destination_dir(first.destination)
    _claim(work, first)
    with work.ports.files().drain_lock(directory) as why_not_alone:
        yield from _all(work, directory, first, why_not_alone)


def _all(
    work: DrainRun, directory: Path, first: BatchReference, why_not_alone: Callable[[], str]
) -> Iterator[Sequence[MergedTable]]:
    begun, every_seconds = time.monotonic(), work.config.destinations[first.destination].drain.every_seconds
    # If `engine` finds no engine, the run ends as a success. So `engine` is called only after the first merge, because a run must not
    # succeed before it has merged its batch. Before the first merge, `take` finds the engine itself. If no engine answers `take`, the run
    # fails, unless the end of the batch is already fixed.
    engine = functools.cache(lambda: work.ports.run_engine(directory, first.destination))
    taken, reference, continues = begun, first, True
    while continues:
        tables: list[MergedTable] = []
        try:
            _merge(work, directory, reference, tables, is_first=reference is first)
        except MergeFailedError:
            yield tables
            raise
        if why := why_not_alone():
            # Another run drains, or the lock's store does not answer. Only the holder of the drain lock may write `unreported`, so this run
            # does not write it. A tick acks the batch after this run has succeeded.
            yield tables
            work.say(f"this run ends after {reference}: {why}")
            return
        if reference is first:
            yield work.unreported.left(work.say)
        work.unreported.keep(tables)
        continues = _settled(work, engine, reference)
        yield tables  # The tables are reported after the ack, because reports of many tables take seconds.
        work.unreported.remove()
        if continues:
            threading.Event().wait(max(0.0, taken + every_seconds - time.monotonic()))
            offered, taken = _next(work, engine(), first.destination, begun), time.monotonic()
            reference, continues = offered or reference, offered is not None


def _merge(
    work: DrainRun, directory: Path, reference: BatchReference, tables: list[MergedTable], *, is_first: bool
) -> None:
    """Merges one batch under the run lock, adds the merged tables to `tables`, and logs one line about the batch. If `is_first`, takes the
    batch before the merge. The engine hands out later batches with a fixed end, so these need not be taken.
    """
    give_way(work.ports, directory)
    begun = time.monotonic()
    with only_writer(work.ports, work.config, reference.destination, work.say):
        if is_first:
            take(work.ports, work.config, reference, work.say)
        for merged in merge_one(work.ports, work.config, reference, _news(work.say), run=work.run):
            tables.extend(merged)
    rows, seconds = sum(each.outcome.source_rows for each in tables), time.monotonic() - begun
    work.say(f"{reference}: {rows} rows of {len(tables)} tables merged in {seconds:.2f} s")


def _news(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that logs at most one sentence per minute. Each sentence costs Dagster a transaction. But a run must log
    something, because ticks end a run that is silent for long.
    """
    last = [time.monotonic()]

    def news(sentence: str) -> None:
        if time.monotonic() - last[0] < NEWS_SECONDS:
            _log.debug(sentence)
            return
        last[0] = time.monotonic()
        say(sentence)

    return news


def _settled(work: DrainRun, engine: Callable[[], RunEngine], reference: BatchReference) -> bool:
    """Acks the batch. Returns True if the run can continue, because this call or another process has settled the batch. Returns False if no
    engine answers, or if the engine refuses the ack.
    """
    try:
        _answered(lambda: engine().ack(reference))
    except BatchNotFoundError:
        work.say(
            f"{reference} was acked or rolled back by another process; a batch that was rolled back is handed "
            "out again, and merging it again applies no change twice"
        )
    except SluiceError as error:
        work.say(f"this run ends: {error}; the next tick settles what the run merged")
        return False
    return True


def _next(work: DrainRun, engine: RunEngine, destination: str, begun: float) -> BatchReference | None:
    """Waits for the next batch, writes it into the run's tags, and returns it. Returns None if the run must end: conf/ has changed, a
    limit of `drain_rules` is reached, the engine does not answer, or the engine's answer says that the run must end. Raises
    MergeFailedError if Dagster no longer shows the run as STARTED. `begun` is when the run began to drain, on the monotonic clock.
    """
    idle_since = time.monotonic()
    while True:
        now = time.monotonic()
        why = drain_rules.why_leave(now - begun, now - idle_since)
        try:
            why = why or work.ports.conf_changed(destination)
            offer = None if why else _answered(lambda: engine.hand_out(HAND_OUT_SECONDS))
            # If conf/ changed during the request, a run with the new conf/ must merge the batch.
            why = why or work.ports.conf_changed(destination)
        except SluiceError as error:
            offer, why = None, str(error)
        if offer is None or offer.leave or why:
            work.say(f"this run ends: {why or (offer.leave if offer else '')}")
            return None
        if offer.reference is not None:
            failpoints.reach(failpoints.BEFORE_CLAIM)
            _claim(work, offer.reference)
            return offer.reference


def _claim(work: DrainRun, reference: BatchReference) -> None:
    if given_up := work.claim(reference):
        raise MergeFailedError(f"{given_up}, so this run takes no further batch")


def _answered(call: Callable[[], Answer]) -> Answer:
    """Returns the result of `call`. If no engine answers (an error in NO_ENGINE), repeats the call for up to ANSWER_SECONDS_MAX, and then
    raises the error. Raises any other error at once.
    """
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            return call()
        except NO_ENGINE:
            if time.monotonic() >= deadline:
                raise
        threading.Event().wait(POLL_SECONDS)
