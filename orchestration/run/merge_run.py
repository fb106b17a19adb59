"""Merges the batch that a reference names. Writes nothing if the batch is not the oldest one in flight, or if its end is not fixed.
`assets` calls this module inside a run.

The run lock makes the run the destination's only writer, even if the process of an earlier run continues after Dagster has ended that run.
Under the lock, the run takes the batch, reads the ledger, and refuses a batch that was acked or rolled back. So a run that is re-executed
or starts late changes nothing. A draining run calls `merge_one` for each batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.errors import BatchNotFoundError, SluiceError
from sluice.cdc_engine.table_meta.table_list.head import HEAD
from sluice.cdc_engine.telemetry.otlp import is_wanted
from sluice.cdc_engine.telemetry.run_spans import RunSpans
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import (
    BatchDamagedError,
    MergeFailedError,
    MergeOrder,
    Ports,
    SparkAwayError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.contracts import OutstandingBatch

# Metadata of the error that ends a run (`failure`). By this metadata, the sensor knows the cause.
SPARK_AWAY = "spark_away"  # True if Spark did not answer.
BATCH_DAMAGED = "batch_damaged"  # True if the staged files are damaged, so that the engine must stage them again.
FAILED_TABLES = "failed_tables"  # The reason for each "database.table" that failed.
# A run waits at most this long for the run lock, and then fails. The holder may be publishing a large table, or may be a process that
# continues although Dagster has ended its run.
RUN_LOCK_SECONDS_MAX = 600.0
# Before a run takes the run lock again, it waits while another process waits for the lock, but at most this long (`give_way`).
GIVE_WAY_SECONDS_MAX = 5.0
GIVE_WAY_LOOK_SECONDS = 0.05
# If no engine answers and the batch's end is not fixed, a run repeats its request to take the batch for this many seconds, and then fails.
# The time is enough for a restart of the engine process.
TAKE_SECONDS_MAX = 30.0
TAKE_PAUSE_SECONDS = 0.2
SENTENCES_SECONDS = 0.5  # The log of a run gets at most one entry about merged tables in this many seconds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedTable:
    """A table of a merged batch: the report of its merge, the batch, and its lag. `lag_seconds` is the age of the newest merged change at
    the end of the table's merge. The age counts from the commit of the change in the source.
    """

    outcome: TableReport
    batch: OutstandingBatch
    lag_seconds: float


class JoinedSentences:
    """Joins the sentences of half a second into one log entry, because Dagster stores each entry in a transaction and there may be many
    tables.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._lock = say, threading.Lock()
        self._waiting: list[str] = []
        self._said_at = time.monotonic()

    def say(self, sentence: str) -> None:
        with self._lock:
            self._waiting.append(sentence)
            due = time.monotonic() - self._said_at >= SENTENCES_SECONDS
        if due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            waiting, self._waiting, self._said_at = self._waiting, [], time.monotonic()
        if waiting:
            self._say("; ".join(waiting))


def refuse_unless_head(reference: BatchReference, head: OutstandingBatch | None) -> OutstandingBatch:
    """Returns `head`, the oldest batch in flight, if it is the delivery that `reference` identifies. Otherwise raises MergeFailedError.
    `head` is None if no batch is in flight.
    """
    if head is not None and reference.names(head):
        return head
    now = "nothing" if head is None else f"delivery {head.delivery} of batch {head.batch_id}"
    raise MergeFailedError(
        f"{reference} was already acked or rolled back, and the engine has handed out {now} since; this run "
        "wrote nothing, and no action is needed"
    )


def take(ports: Ports, config: SluiceConfig, reference: BatchReference, say: Callable[[str], None]) -> None:
    """Makes the engine append the changes that arrived while this run started, and then fix the end of the batch. If conf/ has changed
    since the run started, nothing is appended. The caller holds the run lock and has written nothing.

    If the request fails and the batch's end is already fixed, the batch is merged as it was staged. If its end is not fixed, repeats the
    request for TAKE_SECONDS_MAX. Then raises MergeFailedError, because the engine may still execute a request and fix another end. If the
    batch is no longer in flight, returns: `merge_one` then refuses the batch.
    """
    directory = config.destination_dir(reference.destination)
    head = _head(ports, directory, reference)
    failpoints.reach(failpoints.BEFORE_TAKE)
    deadline = time.monotonic() + TAKE_SECONDS_MAX
    engine = functools.cache(lambda: ports.run_engine(directory, reference.destination))
    while True:
        try:
            append = not ports.conf_changed(reference.destination)
            engine().take(reference, append=append)
        except BatchNotFoundError:
            # `merge_one` then refuses the batch, with a message that names the batch that is in flight now.
            return
        except SluiceError as error:
            if not head.appendable:
                say(f"{reference} is merged as it was staged, without newer changes: {error}")
                return
            if time.monotonic() >= deadline:
                raise MergeFailedError(
                    f"nothing was written: the engine did not fix the end of {reference} ({error}); Sluice "
                    "hands the batch out again by itself"
                ) from error
        else:
            return
        time.sleep(TAKE_PAUSE_SECONDS)


def _head(ports: Ports, directory: Path, reference: BatchReference) -> OutstandingBatch:
    try:
        return refuse_unless_head(reference, ports.files().head_of_line(directory))
    except SluiceError as error:
        raise MergeFailedError(f"{error}; nothing was written") from error


@contextlib.contextmanager
def only_writer(
    ports: Ports, config: SluiceConfig, destination: str, say: Callable[[str], None]
) -> Iterator[Callable[[], str]]:
    """Takes the run lock until the `with` block ends, and yields its fence: a function that returns why the run may no longer write, or "".
    If the lock is not free, logs a sentence with `say`. Raises MergeFailedError if another process holds the lock for longer than
    RUN_LOCK_SECONDS_MAX.
    """
    directory = config.destination_dir(destination)
    with contextlib.ExitStack() as stack:
        try:
            if ports.files().run_lock_held(directory):
                say(
                    f"another run of {destination} merges or publishes; this run waits for the end of that run, at most "
                    f"{RUN_LOCK_SECONDS_MAX:g} s"
                )
            lock = ports.files().run_lock(directory, RUN_LOCK_SECONDS_MAX)
            fence = stack.enter_context(lock)
        except SluiceError as error:
            raise MergeFailedError(f"{error}; nothing was written") from error
        yield fence


def give_way(ports: Ports, directory: Path) -> None:
    """Waits at most GIVE_WAY_SECONDS_MAX while another process waits for the run lock of a destination. A run that takes the lock several
    times, such as a draining run, calls this function each time before it takes the lock. So a waiting process gets the lock first.
    """
    deadline = time.monotonic() + GIVE_WAY_SECONDS_MAX
    while ports.files().run_lock_wanted(directory) and time.monotonic() < deadline:
        threading.Event().wait(GIVE_WAY_LOOK_SECONDS)


@contextlib.contextmanager
def only_writer_of_rows_read(
    ports: Ports, config: SluiceConfig, destination: str, say: Callable[[str], None]
) -> Iterator[Callable[[], str]]:
    """Takes the run lock until the `with` block ends, and yields its fence. A run uses this function if it has already read the rows that
    it will write. Raises MergeFailedError if conf/ has changed since the run began, because the new conf/ may exclude these rows.
    """
    with only_writer(ports, config, destination, say) as fence:
        if why := ports.conf_changed(destination):
            raise MergeFailedError(f"{why} since this run began to read; nothing was written: start the run again")
        yield fence


def merge_one(
    ports: Ports,
    config: SluiceConfig,
    reference: BatchReference,
    say: Callable[[str], None],
    run: str = "",
) -> Iterator[Sequence[MergedTable]]:
    """Merges one batch, and yields its tables when all of them are merged. The caller holds the run lock. `run` is the run's id, which the
    commits record. Writes nothing and raises MergeFailedError if the batch is not the oldest one in flight, if its end is not fixed, or if
    this host lacks the engine's folder. If the merge fails, yields the tables that were merged, and raises MergeFailedError.
    """
    directory = config.destination_dir(reference.destination)
    head = _head(ports, directory, reference)
    if head.appendable:
        raise MergeFailedError(
            f"the end of {reference} is not fixed, because no run has taken it; nothing was written. Sluice "
            "hands the batch out again by itself"
        )
    say(f"merging {reference}: {head.rows} rows, {head.bytes} bytes, tables {', '.join(head.tables) or 'none'}")
    failpoints.reach(failpoints.BEFORE_MERGE)
    merged: list[MergedTable] = []
    spans = RunSpans(directory / head.path if is_wanted() else None, reference.delivery, run)
    sentences = JoinedSentences(say)

    def done(outcome: TableReport) -> None:
        lag_seconds = max(0.0, time.time() - outcome.last_commit_time_us / 1e6)
        merged.append(MergedTable(outcome=outcome, batch=head, lag_seconds=lag_seconds))
        spans.merged(outcome.name, outcome.merge_ms, outcome.source_rows, outcome.way)
        failpoints.reach(failpoints.BETWEEN_TABLES)
        # This log entry also shows that the run is working: ticks end a run that has been silent for long.
        again = f", again after {outcome.conflicts} commits of another writer" if outcome.conflicts else ""
        sentences.say(f"{outcome.name}: merged {outcome.source_rows} rows in {outcome.merge_ms} ms{again}")

    def refusal() -> str:
        try:
            refuse_unless_head(reference, ports.files().head_of_line(directory))
        except (MergeFailedError, SluiceError) as error:
            return str(error)
        return ""

    stored = config.ledger_location(reference.destination).staged_url(reference.ledger, head.path)
    if stored and not config.ledger_location(reference.destination).is_apart and not (directory / HEAD).is_file():
        raise MergeFailedError(
            f"{directory} does not have {HEAD}: this host cannot see the engine's folder, which has the records of snapshots "
            f"because meta.kind is {config.meta.kind}. Nothing was written; set `meta.kind` to sql or zookeeper, or mount "
            "<data_dir>/engine on this host"
        )
    order = MergeOrder(
        config=config,
        destination=reference.destination,
        batch_dir=directory / head.path,
        stored=stored,
        tables=head.tables,
        refusal=refusal,
        run=run,
    )
    try:
        ports.merge(order, done)
    except MergeFailedError as error:
        sentences.flush()
        spans.ended(str(error))
        yield merged
        raise
    sentences.flush()
    spans.ended()
    failpoints.reach(failpoints.AFTER_MERGE)
    yield merged


def failure(error: Exception) -> dg.Failure:
    """Returns the error that ends a run, with a message for users. The error forbids Dagster's retries: the batch is rolled back and gets a
    new delivery number, so a retry, which asks for the old number, could merge nothing.

    The error's metadata tells the sensor whether Spark did not answer, whether staged files are damaged, and which tables failed and why.
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


@contextlib.contextmanager
def as_failure() -> Iterator[None]:
    """Converts a SluiceError or MergeFailedError in the `with` block to the dg.Failure that ends the run."""
    try:
        yield
    except (SluiceError, MergeFailedError) as error:
        raise failure(error) from None
