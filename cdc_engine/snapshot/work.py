"""Executes the steps of a table's snapshot: begins it, reads its chunks while the stream continues, and publishes the rows. Called by
`groups`.

Every step can be repeated after a crash at any point. A chunk is complete when its record exists. A second publication has the same result
as the first one.
"""

from __future__ import annotations

import contextlib
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
    MetaError,
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

# If a table's definition has changed on the server, the snapshot fails after this many attempts to read the table. Each run makes one
# attempt, about once per minute, so the stream has half an hour to reach the statement that changed the table.
CHANGED_TRIES_MAX = 30
# A table's snapshot fails after this many attempts with an unexpected error.
RAISED_TRIES_MAX = 4
# Errors that a defect in Sluice causes. Other errors report that a source, a disk, an object store or Spark refused something.
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
# A snapshot waits at most this long until reads of the server show all transactions that the engine has read from the binlog. After that,
# this attempt to read the table fails.
VISIBLE_SECONDS_MAX = 60.0


class SnapshotRaisedError(SluiceError):
    """The snapshot of a table raised an error that only a defect of Sluice can cause. The message names the table."""


@dataclasses.dataclass(frozen=True)
class SizeEstimate:
    """The server's estimates of a table's number of rows and bytes, or 0 if the server has no estimate."""

    rows: int = 0
    bytes: int = 0


class TableReader(Protocol):
    """Reads one table from one server for a snapshot. Several threads may call `read`; one thread calls the other methods."""

    def shows(self, position: Position) -> bool:
        """Returns whether a read that begins now shows every commit up to a position of the stream."""

    def chunks(self, after: Chunk | None) -> Iterator[Chunk]:
        """Yields the chunks that follow the chunk `after` in the key's order, or all chunks if `after` is None. Queries the server for the
        bound of a chunk only when the caller requests the chunk.
        """

    def read(self, chunk: Chunk, path: Path, marks: Marks | None = None) -> ChunkFacts:
        """Reads the rows of a chunk into a Parquet file, and adds the columns of `marks` to each row. When the call returns, the file is
        complete and on disk.
        """

    def end(self) -> SourceEnd:
        """Returns the current end of the binlog. For a table without a key, returns the position at which the table's rows were read."""

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotDependencies:
    """The functions and settings that `groups.advance` and `groups.run_all` need to advance a destination's snapshots.

    - `look`: returns the facts from which `steps` decides the next step of the snapshot of a "database.table".
    - `table`: returns the table with its captured columns, or None if the table is not captured.
    - `spark_columns`: returns (name, Spark type) of a table's columns.
    - `sizes`: estimates the sizes of tables, by name.
    - `reader`: makes a reader of one table, with an SQL condition for its rows. `readers`: how many threads read at the same time.
    - `run_lock`: returns the lock that merge runs hold.
    - `publish`: makes the lake table from the rows and buffered changes, and returns the order key that the rows got.
    - `say`: reports a line of text.
    - `progress`: called after each chunk. `together`: opens a context for calls of `progress` for several tables, so that their reports can
      be stored in one transaction.
    - `flush`: called after some tables were advanced. `say` and `progress` may collect their reports until `flush` is called. `close`:
      called at the end.
    - `must_end`: returns why the run must end, or "" if it may continue. The run must end if another run now reads the rows. It must also
      end if conf/ has changed since its start, because it could read rows that conf/ now excludes.
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
    together: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    close: Callable[[], None] = lambda: None
    readers: int = 2
    pause: Callable[[float], object] = time.sleep
    must_end: Callable[[], str] = str  # By default `str`, which returns an empty text.


# ConfigurationErrors that may pass by themselves, so the next run tries again: a password is being changed, or a secret cannot be read now.
PASSING = (AccessDeniedError, SecretUnavailableError)


def next_act(name: str, dependencies: SnapshotDependencies) -> tuple[SnapshotRecord | None, StepDecision]:
    """Returns the record of a table's snapshot, and the next step: NOTHING, WAIT, BEGIN, READ or PUBLISH. Executes the steps AGAIN and FAIL
    itself: restarts the snapshot, or records that it failed. If the run must end (`must_end`), for example because conf/ has changed, the
    next step is WAIT.
    """
    while True:
        record = dependencies.records.get(name)
        if record is None:
            return None, StepDecision(SnapshotStep.NOTHING, "the table has no snapshot")
        decision = next_step(record, dependencies.look(name), dependencies.records.all() if record.waits_for else ())
        if record.has_work and (changed := dependencies.must_end()):
            return record, StepDecision(SnapshotStep.WAIT, f"{changed}; the next run continues")
        if decision.step == SnapshotStep.AGAIN:
            dependencies.say(f"{name}: {decision.why}; Sluice reads its rows again")
            dependencies.records.update(name, _restarting(decision.why))
        elif decision.step == SnapshotStep.FAIL:
            dependencies.records.update(name, _failing(decision.why))
        else:
            return record, decision


def begin(record: SnapshotRecord, expected: int, dependencies: SnapshotDependencies) -> None:
    """Begins the reading of a table: records the position up to which the stream is staged. The rows that are then read contain all
    changes up to this position. Later changes are buffered until the publication. `expected` is the estimated number of rows. The caller
    must hold the run lock.

    Does nothing if the snapshot can no longer begin, for example because an operator canceled it.
    """
    # Reads the record, the table and its facts again, because they may have changed during the wait for the lock.
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
    if there.begin is None or there.version != table.version or dependencies.must_end():
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
    """Reads the chunks of a table that were not read completely yet, and closes the reader. Returns True if all chunks are complete and the
    snapshot is now in the state READ. Stops after `rows_max` rows, and leaves the remaining chunks to the next call; 0 means no limit.
    """
    if record.began_at is None:
        reader.close()
        return False
    try:
        files = chunks_in(dependencies.records.chunks(record))
        if not record.key:
            # Drops the only chunk of a table without a key, and reads it again. The chunk is usable only together with the position at
            # which it was read, and this position is not stored.
            files.clear()
        whole = list(files.prepare())
        wait_until_shown(reader, record.began_at, dependencies.pause)
        try:
            if not is_complete(tuple(whole)):
                _read_chunks(record, dependencies, files, reader, whole, rows_max)
        except TableChangedError as error:
            # Does not raise the error, because the snapshot usually restarts when the stream reaches the statement that changed the table.
            dependencies.say(f"{record.name}: {error}")
            dependencies.records.update(record.name, _changed_on_the_server(str(error)))
            return False
        except (OSError, MetaError):
            # Ignores the error if the snapshot has ended: the engine may have removed the files, because an operator canceled the snapshot.
            if _is_still_read(record, dependencies):
                raise
        if not _is_still_read(record, dependencies):
            # Removes the files that this reading wrote after the snapshot was canceled or restarted.
            dependencies.records.sweep(record.name)
            return False
        if not is_complete(kept := files.prepare()):
            return False
        high = reader.end()
    finally:
        reader.close()
    # Counts all chunks again, because a killed process may have stored a chunk without adding it to the record's totals.
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
    """Waits until reads of the server show every commit up to a position. Without this wait, the rows that the snapshot reads could lack a
    change before the position. The publication applies only later changes, so this change would be lost. Raises SourceConnectionError
    after VISIBLE_SECONDS_MAX.
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
    """Reads the chunks that follow the complete chunks `whole`, several at a time, each in a thread, and appends them to `whole`. Ends
    early if the snapshot was paused, canceled or restarted, if the table or conf/ has changed, or after `rows_max` rows. If a value cannot
    be decoded, records that the snapshot failed, and ends. Raises the SluiceError of the first chunk that fails.
    """
    reading: dict[Future[ChunkFacts], Chunk] = {}
    marks = _marks(record)
    coming = reader.chunks(whole[-1].chunk if whole else None)
    with _pool(dependencies.readers) as pool:
        try:
            while (
                _goes_on(record, _counted(record, dependencies, whole))
                and dependencies.look(record.name).version == record.version
                and not dependencies.must_end()
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
    """An executor that executes each call in the calling thread. With it, one thread reads a table over one connection."""

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*given, **named))
        except Exception as error:  # Stores the error in the future, from which the caller gets it, as with a thread.
            future.set_exception(error)
        return future


def _marks(record: SnapshotRecord) -> Marks | None:
    """Returns the values of Sluice's own columns for all rows that a snapshot reads. Returns None for a table without a key, because
    the order key of its rows is known only after the read.
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
    """Returns a transition for a read that failed with the error `why`, usually because a statement changed the table on the server. The
    snapshot then waits until the stream reaches this statement. After CHANGED_TRIES_MAX attempts with the same error, the snapshot fails,
    because the error then probably has another cause, for example an invalid condition.
    """

    def noted(now: SnapshotRecord) -> SnapshotRecord:
        changed = now.noted(why)
        return changed.failed(why) if changed.tries >= CHANGED_TRIES_MAX else changed

    return noted


def _failing(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    return lambda now: now.failed(why)


def _restart_or_fail(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    """Returns a transition for a snapshot whose rows have other columns than the buffered changes: the snapshot reads its rows again. After
    RESTARTS_MAX restarts for this cause, the transition makes the snapshot fail, because each reading may give the same columns again.
    """
    cause = RestartCause.COLUMNS
    return lambda now: now.failed(why) if now.restarts_for(cause) >= RESTARTS_MAX else now.again(why, cause=cause)


def _restarting(why: str) -> Callable[[SnapshotRecord], SnapshotRecord]:
    return lambda now: now.again(why)


def _counted(record: SnapshotRecord, dependencies: SnapshotDependencies, whole: list[KeptChunk]) -> SnapshotRecord:
    rows, size_bytes = sum(each.facts.rows for each in whole), sum(each.facts.bytes for each in whole)

    def counted(now: SnapshotRecord) -> SnapshotRecord:
        return now.with_chunks(len(whole), rows, size_bytes) if _goes_on(record, now) else now

    if is_complete(tuple(whole)):
        # Does not store the totals of all chunks here, because `read` stores them when the reading ends.
        now = counted(dependencies.records.get(record.name) or record)
    else:
        now = dependencies.records.update(record.name, counted)
    dependencies.progress(now)
    return now


def _is_still_read(begun: SnapshotRecord, dependencies: SnapshotDependencies) -> bool:
    now = dependencies.records.get(begun.name)
    return now is not None and _goes_on(begun, now)


def _goes_on(begun: SnapshotRecord, now: SnapshotRecord) -> bool:
    """Returns whether the reading that began with the record `begun` may continue: `now`, the stored record, is of the same snapshot and
    generation, is in the state READING, and is not paused.
    """
    same = (now.snapshot_id, now.generation, now.state) == (begun.snapshot_id, begun.generation, SnapshotState.READING)
    return same and not now.paused


def publish(name: str, dependencies: SnapshotDependencies) -> SnapshotRecord | None:
    """Publishes the rows of a table's snapshot, and returns the snapshot's record. Returns None if the snapshot cannot be published now. If
    its rows must be read again, restarts it, or makes it fail after RESTARTS_MAX restarts for the same cause. The caller must hold the run
    lock, so that no merge run buffers or merges changes at the same time.
    """
    # Reads the record and the table again, because they may have changed during the wait for the lock.
    now, table = dependencies.records.get(name), dependencies.table(name)
    if now is None or table is None or next_step(now, dependencies.look(name)).step != SnapshotStep.PUBLISH:
        return None
    if dependencies.must_end():
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
    """Returns a transition that applies `change` only if the stored record still has the snapshot, generation and state of `seen`. Another
    host may have begun the next snapshot of the table while this host was suspended.
    """

    def changed(now: SnapshotRecord) -> SnapshotRecord:
        same = (now.snapshot_id, now.generation, now.state) == (seen.snapshot_id, seen.generation, seen.state)
        return change(now) if same else now

    return changed
