"""Fakes of the ports for tests of definitions: an engine that counts, a lock that is a flag, and a merge that records its requests.

The fake engine obeys the contract of `ports.EngineHandle`: one batch in flight at a time, repeatable hand-outs, a new delivery number
after each rollback, acks in order. Its changes are integers. A batch has the integers above its start and up to its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sluice.batch_manifest.table_report import TableReport
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import OutstandingBatch, StoppedTable
from sluice.cdc_engine.errors import BatchNotFoundError, EngineStartingError, LeaseLostError, MetaError, SluiceError
from sluice.cdc_engine.position import Position
from sluice.equality.values import Extent, TableResult, Verdict
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.ports import (
    EngineAwayError,
    MergeFailedError,
    MergeOrder,
    Offer,
    Ports,
    SparkAwayError,
)

BATCH_CHANGES_MAX = 10
LEDGER_ID = "0123456789ab"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeState:
    """Implements `ports.EngineSnapshot`."""

    state: str = "RUNNING"
    reason: str = ""
    position: Position | None = None
    cursor: Position | None = None
    lag_seconds: float = 1.5
    retention_left_hours: float | None = None
    oldest_binlog_hours: float | None = None
    rows_per_second: float = 100.0
    ring_bytes: int = 512
    ring_bytes_max: int = 1024
    ring_events: int = 3
    waiting_bytes: int = 99
    stopped_tables: tuple[StoppedTable, ...] = ()
    troubles: tuple[str, ...] = ()


FAKE_REPORT = TableReport(
    database="shop",
    table="orders",
    path="/lake/shop/orders",
    rows_inserted=1,
    rows_updated=2,
    rows_deleted=3,
    source_rows=6,
    bytes=600,
    merge_ms=40,
    files_added=1,
    files_removed=0,
    files_scanned=1,
    files_pruned=4,
    delta_version=5,
    delta_version_before=4,
    source_inserts=1,
    source_updates=2,
    source_deletes=3,
    start_order_key=1,
    end_order_key=2,
    first_commit_time_us=1_700_000_000_000_000,
    last_commit_time_us=1_700_000_000_000_000,
    columns=(("id", "bigint"), ("note", "string")),
    skipped=False,
    reason="the table is new",
    table_rows=7,
    table_bytes=700,
)


def fake_report(name: str) -> TableReport:
    """Returns the report of a merge into "database.table"."""
    database, _, table = name.partition(".")
    return dataclasses.replace(FAKE_REPORT, database=database, table=table)


def position(offset: int) -> Position:
    return Position(epoch=1, file="mysql-bin.000001", offset=offset, time_us=1_700_000_000_000_000)


class FakeEngine:
    """A fake of `ports.EngineHandle`. `waiting` is the last reason that `report_waiting` got. `acked` has the acked deliveries in order."""

    def __init__(self, directory: Path, tables: tuple[str, ...] = ("shop.orders",)) -> None:
        self.directory = directory
        self.tables = tables
        self.state = FakeState()
        self.head: OutstandingBatch | None = None
        self.next_batch_id = self.next_delivery = 1
        self.acked_up_to = 4
        self.captured_up_to = 4
        self.acked: list[int] = []
        self.rolled_back: list[int] = []
        self.damaged: list[int] = []
        self.stopped: dict[str, tuple[str, str]] = {}
        self.longest_wait_seconds = 0.0
        self.waiting = self.failing = ""
        self.lake: tuple[str, ...] = ()
        self.ticks, self.tick_failed = 0, ""
        self.run_states: list[str] = []

    def capture(self, changes: int) -> None:
        self.captured_up_to += changes

    def status(self) -> FakeState:
        return self.state

    def outstanding(self) -> OutstandingBatch | None:
        return self.head

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        self.longest_wait_seconds = max(self.longest_wait_seconds, timeout_seconds)
        if self.head is None and self.captured_up_to > self.acked_up_to:
            end = min(self.captured_up_to, self.acked_up_to + BATCH_CHANGES_MAX)
            self.head = OutstandingBatch(
                ledger_id=LEDGER_ID,
                batch_id=self.next_batch_id,
                delivery=self.next_delivery,
                start=position(self.acked_up_to),
                end=position(end),
                path=f"staging/1-1-{end}-{self.next_delivery}",
                rows=end - self.acked_up_to,
                bytes=100,
                tables=self.tables,
                appendable=appendable,
                first_end=position(end).order_key,
            )
            self.next_batch_id += 1
            self.next_delivery += 1
        return self.head

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        self._must_be_head(batch)
        head = self.head or batch
        if head.appendable:
            end = min(self.captured_up_to, head.end.offset + BATCH_CHANGES_MAX) if append else head.end.offset
            path, rows = f"staging/1-1-{end}-{head.delivery}", end - head.start.offset
            head = dataclasses.replace(head, end=position(end), path=path, rows=rows, appendable=False)
        self.head = head
        return head

    def ack(self, batch: OutstandingBatch) -> None:
        self._must_be_head(batch)
        self.acked_up_to = (self.head or batch).end.offset
        self.acked.append(batch.delivery)
        self.head = None

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        self._must_be_head(batch)
        self.rolled_back.append(batch.delivery)
        if damaged:
            self.damaged.append(batch.delivery)
            self.head = None
        else:
            self._deliver_again(batch.tables)

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        self._must_be_head(batch)
        self.stopped.update(reasons)
        self._deliver_again(tuple(name for name in batch.tables if name not in reasons))

    def _deliver_again(self, tables: tuple[str, ...]) -> None:
        number = self.next_delivery
        if self.head is not None:
            self.head = dataclasses.replace(self.head, delivery=number, tables=tables, appendable=False)
        self.next_delivery += 1

    def report_lake(self, troubles: tuple[str, ...]) -> None:
        self.lake = troubles

    def report_tick(self, failed: str = "") -> None:
        self.ticks += not failed
        self.tick_failed = failed

    def report_run(self, batch: OutstandingBatch, state: str) -> None:  # noqa: ARG002  required by the protocol
        self.run_states.append(state)

    def report_failing(self, reason: str) -> None:
        self.failing = reason

    def report_waiting(self, reason: str) -> None:
        self.waiting = reason

    def _must_be_head(self, batch: OutstandingBatch) -> None:
        if self.head is None or self.head.delivery != batch.delivery:
            raise BatchNotFoundError(f"delivery {batch.delivery} is not outstanding")


class FakeHost:
    """A fake of `ports.EngineHost`. `holder` is the pid of another process that holds the lease. If `error` is set, the engine cannot
    start, and this error is raised. During the next `starting` calls the engine is still starting.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.holder: int | None = None
        self.error: SluiceError | None = None
        self.starting = 0

    def get_or_start(self, destination: str) -> FakeEngine:
        if self.holder is not None:
            raise LeaseLostError(f"process {self.holder} runs the engine of {destination}; this one waits for its end")
        if self.error is not None:
            raise self.error
        if self.starting:
            self.starting -= 1
            raise EngineStartingError(f"the engine of {destination} is being started")
        return self.engine


class FakeRunEngine:
    """A fake of `ports.RunEngine` that calls a fake engine. `leave` is the reason for which runs must end, or empty. `calls` has the
    requests in order. If `away`, no engine answers. `before` is called with the name of each request before the request is executed.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.away = False
        self.leave = ""
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _: None

    def hand_out(self, timeout_seconds: float) -> Offer:
        self._called("hand_out")
        batch = self.engine.hand_out(timeout_seconds)
        if batch is not None and batch.appendable:
            batch = self.engine.take(batch, append=False)
        if self.leave:
            return Offer(leave=self.leave)
        return Offer(reference=BatchReference.of("shop", batch) if batch else None)

    def take(self, reference: BatchReference, *, append: bool) -> None:
        self._called(f"take {reference.delivery}")
        if self.engine.head is None or not reference.names(self.engine.head):
            raise BatchNotFoundError(f"{reference} is no longer outstanding")
        self.engine.take(self.engine.head, append=append)

    def ack(self, reference: BatchReference) -> None:
        self._called(f"ack {reference.delivery}")
        if self.engine.head is None or not reference.names(self.engine.head):
            raise BatchNotFoundError(f"{reference} is no longer outstanding")
        self.engine.ack(self.engine.head)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.before(name)
        if self.away:
            raise EngineAwayError("no engine of shop answers")


class FakeFiles:
    """A fake of `ports.DestinationFiles` over a fake engine. `held_by` and `drained_by` are the process ids of the holders of the run lock
    and the drain lock: None if the lock is free, and 0 if the code under test holds it.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.held_by: int | None = None
        self.drained_by: int | None = None
        self.wanted: Callable[[], bool] = lambda: False

    def head_of_line(self, directory: Path) -> OutstandingBatch | None:
        self._must_be_ours(directory)
        return self.engine.head

    @contextlib.contextmanager
    def run_lock(self, directory: Path, timeout_seconds: float) -> Iterator[Callable[[], str]]:
        if self.held_by is not None:
            raise MetaError(f"process {self.held_by} has held {directory}/run.lock for {timeout_seconds:.0f} s")
        self.held_by = 0
        try:
            yield str
        finally:
            self.held_by = None

    def run_lock_held(self, directory: Path) -> bool:
        self._must_be_ours(directory)
        return self.held_by is not None

    def run_lock_wanted(self, directory: Path) -> bool:
        self._must_be_ours(directory)
        return self.wanted()

    @contextlib.contextmanager
    def drain_lock(self, directory: Path) -> Iterator[Callable[[], str]]:
        self._must_be_ours(directory)

        def why_not() -> str:
            self.drained_by = 0 if self.drained_by is None else self.drained_by
            return "" if self.drained_by == 0 else "another run already merges its batches (`runs: drain`)"

        why_not()
        try:
            yield why_not
        finally:
            self.drained_by = None if self.drained_by == 0 else self.drained_by

    def drain_lock_held(self, directory: Path) -> bool:
        self._must_be_ours(directory)
        return self.drained_by is not None

    def _must_be_ours(self, directory: Path) -> None:
        if directory != self.engine.directory:
            raise MetaError(f"{directory} is not the directory of this destination, {self.engine.directory}")


class FakeMerge:
    """A fake of `ports.Merge` that records its requests. `between` is called with the name of each table before the table is merged. If
    `error` is set, merges the tables in `before_error` and raises an error with this message. If `away`, that error says that Spark does
    not answer.
    """

    def __init__(self) -> None:
        self.orders: list[MergeOrder] = []
        self.error: str = ""
        self.before_error: tuple[str, ...] = ()
        self.away = False
        self.between: Callable[[str], None] = lambda _: None

    def __call__(self, order: MergeOrder, on_table_done: Callable[[TableReport], None]) -> None:
        self.orders.append(order)
        for name in self.before_error if self.error else order.tables:
            self.between(name)
            if why := order.refusal():
                raise MergeFailedError(f"{name}: {why}")
            on_table_done(fake_report(name))
        if self.error:
            raise SparkAwayError(self.error) if self.away else MergeFailedError(self.error)


class FakeCompare:
    """A fake of `ports.CompareTables`. `verdicts` has results by table; a table without a result is equal. `compared` has the tables
    and the extent of each call. `errors` has errors by table, which are raised when the comparison reaches the table.
    """

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.errors: dict[str, SluiceError] = {}
        self.compared: list[tuple[list[str], Extent]] = []

    def __call__(
        self,
        config: SluiceConfig,  # noqa: ARG002
        destination: str,  # noqa: ARG002
        tables: Sequence[str],
        extent: Extent,
    ) -> Iterator[TableResult]:
        self.compared.append((list(tables), extent))
        for name in tables:
            if name in self.errors:
                raise self.errors[name]
            verdict = self.verdicts.get(name, Verdict.EQUAL)
            yield TableResult(table=name, verdict=verdict, mode=extent.mode, rows=7, position="mysql-bin.000001:9")


class FakePorts:
    """Creates all fakes around one engine."""

    def __init__(self, directory: Path, tables: tuple[str, ...] = ("shop.orders",)) -> None:
        self.engine = FakeEngine(directory, tables)
        self.host = FakeHost(self.engine)
        self.files = FakeFiles(self.engine)
        self.merge = FakeMerge()
        self.compare = FakeCompare()
        self.run_engine = FakeRunEngine(self.engine)
        self.conf_changed = ""

    def ports(self) -> Ports:
        return Ports(
            host=lambda: self.host,
            files=lambda: self.files,
            merge=self.merge,
            compare=self.compare,
            run_engine=lambda _directory, _destination: self.run_engine,
            conf_changed=lambda _destination: self.conf_changed,
        )
