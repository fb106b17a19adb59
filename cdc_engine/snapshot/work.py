"""Does the steps of the snapshot of a table: reads its chunks while the stream continues, and has the rows published. Called by `groups`.

Every step can be repeated after a crash at any point: a chunk counts once its record exists, and publishing twice has the same result."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import (
    AccessDeniedError,
    CascadeUnseenError,
    SecretUnavailableError,
    SluiceError,
    SourceConnectionError,
    TableChangedError,
)
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.chunk_files import ChunkFiles, KeptChunk, chunks_in, is_complete
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.read import ChunkFacts, Marks
from sluice.cdc_engine.snapshot.record import RESTARTS_MAX, RestartCause, SnapshotRecord, SourceEnd
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.snapshot.steps import SnapshotSituation, SnapshotStep, StepDecision, next_step
from sluice.cdc_engine.states import SnapshotState

P = ParamSpec("P")
T = TypeVar("T")

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


@dataclasses.dataclass(frozen=True)
class SizeEstimate:
    """The server's estimate of the rows of a table and of their bytes; 0 if it has none."""

    rows: int = 0
    bytes: int = 0


class TableReader(Protocol):
    """Reads one table from one server. Several threads may call `read`; one thread calls the other methods."""

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
    """The dependencies of `groups.advance` and `groups.run_all`.

    `look`: returns the current state of the destination for a "database.table", as `steps` needs it. `table`: its captured columns, None if
    it is not captured. `spark_columns`: (name, Spark type) of a table's columns. `sizes`: estimates the sizes of tables, by name.
    `reader`: makes a reader of one table. `run_lock`: the lock that merging runs hold. `publish`: makes the lake table and returns the
    label that it got. `say`: reports a line of text. `progress`: called after each chunk. `flush`: called after the work on some tables;
    what `say` and `progress` got may be reported together until then. `close`: called at the end. `conf_changed`: returns why work under
    the configuration from the start must end, or an empty text: rows that were excluded since would be read.
    """

    records: SnapshotRecords
    look: Callable[[str], SnapshotSituation]
    table: Callable[[str], TableVersion | None]
    spark_columns: Callable[[TableVersion], tuple[tuple[str, str], ...]]
    sizes: Callable[[Sequence[TableVersion]], Mapping[str, SizeEstimate]]
    reader: Callable[[TableVersion, str], TableReader]
    run_lock: Callable[[], AbstractContextManager[object]]
    publish: Callable[[SnapshotRecord, TableVersion], int]
    say: Callable[[str], None]
    progress: Callable[[SnapshotRecord], None] = lambda _record: None
    flush: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    readers: int = 2
    pause: Callable[[float], object] = time.sleep
    conf_changed: Callable[[], str] = str  # The default always returns an empty text.


# Errors after which the next run may succeed: a password is being rotated, or the store of a secret does not answer.
PASSING = (AccessDeniedError, SecretUnavailableError)


def next_act(name: str, dependencies: SnapshotDependencies) -> tuple[SnapshotRecord | None, StepDecision]:
    """Returns the record of a table and its next step: NOTHING, WAIT, BEGIN, READ or PUBLISH. First restarts the snapshot or records its
    failure if necessary.
    """
    while True:
        record = dependencies.records.get(name)
        if record is None:
            return None, StepDecision(SnapshotStep.NOTHING, "the table has no snapshot")
        decision = next_step(record, dependencies.look(name), dependencies.records.all() if record.waits_for else ())
        if record.has_work and (changed := dependencies.conf_changed()):
            return record, StepDecision(SnapshotStep.WAIT, f"{changed}; the next run continues")
        if decision.step == SnapshotStep.AGAIN:
            dependencies.say(f"{name}: {decision.why}; Sluice reads its rows again")
            dependencies.records.update(name, _restarting(decision.why))
        elif decision.step == SnapshotStep.FAIL:
            dependencies.records.update(name, _failing(decision.why))
        else:
            return record, decision


def begin(record: SnapshotRecord, expected: int, dependencies: SnapshotDependencies) -> None:
    """Begins the reading: everything up to this position is merged, and later changes are buffered. Does nothing if something has changed
    that prevents it. `expected`: the estimate of rows. The caller holds the run lock.
    """
    # The record and conf/ may have changed during the wait for the lock.
    now, table, there = (
        dependencies.records.get(record.name),
        dependencies.table(record.name),
        dependencies.look(record.name),
    )
    if now is None or table is None:
        return
    others = dependencies.records.all() if now.waits_for else ()
    if next_step(now, there, others).step != SnapshotStep.BEGIN:
        return
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
    dependencies.say(
        f"{record.name}: the snapshot reads about {expected} rows; changes are buffered from {begun.began_at} on"
    )


def read(record: SnapshotRecord, dependencies: SnapshotDependencies, reader: TableReader, *, rows_max: int = 0) -> bool:
    """Reads the chunks that are not complete, and closes the reader. Returns whether all of them are complete then. `rows_max`: leaves the
    other chunks to the next call if the table has more rows than this; 0 for any number.
    """
    if record.began_at is None:
        reader.close()
        return False
    try:
        files = chunks_in(dependencies.records.chunks(record))
        if not record.key:
            files.clear()  # A table without a key is read at one position, which was not stored, so it is read again.
        whole = list(files.prepare())
        wait_until_shown(reader, record.began_at, dependencies.pause)
        try:
            if not is_complete(tuple(whole)):
                _read_chunks(record, dependencies, files, reader, whole, rows_max)
        except TableChangedError as error:  # The stream will reach this statement too, and restarts the reading.
            dependencies.say(f"{record.name}: {error}")
            dependencies.records.update(record.name, _changed_on_the_server(str(error)))
            return False
        now, kept = dependencies.records.get(record.name), files.prepare()
        if now is None or not _goes_on(record, now) or not is_complete(kept):
            return False
        high = reader.end()
    finally:
        reader.close()
    # A process that was killed may have kept the last chunk without counting it.
    counts = len(kept), sum(each.facts.rows for each in kept), sum(each.facts.bytes for each in kept)
    done = dependencies.records.update(
        record.name,
        lambda now: now.with_chunks(*counts).finished(high, time.time()) if _goes_on(record, now) else now,
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


def _read_chunks(  # noqa: PLR0917  one caller
    record: SnapshotRecord,
    dependencies: SnapshotDependencies,
    files: ChunkFiles,
    reader: TableReader,
    whole: list[KeptChunk],
    rows_max: int,
) -> None:
    """Reads as many chunks at a time as there are readers. Ends early if the record requires it, or after `rows_max` rows. Raises the
    SluiceError of the first chunk that fails.
    """
    reading: dict[Future[ChunkFacts], Chunk] = {}
    marks = _marks(record)
    coming = reader.chunks(whole[-1].chunk if whole else None)
    with _pool(dependencies.readers) as pool:
        try:
            while (
                _goes_on(record, _counted(record, dependencies, whole))
                and dependencies.look(record.name).version == record.version
                and not dependencies.conf_changed()
                and not 0 < rows_max < sum(each.facts.rows for each in whole)
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


def _pool(readers: int) -> Executor:
    return ThreadPoolExecutor(readers, thread_name_prefix="chunk") if readers > 1 else _InThisThread()


class _InThisThread(Executor):
    """Executes calls in the calling thread, so that it and its connection read a small table alone."""

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*given, **named))
        except Exception as error:  # The caller gets it from the future, as from a thread.
            future.set_exception(error)
        return future


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


def publish(name: str, dependencies: SnapshotDependencies) -> SnapshotRecord | None:
    """Publishes a table, and returns its record. Returns None if something has changed that prevents it. The caller holds the run lock, so
    that no change is buffered or merged meanwhile.
    """
    # The record and conf/ may have changed during the wait for the lock.
    now, table = dependencies.records.get(name), dependencies.table(name)
    if now is None or table is None or next_step(now, dependencies.look(name)).step != SnapshotStep.PUBLISH:
        return None
    if dependencies.conf_changed():
        return None
    try:
        label = dependencies.publish(now, table)
    except CascadeUnseenError as error:
        why = str(error)
        dependencies.records.update(name, _if_still(now, lambda each: each.cascades_unseen(why)))
        return None
    except TableChangedError as error:
        dependencies.records.update(name, _if_still(now, _restart_or_fail(str(error))))
        return None
    return dependencies.records.update(name, _if_still(now, lambda each: each.published(label, time.time())))


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
