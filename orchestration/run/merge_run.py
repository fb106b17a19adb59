"""What a run does: one batch at a time, by its reference; nothing is written unless the batch is the head of the line.

`assets` calls this inside a run. The run lock makes it the destination's only writer, also beside a run that Dagster gave up on but
whose process goes on. Under the lock the ledger is read: a batch that was acked or rolled back is refused, so an old run that is
executed again, or one that was started late, changes nothing. A run that is to merge several batches repeats `merge_one` for each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from cdc_engine.errors import SluiceError
from cdc_engine.table_meta.history.tables_file import TABLES_FILE
from cdc_engine.telemetry.otlp import is_wanted
from cdc_engine.telemetry.run_spans import RunSpans
from orchestration import failpoints
from orchestration.batch_reference import BatchReference
from orchestration.ports import (
    BatchDamagedError,
    MergeFailedError,
    MergeOrder,
    Ports,
    SparkAwayError,
    TableOutcome,
)

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from cdc_engine.contracts import OutstandingBatch

SPARK_AWAY = "spark_away"  # keys of a failure's metadata: no Spark answered
BATCH_DAMAGED = "batch_damaged"  # the staged files are to be staged anew
FAILED_TABLES = "failed_tables"  # "database.table" → why it failed, for reasons of its own
# How long a run waits for another one: its process may live though Dagster believes it dead, or it publishes the rows of a large table.
RUN_LOCK_SECONDS_MAX = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedTable:
    """A table of a merged batch: what was done, in which batch, and how far behind the source it then was."""

    outcome: TableOutcome
    batch: OutstandingBatch
    lag_seconds: float


def refuse_unless_head(reference: BatchReference, head: OutstandingBatch | None) -> OutstandingBatch:
    """The ledger's record of the batch. Raises MergeFailedError when another batch, or none, is the head of the line."""
    if head is not None and reference.names(head):
        return head
    now = "nothing" if head is None else f"delivery {head.delivery} up to {head.end}"
    raise MergeFailedError(
        f"{reference} was already acked or rolled back ({now} is handed out now); nothing was written"
    )


@contextlib.contextmanager
def only_writer(
    ports: Ports, config: SluiceConfig, destination: str, say: Callable[[str], None]
) -> Iterator[Callable[[], str]]:
    """Holds the run lock, and yields its fence (`ports.DestinationFiles.run_lock`). `say` is told that it is waited for.

    Raises MergeFailedError when another process keeps it.
    """
    directory = config.destination_dir(destination)
    with contextlib.ExitStack() as stack:
        try:
            if ports.files().run_lock_held(directory):
                say(
                    f"another run of {destination} merges or publishes; waiting for it, {RUN_LOCK_SECONDS_MAX:g} s at most"
                )
            lock = ports.files().run_lock(directory, RUN_LOCK_SECONDS_MAX)
            fence = stack.enter_context(lock)
        except SluiceError as error:
            raise MergeFailedError(f"{error}; nothing was written") from error
        yield fence


@contextlib.contextmanager
def only_writer_of_rows_read(
    ports: Ports, config: SluiceConfig, destination: str, say: Callable[[str], None]
) -> Iterator[Callable[[], str]]:
    """As `only_writer`, for a run that has read what it writes: refused too where conf/, which may hide rows by now, has changed since."""
    with only_writer(ports, config, destination, say) as fence:
        if why := ports.conf_changed(destination):
            raise MergeFailedError(f"{why} since this run began and read; nothing was written: start it again")
        yield fence


def merge_one(
    ports: Ports,
    config: SluiceConfig,
    reference: BatchReference,
    say: Callable[[str], None],
    run: str = "",
) -> Iterator[MergedTable]:
    """Merges one batch, the caller holding the run lock; then yields its tables. Raises MergeFailedError after yielding what was done.

    `run`: the run's id, which the commits keep.
    """
    directory = config.destination_dir(reference.destination)
    try:
        head = refuse_unless_head(reference, ports.files().head_of_line(directory))
    except SluiceError as error:
        raise MergeFailedError(f"{error}; nothing was written") from error
    say(f"merging {reference}: {head.rows} rows, {head.bytes} bytes, tables {', '.join(head.tables) or 'none'}")
    failpoints.reach(failpoints.BEFORE_MERGE)
    merged: list[MergedTable] = []
    spans = RunSpans(directory / reference.path if is_wanted(config.telemetry) else None, reference.delivery, run)

    def done(outcome: TableOutcome) -> None:
        lag_seconds = max(0.0, time.time() - outcome.last_commit_time_us / 1e6)
        merged.append(MergedTable(outcome=outcome, batch=head, lag_seconds=lag_seconds))
        spans.merged(outcome.name, outcome.merge_ms, outcome.source_rows, outcome.way)
        failpoints.reach(failpoints.BETWEEN_TABLES)
        # Also news: the run is at work.
        say(f"{outcome.name}: merged {outcome.source_rows} rows in {outcome.merge_ms} ms")

    def refusal() -> str:
        try:
            refuse_unless_head(reference, ports.files().head_of_line(directory))
        except (MergeFailedError, SluiceError) as error:
            return str(error)
        return ""

    stored = config.meta_place(reference.destination).staged_url(reference.ledger, reference.path)
    if stored and not config.meta_place(reference.destination).is_apart and not (directory / TABLES_FILE).is_file():
        raise MergeFailedError(
            f"{directory} does not have {TABLES_FILE}: this host does not see the engine's folder, which with meta kind {config.meta.kind} "
            "has the records of snapshots, and nothing was written; use meta kind sql or zookeeper, or mount <data_dir>/engine here"
        )
    order = MergeOrder(
        config=config,
        destination=reference.destination,
        batch_dir=directory / reference.path,
        stored=stored,
        tables=head.tables,
        refusal=refusal,
        run=run,
    )
    try:
        ports.merge(order, done)
    except MergeFailedError as error:
        spans.ended(str(error))
        yield from merged
        raise
    spans.ended()
    failpoints.reach(failpoints.AFTER_MERGE)
    yield from merged


def failure(error: Exception) -> dg.Failure:
    """The run's end as one sentence. Dagster must not try again by itself: the batch is rolled back and comes under a new name.

    The metadata says what the sensor needs to know of it: that no Spark answered, that the files are damaged, which tables failed and why.
    """
    metadata: dict[str, Any] = {}
    if isinstance(error, SparkAwayError):
        metadata[SPARK_AWAY] = True
    if isinstance(error, BatchDamagedError):
        metadata[BATCH_DAMAGED] = True
    if isinstance(error, MergeFailedError) and error.tables:
        metadata[FAILED_TABLES] = dg.MetadataValue.json(
            {name: dataclasses.asdict(why) for name, why in error.tables.items()}
        )
    return dg.Failure(description=str(error), metadata=metadata or None, allow_retries=False)
