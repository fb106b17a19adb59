"""Advances the snapshots of a destination: small tables in groups, the other tables one after the other. Called by a run of the snapshot
job.

The snapshots of a group begin while the run holds the run lock. The run then reads the tables side by side without the lock, and publishes
them when it holds the lock again. Each table still has its own record, files and commit. So after a crash, the next run continues each
table separately. An error of one table stops only the snapshot of this table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import ConfigurationError, TableStoppedError
from sluice.cdc_engine.snapshot.record import SnapshotRecord
from sluice.cdc_engine.snapshot.steps import SnapshotStep, StepDecision
from sluice.cdc_engine.snapshot.work import (
    MISTAKES,
    PASSING,
    RAISED_TRIES_MAX,
    SizeEstimate,
    SnapshotDependencies,
    SnapshotRaisedError,
    TableReader,
    begin,
    next_act,
    publish,
    read,
)
from sluice.cdc_engine.states import SnapshotState

logger = logging.getLogger(__name__)

TABLES_MAX = 50  # The maximum number of tables in a group. The next tables form the next group.
# A table whose estimated rows and bytes do not exceed these limits is small, and is read in a group. A larger table is read alone, with
# several of its chunks at the same time.
ROWS_MAX, BYTES_MAX = 10_000, 64 << 20
# When a group has published tables for this long, it releases the run lock, because merges wait for the lock. The group publishes its
# remaining tables when it has the lock again.
PUBLISH_SECONDS_MAX = 2.0
# The interval at which the calling thread reports the messages and progress of the threads that read tables.
CALLS_SECONDS = 0.1


@dataclasses.dataclass
class Advanced:
    """The result of `_Group.advance` by table name. `decisions` has the last decision about each table: NOTHING, WAIT, or PUBLISH if the
    table was published. `errors` has the error that stopped a table's snapshot. `large` has each table that must be advanced alone, with
    its number of rows if the table is too large for a group, or 0 if the table has no key.
    """

    decisions: dict[str, StepDecision] = dataclasses.field(default_factory=dict)
    errors: dict[str, Exception] = dataclasses.field(default_factory=dict)
    large: dict[str, int] = dataclasses.field(default_factory=dict)


def run_all(dependencies: SnapshotDependencies, seconds: float) -> dict[str, StepDecision]:
    """Advances all snapshots of the destination, until no snapshot can be advanced, `dependencies.must_end` returns a reason to end, or
    `seconds` have passed. Returns the last decision about each table, by name.

    If a table cannot continue, stores the reason in the table's record, advances each of the other snapshots once, and then raises the
    first error.
    """
    try:
        return _repeat(dependencies, time.monotonic() + seconds)
    finally:
        dependencies.close()


def _repeat(dependencies: SnapshotDependencies, deadline: float) -> dict[str, StepDecision]:
    """Advances all snapshots until no snapshot can be advanced, `dependencies.must_end` returns a reason to end, or the monotonic clock
    has reached `deadline`. Returns the last decision about each table. After a round in which tables failed, raises the first error.
    """
    stopping = threading.Event()
    while True:
        decisions: dict[str, StepDecision] = {}
        errors: list[Exception] = []
        for advanced in _advance_all(dependencies):
            decisions |= advanced.decisions
            for name, error in advanced.errors.items():
                errors.append(_named(name, error))
                _note(name, errors[-1], dependencies)
            dependencies.flush()
        if errors:
            raise errors[0]
        steps = {each.step for each in decisions.values()}
        if SnapshotStep.WAIT not in steps or dependencies.must_end() or time.monotonic() >= deadline:
            return decisions
        # After a publication, advances the snapshots again at once, because a table that waited for the published one may continue now.
        if SnapshotStep.PUBLISH not in steps:
            stopping.wait(1.0)


def advance(name: str, dependencies: SnapshotDependencies) -> StepDecision:
    """Advances the snapshot of one table as far as possible now. Returns the last decision: NOTHING, WAIT, or PUBLISH if the table was
    published. Raises the error that stopped the snapshot.
    """
    advanced = _Group([name], dependencies, alone=True).advance()
    for error in advanced.errors.values():
        raise error
    return advanced.decisions[name]


def _advance_all(dependencies: SnapshotDependencies) -> Iterator[Advanced]:
    """Advances each open snapshot once, and yields a result for each group and each large table. Begins with the large tables of which all
    rows are read, so that only their publication is left. Small tables follow, then the other large tables.
    """
    open_now = [each for each in dependencies.records.all() if each.has_work]
    ordered = sorted(open_now, key=lambda each: (each.state != SnapshotState.READ, each.rows_expected, each.name))
    large = {each.name: max(each.rows, each.rows_expected) for each in ordered if _is_large(each)}
    complete = [each.name for each in ordered if each.name in large and each.state == SnapshotState.READ]
    for name in complete:
        yield _Group([name], dependencies, alone=True).advance()
        del large[name]
    small = [each.name for each in ordered if not _is_large(each)]
    for start in range(0, len(small), TABLES_MAX):
        advanced = _Group(small[start : start + TABLES_MAX], dependencies).advance()
        large |= advanced.large
        yield advanced
    for name in sorted(large, key=lambda name: (large[name], name)):
        yield _Group([name], dependencies, alone=True).advance()


def _is_large(record: SnapshotRecord) -> bool:
    """Returns whether a table is too large for a group. Returns False if the snapshot has not begun (WANTED), because the size is unknown.
    `_Group` then estimates the size, and removes the table from the group if it is too large.

    A table without a key counts as large. It is read as one chunk, so if the table had more rows than estimated, the reading could not stop
    after ROWS_MAX rows.
    """
    if record.state == SnapshotState.WANTED:
        return False
    rows = max(record.rows, record.rows_expected)
    return not record.key or rows > ROWS_MAX or record.size_bytes > BYTES_MAX


class _Group:
    """Some tables whose snapshots advance together. With `alone`, the group is one table of any size."""

    def __init__(self, names: Sequence[str], dependencies: SnapshotDependencies, *, alone: bool = False) -> None:
        self._dependencies, self._alone = dependencies, alone
        self._going = dict.fromkeys(names)
        self._advanced = Advanced()

    def advance(self) -> Advanced:
        """Advances the tables as far as possible now: begins their snapshots, then reads their rows, then publishes them."""
        acts: dict[SnapshotStep, Callable[[list[SnapshotRecord]], None]] = {
            SnapshotStep.BEGIN: self._begin,
            SnapshotStep.READ: self._read,
            SnapshotStep.PUBLISH: self._publish,
        }
        while self._going:
            waiting = dict[str, StepDecision]()
            records: dict[SnapshotStep, list[SnapshotRecord]] = {step: [] for step in acts}
            for name in list(self._going):
                with self._alone_in(name):
                    record, decision = next_act(name, self._dependencies)
                    if record is not None and decision.step in acts:
                        records[decision.step].append(record)
                    else:
                        waiting[name] = decision
            step = next((step for step in acts if records[step]), None)
            if step is None:
                self._advanced.decisions |= waiting
                break
            acts[step](records[step])
        return self._advanced

    def _begin(self, records: list[SnapshotRecord]) -> None:
        sizes = self._sizes(records)
        if not self._alone:
            for record in records:
                size = sizes.get(record.name, SizeEstimate())
                if size.rows > ROWS_MAX or size.bytes > BYTES_MAX:
                    self._leave(record.name, size.rows)
        begun = [each for each in records if each.name in self._going]
        if not begun:
            return
        with self._together(begun), self._begun_again_unless_held(begun), self._dependencies.run_lock():
            for record in begun:
                with self._alone_in(record.name):
                    begin(record, sizes.get(record.name, SizeEstimate()).rows, self._dependencies)
        for record in begun:
            with self._alone_in(record.name):
                self._dependencies.records.sweep(record.name)

    @contextlib.contextmanager
    def _begun_again_unless_held(self, records: Sequence[SnapshotRecord]) -> Iterator[None]:
        """After an error in the body of the `with` statement, returns the tables to the state WANTED, so that their snapshots begin again.
        This is necessary if the error is the loss of the run lock. Meanwhile another run may have merged changes that had to be buffered,
        or may have put buffered changes into files that the snapshots no longer use.
        """
        try:
            yield
        except Exception as error:
            why = str(error)
            for seen in records:

                def undone(now: SnapshotRecord, seen: SnapshotRecord = seen) -> SnapshotRecord:
                    same = (now.snapshot_id, now.generation) == (seen.snapshot_id, seen.generation)
                    return now.again(why) if same and now.state == SnapshotState.READING else now

                self._dependencies.records.update(seen.name, undone)
            raise

    def _sizes(self, records: list[SnapshotRecord]) -> dict[str, SizeEstimate]:
        """Returns the estimated sizes of the tables. Removes from the group the tables that the engine does not know. Unless the group is a
        single table (`alone`), also removes the tables without a key, because such a table is advanced alone.
        """
        tables = list[TableVersion]()
        for record in records:
            with self._alone_in(record.name):
                table = self._dependencies.table(record.name)
                if table is None:
                    self._settle(record.name, StepDecision(SnapshotStep.WAIT, "the engine does not know the table yet"))
                elif table.key or self._alone:
                    tables.append(table)
                else:
                    self._leave(record.name, 0)
        named = [each for each in records if each.name in {table.name for table in tables}]
        try:
            return dict(self._dependencies.sizes(tables)) if tables else {}
        except MISTAKES:  # One of the tables caused the error. Estimates them one by one, so that the others continue.
            found = dict[str, SizeEstimate]()
            for table in tables:
                with self._alone_in(table.name):
                    found |= self._dependencies.sizes([table])
            return found
        except Exception as error:
            self._fail(named, error)
            return {}

    def _read(self, records: list[SnapshotRecord]) -> None:
        readers = dict[str, TableReader]()
        # Creates all readers before the first one reads. A reader may have to wait for some seconds between its creation and its first read
        # (`table_reader.UNTOLD_SECONDS`). In this way, the waits of all readers pass at the same time.
        for record in records:
            with self._alone_in(record.name):
                table = self._dependencies.table(record.name)
                if table is not None:
                    readers[record.name] = self._dependencies.reader(table, record.where)
        read_now = [each for each in records if each.name in readers]
        with self._together(read_now):
            if len(read_now) > 1:
                self._read_side_by_side(read_now, readers)
            else:
                for record in read_now:
                    rows_max = 0 if self._alone else ROWS_MAX
                    self._is_read(record, read(record, self._dependencies, readers[record.name], rows_max=rows_max))
        for record in records:
            if record.name in self._going and record.name not in readers:
                self._is_read(record, complete=False)

    def _read_side_by_side(self, records: list[SnapshotRecord], readers: dict[str, TableReader]) -> None:
        """Reads several tables at a time, each in a thread. These threads put their messages and progress into a queue. The calling thread
        reports them, because only this thread may use Dagster's context.
        """
        given, calls = self._dependencies, queue.SimpleQueue[tuple[str, Callable[[], None]]]()
        apart = dataclasses.replace(
            given,
            readers=1,
            say=lambda text: calls.put(("", functools.partial(given.say, text))),
            progress=lambda record: calls.put((record.name, functools.partial(given.progress, record))),
        )
        with ThreadPoolExecutor(given.readers, thread_name_prefix="table") as pool:
            reading = {pool.submit(read, each, apart, readers[each.name], rows_max=ROWS_MAX): each for each in records}
            left = set(reading)
            try:
                while left:
                    done, left = wait(left, timeout=CALLS_SECONDS, return_when=FIRST_COMPLETED)
                    while not calls.empty():
                        name, call = calls.get()
                        with self._alone_in(name) if name else contextlib.nullcontext():
                            call()
                    for each in done:
                        with self._alone_in(reading[each].name):
                            self._is_read(reading[each], each.result())
            finally:
                for each in left:
                    each.cancel()

    def _is_read(self, record: SnapshotRecord, complete: bool) -> None:
        """Handles the end of reading a table. If the chunks are not complete, removes the table from the group. If the table proved to be
        large, it is read alone later. Otherwise the table waits, because its snapshot was paused or must read the rows again.
        """
        if complete:
            return
        now = self._dependencies.records.get(record.name)
        if not self._alone and now is not None and now.has_work and now.rows > ROWS_MAX:
            self._leave(record.name, now.rows)
        else:
            why = "the snapshot was paused, or must read its rows again"
            self._settle(record.name, StepDecision(SnapshotStep.WAIT, why))

    def _publish(self, records: list[SnapshotRecord]) -> None:
        published = list[SnapshotRecord]()
        with self._together(records), self._dependencies.run_lock():
            begun = time.monotonic()
            for number, record in enumerate(records):
                if number and time.monotonic() - begun >= PUBLISH_SECONDS_MAX:
                    break
                with self._alone_in(record.name):
                    done = publish(record.name, self._dependencies)
                    if done is not None:
                        published.append(done)
                        self._settle(record.name, StepDecision(SnapshotStep.PUBLISH))
        for record in published:
            with self._alone_in(record.name):
                self._dependencies.records.sweep(record.name)
        with self._dependencies.together():
            for record in published:
                with self._alone_in(record.name):
                    self._dependencies.progress(record)

    def _settle(self, name: str, decision: StepDecision) -> None:
        self._advanced.decisions[name] = decision
        self._going.pop(name, None)

    def _leave(self, name: str, rows: int) -> None:
        """Removes a table from the group. The snapshot of the table is advanced alone later."""
        self._advanced.large[name] = rows
        self._going.pop(name, None)

    def _fail(self, records: Sequence[SnapshotRecord], error: Exception) -> None:
        """Removes the tables of `records` from the group, and records the error for each. If none of these tables is in the group any more,
        records the error for the first table, so that the error is not lost.
        """
        for record in [each for each in records if each.name in self._going] or records[:1]:
            self._advanced.errors[record.name] = error
            self._going.pop(record.name, None)

    @contextlib.contextmanager
    def _together(self, records: Sequence[SnapshotRecord]) -> Iterator[None]:
        """After an error in the body of the `with` statement, for example because the run lock is lost, removes the tables of `records`
        from the group, and records the error for each.
        """
        try:
            yield
        except Exception as error:
            self._fail(records, error)

    @contextlib.contextmanager
    def _alone_in(self, name: str) -> Iterator[None]:
        """After an error in the body of the `with` statement, removes this table from the group, and records the error for it. The other
        tables of the group continue.
        """
        try:
            yield
        except Exception as error:
            self._advanced.errors[name] = error
            self._going.pop(name, None)


def _named(name: str, error: Exception) -> Exception:
    """Converts an unexpected error of one table to an error whose message names the table. Returns other errors unchanged."""
    if not isinstance(error, MISTAKES):
        return error
    logger.error("the snapshot of table %s raised an unexpected error", name, exc_info=error)
    return SnapshotRaisedError(
        f"the rows of {name} could not be read or published ({type(error).__name__}: {error}), a defect of Sluice whose trace is in "
        "the log: report the defect, and exclude the table or use a version of Sluice that can read the table"
    )


def _note(name: str, error: Exception, dependencies: SnapshotDependencies) -> None:
    """Records in a snapshot's record why the snapshot could not continue, for `sluice snapshot status`. The snapshot fails if an operator
    must act, and after RAISED_TRIES_MAX attempts with an unexpected error. After other errors, Sluice tries again.
    """
    for_good = isinstance(error, TableStoppedError | ConfigurationError) and not isinstance(error, PASSING)

    def noted(now: SnapshotRecord) -> SnapshotRecord:
        if not now.is_open:  # Records nothing, because an operator canceled the snapshot meanwhile.
            return now
        changed = now.noted(str(error))
        given_up = isinstance(error, SnapshotRaisedError) and changed.tries >= RAISED_TRIES_MAX
        return changed.failed(str(error)) if for_good or given_up else changed

    dependencies.say(str(error) if name in str(error) else f"{name}: {error}")
    dependencies.records.update(name, noted)
