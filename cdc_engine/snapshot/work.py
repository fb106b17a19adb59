"""Advances the snapshot of a table: reads its chunks while the stream continues, and has the rows published. Called by a run of the
snapshot job.

Every step can be repeated after a crash at any point: a chunk counts once its record exists, and publishing twice has the same result."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import (
    AccessDeniedError,
    CascadeUnseenError,
    ConfigurationError,
    SecretUnavailableError,
    SluiceError,
    SourceConnectionError,
    TableChangedError,
    TableStoppedError,
)
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.chunk_files import ChunkFiles, KeptChunk, chunks_in, is_complete
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.read import ChunkFacts, Marks
from sluice.cdc_engine.snapshot.record import RESTARTS_MAX, RestartCause, SnapshotRecord, SourceEnd
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotSituation, SnapshotStep, StepDecision, next_step
from sluice.cdc_engine.states import SnapshotState

logger = logging.getLogger(__name__)

# The most attempts to read a table whose definition changed: one per run, about one per minute. In this time the stream reaches the
# statement that changed the table.
CHANGED_TRIES_MAX = 30
# The maximum of attempts for a table after unexpected errors, the same as for a table that cannot be merged.
RAISED_TRIES_MAX = 4
# Errors of Sluice's own code, or of a library that it called wrongly. Other errors report what a source, a disk, a store or Spark refused.
MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
# The longest wait until the server's reads show the transactions that were read from its binlog.
VISIBLE_SECONDS_MAX = 60.0


class SnapshotRaisedError(SluiceError):
    """The snapshot of a table raised an error that nobody expected. The message names the table."""


class TableReader(Protocol):
    """Reads one table from one server. Several threads may call `read`; one thread calls the other methods."""

    def rows_expected(self) -> int:
        """Returns the server's estimate of rows."""

    def shows(self, position: Position) -> bool:
        """Returns whether a read that begins now sees everything up to a position of the stream."""

    def chunks(self, after: Chunk | None) -> Iterator[Chunk]:
        """Yields the chunks after a chunk in the key's order. Their bounds are searched one by one."""

    def read(self, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:
        """Reads the rows of a chunk into a file, each with these marks. The file is complete and on disk when this returns."""

    def end(self) -> SourceEnd:
        """Returns the current end of the binlog. For a table without a key, returns the binlog's end at the time of its read."""

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotDependencies:
    """The dependencies of `advance` and `run_all`.

    `look`: returns the current state of the destination for a "database.table", as `steps` needs it. `table`: its captured columns, None if
    it is not captured. `spark_columns`: (name, Spark type) of a table's columns. `reader`: makes a reader of one table. `run_lock`: the
    lock that merging runs hold. `publish`: makes the lake table and returns the label that it got. `say`: reports a line of text.
    `progress`: called after each chunk. `conf_changed`: returns why work under the configuration from the start must end, or an empty text:
    rows that were excluded since would be read.
    """

    records: SnapshotRecords
    look: Callable[[str], SnapshotSituation]
    table: Callable[[str], TableVersion | None]
    spark_columns: Callable[[TableVersion], tuple[tuple[str, str], ...]]
    reader: Callable[[TableVersion, str], TableReader]
    run_lock: Callable[[], AbstractContextManager[object]]
    publish: Callable[[SnapshotRecord, TableVersion], int]
    say: Callable[[str], None]
    progress: Callable[[SnapshotRecord], None] = lambda _record: None
    readers: int = 2
    pause: Callable[[float], object] = time.sleep
    conf_changed: Callable[[], str] = str  # The default always returns an empty text.


# Errors after which the next run may succeed: a password is being rotated, or the store of a secret does not answer.
PASSING = (AccessDeniedError, SecretUnavailableError)


def advance(name: str, dependencies: SnapshotDependencies) -> StepDecision:
    """Does what can be done now for one table. Returns the last decision: NOTHING, WAIT, or PUBLISH after the publication."""
    while True:
        record = dependencies.records.get(name)
        if record is None:
            return StepDecision(SnapshotStep.NOTHING, "the table has no snapshot")
        decision = next_step(record, dependencies.look(name), dependencies.records.all() if record.waits_for else ())
        if record.has_work and (changed := dependencies.conf_changed()):
            return StepDecision(SnapshotStep.WAIT, f"{changed}; the next run continues")
        match decision.step:
            case SnapshotStep.NOTHING | SnapshotStep.WAIT:
                return decision
            case SnapshotStep.AGAIN:
                dependencies.say(f"{name}: {decision.why}; Sluice reads its rows again")
                dependencies.records.update(name, _restarting(decision.why))
            case SnapshotStep.FAIL:
                dependencies.records.update(name, _failing(decision.why))
            case SnapshotStep.BEGIN:
                _begin(record, dependencies)
            case SnapshotStep.READ:
                if not _read(record, dependencies):
                    return StepDecision(SnapshotStep.WAIT, "the snapshot was paused, or must read its rows again")
            case SnapshotStep.PUBLISH:
                if _publish(record, dependencies):
                    return decision


def _begin(record: SnapshotRecord, dependencies: SnapshotDependencies) -> None:
    """Begins the reading under the run lock: everything up to this position is merged, and later changes are buffered."""
    table = dependencies.table(record.name)
    if table is None:
        return
    reader = dependencies.reader(table, record.where)
    try:
        expected = reader.rows_expected()
    finally:
        reader.close()
    with dependencies.run_lock():
        there = dependencies.look(record.name)
        if there.begin is None or there.version != table.version or dependencies.conf_changed():
            return
        begun = dependencies.records.update(
            record.name,
            lambda now: now.began(
                there.begin,  # type: ignore[arg-type]
                version=table.version,
                key=table.key,
                columns=dependencies.spark_columns(table),
                rows_expected=expected,
                now=time.time(),
            ),
        )
    dependencies.records.sweep(record.name)
    dependencies.say(
        f"{record.name}: the snapshot reads about {expected} rows; changes are buffered from {begun.began_at} on"
    )


def _read(record: SnapshotRecord, dependencies: SnapshotDependencies) -> bool:
    """Reads the chunks that are not complete. Returns whether all of them are complete then."""
    table = dependencies.table(record.name)
    if table is None or record.began_at is None:
        return False
    files = chunks_in(dependencies.records.chunks(record))
    if not record.key:
        files.clear()  # A table without a key is read at one position, which was not stored, so it is read again.
    whole = files.prepare()
    reader = dependencies.reader(table, record.where)
    try:
        wait_until_shown(reader, record.began_at, dependencies.pause)
        try:
            if not is_complete(whole):
                _read_chunks(record, dependencies, files, reader, list(whole))
        except TableChangedError as error:  # The stream will reach this statement too, and restarts the reading.
            dependencies.say(f"{record.name}: {error}")
            dependencies.records.update(record.name, _changed_on_the_server(str(error)))
            return False
        now = dependencies.records.get(record.name)
        if now is None or not _goes_on(record, now) or not is_complete(files.prepare()):
            return False
        high = reader.end()
    finally:
        reader.close()
    done = dependencies.records.update(
        record.name, lambda now: now.finished(high, time.time()) if _goes_on(record, now) else now
    )
    dependencies.say(
        f"{record.name}: {done.rows} rows were read in {done.chunks} chunks; the snapshot is published once "
        f"the stream has passed {high.file}:{high.offset}"
    )
    return done.state == SnapshotState.READ


def wait_until_shown(reader: TableReader, position: Position, pause: Callable[[float], object]) -> None:
    """Waits until reads contain a position. A row that was read before that would lack a change that is already merged. Raises
    SourceConnectionError after VISIBLE_SECONDS_MAX.
    """
    deadline = time.monotonic() + VISIBLE_SECONDS_MAX
    while not reader.shows(position):
        if time.monotonic() >= deadline:
            raise SourceConnectionError(
                f"reads do not show all transactions up to {position} after {VISIBLE_SECONDS_MAX:g} s: a replica lags, or commits wait for "
                "a semi-sync replica. Sluice tries again. With semi-sync on MySQL without GTIDs, the account also needs LOCK TABLES"
            )
        pause(0.2)


def _read_chunks(
    record: SnapshotRecord,
    dependencies: SnapshotDependencies,
    files: ChunkFiles,
    reader: TableReader,
    whole: list[KeptChunk],
) -> None:
    """Reads as many chunks at a time as there are readers. Ends early if the record requires it. Raises the SluiceError of the first chunk
    that fails.
    """
    reading: dict[Future[ChunkFacts], Chunk] = {}
    marks = _marks(record)
    coming = reader.chunks(whole[-1].chunk if whole else None)
    with ThreadPoolExecutor(dependencies.readers, thread_name_prefix="chunk") as pool:
        try:
            while (
                _goes_on(record, _counted(record, dependencies, whole))
                and dependencies.look(record.name).version == record.version
                and not dependencies.conf_changed()
            ):
                while len(reading) < dependencies.readers and (chunk := next(coming, None)) is not None:
                    reading[pool.submit(reader.read, chunk, files.rows_path(chunk), marks)] = chunk
                if not reading:
                    return
                done, _ = wait(reading, return_when=FIRST_COMPLETED)
                for each in done:
                    made = KeptChunk(chunk=reading.pop(each), facts=each.result())
                    if made.facts.refused:
                        dependencies.records.update(record.name, _failing(_refusal(made.facts)))
                        return
                    files.keep(made.chunk, made.facts)
                    whole.append(made)
        finally:
            for each in reading:
                each.cancel()


def _marks(record: SnapshotRecord) -> Marks | None:
    """Returns the marks of all chunks of a generation. Returns None for a table without a key, whose position is known only after its
    read.
    """
    if not record.key or record.began_at is None:
        return None
    return Marks(order_key=record.began_at.order_key, commit_time_us=record.read_at_us)


def _refusal(facts: ChunkFacts) -> str:
    first = facts.refused[0]
    return (
        f"{len(facts.refused)} values could not be decoded, the first in column {first.column.name}: "
        f"{first.reason}; correct these values in the source, or name the column's real charset in conf/ "
        "(`charsets`), then start the snapshot again"
    )


def _changed_on_the_server(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    """Returns a transition that records a change of the table on the server; the stream soon reaches the statement. After CHANGED_TRIES_MAX
    attempts the snapshot fails, because the rows cannot be queried in this way (an invalid condition).
    """

    def noted(now: SnapshotRecord) -> SnapshotRecord:
        changed = now.noted(why)
        return changed.failed(why) if changed.tries >= CHANGED_TRIES_MAX else changed

    return noted


def _failing(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    return lambda now: now.failed(why)


def _restart_or_fail(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    """Returns a transition that reads the rows again. After RESTARTS_MAX times it fails: with binlog_row_image MINIMAL, incomplete rows
    never fit.
    """
    cause = RestartCause.COLUMNS
    return lambda now: now.failed(why) if now.restarts_for(cause) >= RESTARTS_MAX else now.again(why, cause=cause)


def _restarting(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    return lambda now: now.again(why)


def _counted(record: SnapshotRecord, dependencies: SnapshotDependencies, whole: list[KeptChunk]) -> SnapshotRecord:
    rows, size_bytes = sum(each.facts.rows for each in whole), sum(each.facts.bytes for each in whole)

    def counted(now: SnapshotRecord) -> SnapshotRecord:
        return now.with_chunks(len(whole), rows, size_bytes) if _goes_on(record, now) else now

    now = dependencies.records.update(record.name, counted)
    dependencies.progress(now)
    return now


def _goes_on(begun: SnapshotRecord, now: SnapshotRecord) -> bool:
    """Returns whether the record is still the one whose chunks are read."""
    same = (now.snapshot_id, now.generation, now.state) == (begun.snapshot_id, begun.generation, SnapshotState.READING)
    return same and not now.paused


def _publish(record: SnapshotRecord, dependencies: SnapshotDependencies) -> bool:
    """Publishes under the run lock, so that no change is buffered or merged meanwhile. Returns whether it published."""
    with dependencies.run_lock():
        # The record and conf/ may have changed during the wait for the lock.
        now = dependencies.records.get(record.name)
        table = dependencies.table(record.name)
        if now is None or table is None or next_step(now, dependencies.look(record.name)).step != SnapshotStep.PUBLISH:
            return False
        if dependencies.conf_changed():
            return False
        try:
            label = dependencies.publish(now, table)
        except CascadeUnseenError as error:
            why = str(error)
            dependencies.records.update(record.name, _if_still(now, lambda each: each.cascades_unseen(why)))
            return False
        except TableChangedError as error:
            dependencies.records.update(record.name, _if_still(now, _restart_or_fail(str(error))))
            return False
        published = _if_still(now, lambda each: each.published(label, time.time()))
        done = dependencies.records.update(record.name, published)
    dependencies.records.sweep(record.name)
    dependencies.progress(done)
    return True


def _if_still(
    seen: SnapshotRecord, change: Callable[[SnapshotRecord], SnapshotRecord]
) -> Callable[[SnapshotRecord], SnapshotRecord]:
    """Returns a change that applies to this snapshot only: while this host was stopped, another one may have begun the table's next
    snapshot.
    """

    def changed(now: SnapshotRecord) -> SnapshotRecord:
        same = (now.snapshot_id, now.generation, now.state) == (seen.snapshot_id, seen.generation, seen.state)
        return change(now) if same else now

    return changed


def run_all(dependencies: SnapshotDependencies, seconds: float) -> dict[str, StepDecision]:
    """Works on all snapshots of the destination, smallest tables first, until none can be advanced or the time is over.

    The reason that keeps a table from continuing is in its record, and the other tables are processed. Raises the first error after that.
    """
    deadline = time.monotonic() + seconds
    stopping = threading.Event()
    while True:
        open_now = [each for each in dependencies.records.all() if each.has_work]
        decisions: dict[str, StepDecision] = {}
        errors: list[Exception] = []
        for each in sorted(open_now, key=lambda one: (one.state != SnapshotState.READ, one.rows_expected, one.name)):
            try:
                decisions[each.name] = advance(each.name, dependencies)
            except Exception as error:  # A table that cannot be read or published does not delay the others.
                errors.append(_named(each, error))
                _note(each.name, errors[-1], dependencies)
        if errors:
            raise errors[0]
        still = any(each.step == SnapshotStep.WAIT for each in decisions.values())
        if not still or dependencies.conf_changed() or time.monotonic() >= deadline:
            return decisions
        stopping.wait(1.0)


def _named(record: SnapshotRecord, error: Exception) -> Exception:
    """Returns an unexpected error of one table as a sentence with its name, and other errors unchanged."""
    if not isinstance(error, MISTAKES):
        return error
    logger.error("the snapshot of a table raised an unexpected error", extra={"table": record.name}, exc_info=error)
    return SnapshotRaisedError(
        f"the rows of {record.name} could not be read or published ({type(error).__name__}: {error}), a defect of Sluice whose trace is in "
        "the log: report it, and exclude the table or use a version of Sluice that can read it"
    )


def _note(name: str, error: Exception, dependencies: SnapshotDependencies) -> None:
    """Records an error for `status`. Sluice tries again, or an operator must fix it. An unexpected error makes the snapshot fail after
    RAISED_TRIES_MAX attempts.
    """
    for_good = isinstance(error, TableStoppedError | ConfigurationError) and not isinstance(error, PASSING)

    def noted(now: SnapshotRecord) -> SnapshotRecord:
        changed = now.noted(str(error))
        given_up = isinstance(error, SnapshotRaisedError) and changed.tries >= RAISED_TRIES_MAX
        return changed.failed(str(error)) if for_good or given_up else changed

    dependencies.say(str(error) if name in str(error) else f"{name}: {error}")
    dependencies.records.update(name, noted)
