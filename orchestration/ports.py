"""What orchestration needs of the rest of Sluice, as protocols: engines, the files of a destination, a merge. `testing` has fakes.

The sensor never holds an engine: it asks the host for it each tick. The host lives in the process, not in Dagster's definitions, so
definitions may be built again without a second engine. Runs never touch a host: they read the destination's files and call the merge.
All are reached through functions that import at the first call, so that building definitions imports none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from cdc_engine.contracts import OutstandingBatch, StoppedTable, TableVersion
    from cdc_engine.position import Position
    from cdc_engine.snapshot.record import SnapshotRecord
    from equality.values import Extent, TableResult
    from orchestration.batch_reference import BatchReference


class EngineState(Protocol):
    """A moment of an engine. `state` is a word such as RUNNING or POSITION_LOST, `reason` a sentence or empty.

    `lag_seconds`: behind the source's clock. `runway_hours`: for how long the source keeps what a restart would read; None: for ever, or
    nobody knows. `cursor`: what is acked; `position`: what was read. `troubles`: what else is wrong, a sentence each.
    """

    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def position(self) -> Position | None: ...
    @property
    def cursor(self) -> Position | None: ...
    @property
    def lag_seconds(self) -> float: ...
    @property
    def runway_hours(self) -> float | None: ...
    @property
    def rows_per_second(self) -> float: ...
    @property
    def ring_bytes(self) -> int: ...
    @property
    def ring_bytes_max(self) -> int: ...
    @property
    def ring_events(self) -> int: ...
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def stopped_tables(self) -> tuple[StoppedTable, ...]: ...
    @property
    def troubles(self) -> tuple[str, ...]: ...


class EngineHandle(Protocol):
    """One destination's engine, as the sensor sees it. All methods are safe to call from any thread."""

    @property
    def directory(self) -> Path:
        """The destination's directory: ledger, staged batches, locks."""

    def status(self) -> EngineState: ...

    def outstanding(self) -> OutstandingBatch | None:
        """The head of the line: handed out and neither acked nor rolled back. Repeatable."""

    def hand_out(self, timeout_seconds: float) -> OutstandingBatch | None:
        """The outstanding batch, else the next one as soon as it is staged; None when none is within the time given."""

    def lengthen(self, batch: OutstandingBatch) -> OutstandingBatch:
        """The outstanding batch with what came since it was cut, as another delivery in its place.

        Itself where nothing came, or where it is not to grow: it is large, or came before. Raises CanalServiceError as `ack` does.
        """

    def ack(self, batch: OutstandingBatch) -> None:
        """Raises CanalServiceError when `batch` is not outstanding any more."""

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        """The same changes are handed out again under a new delivery. Raises CanalServiceError as `ack` does.

        `damaged`: the run could not read the staged files, so they are staged anew.
        """

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        """Tables that cannot be merged stop, and the batch is handed out again without them. Raises CanalServiceError as `ack` does.

        `reasons`: "database.table" → (state, reason).
        """

    def tell_lake(self, troubles: tuple[str, ...]) -> None:
        """What others did to the Delta tables or to conf/, and which runs fail, a sentence each, for the engine's status; or none."""

    def tell_tick(self) -> None:
        """The sensor has come by; the engine's status says when."""

    def tell_run(self, batch: OutstandingBatch, state: str) -> None:
        """In which of Dagster's states the run of a batch was seen, for the engine's status; empty where there is none."""

    def tell_failing(self, reason: str) -> None:
        """What keeps several runs in a row from merging the batch that is out, for the engine's status until a batch is acked; or empty."""

    def tell_waiting(self, reason: str) -> None:
        """Why the next try of the batch that is out waits, for the engine's status; empty when it does not."""


class EngineHost(Protocol):
    """The engines of this process."""

    def get_or_start(self, destination: str) -> EngineHandle:
        """Waits for a moment at most. Raises LeaseLostError while another process has the destination, EngineStartingError while it is
        being started, another SluiceError when it cannot start.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """What the engine has for a run that drains: its next batch, or none yet. `leave`: why the run is to end instead, or empty."""

    reference: BatchReference | None = None
    leave: str = ""


class Feed(Protocol):
    """A destination's engine as a run sees it: what `EngineHandle` promises, with batches by reference.

    Each call raises FeedAwayError where no engine gets the request, RequestUnansweredError where the answer does not come, and another
    SluiceError where the engine refuses. `hand_out` and `ack` may be called again after each of these.
    """

    def hand_out(self, timeout_seconds: float) -> Offer:
        """As `EngineHandle.hand_out`."""

    def lengthen(self, reference: BatchReference) -> BatchReference:
        """As `EngineHandle.lengthen`. Raises BatchNotFoundError when the batch is not outstanding any more.

        After RequestUnansweredError the batch may get another end at any later time: the run must end before it writes.
        """

    def ack(self, reference: BatchReference) -> None:
        """The batch is in all of its tables. Raises BatchNotFoundError when it is not outstanding any more."""


class FeedAwayError(Exception):
    """No engine gets the request of a run: its host has died, or is another process by now. What is merged is settled by the ticks."""


class RequestUnansweredError(FeedAwayError):
    """An engine was sent a request and did not answer: it may have done what was requested, or may still do it."""


class DestinationFiles(Protocol):
    """The files of a destination, as `cdc_engine.destination_files` reads them; `directory` is the destination's."""

    def head_of_line(self, directory: Path) -> OutstandingBatch | None:
        """The batch that is out and settled next, from the ledger. Raises SluiceError when the ledger cannot be read."""

    def run_lock(self, directory: Path, timeout_seconds: float) -> AbstractContextManager[Callable[[], str]]:
        """Held by one run of the destination at a time. Raises SluiceError when another process keeps it for longer than this.

        Yields the fence: it asks where the lock is kept, and returns why the run may not write any more, or nothing.
        """

    def run_lock_held(self, directory: Path) -> bool:
        """Whether some process holds the run lock in this moment."""

    def run_lock_wanted(self, directory: Path) -> bool:
        """Whether somebody waits for the run lock in this moment."""

    def drain_lock(self, directory: Path) -> AbstractContextManager[bool]:
        """Whether this run is the one that drains, while the block lasts."""

    def drain_lock_held(self, directory: Path) -> bool:
        """Whether a run is attached that drains."""


class TableOutcome(Protocol):
    """What one batch did to one table; `spark_jobs.report.TableReport` is one. `columns`: (name, Spark SQL type).

    `way`: "spark" or "small", who merged it; `reason`: why.
    `held`: the table's rows are being read, so its changes wait beside the lake.
    `table_rows`, `table_bytes`: what the table has since, as far as its log says.
    """

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def rows_inserted(self) -> int: ...
    @property
    def rows_updated(self) -> int: ...
    @property
    def rows_deleted(self) -> int: ...
    @property
    def source_rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def merge_ms(self) -> int: ...
    @property
    def files_added(self) -> int: ...
    @property
    def files_removed(self) -> int: ...
    @property
    def rows_copied(self) -> int: ...
    @property
    def files_scanned(self) -> int: ...
    @property
    def files_pruned(self) -> int: ...
    @property
    def delta_version(self) -> int: ...
    @property
    def delta_version_before(self) -> int: ...
    @property
    def source_inserts(self) -> int: ...
    @property
    def source_updates(self) -> int: ...
    @property
    def source_deletes(self) -> int: ...
    @property
    def first_commit_time_us(self) -> int: ...
    @property
    def last_commit_time_us(self) -> int: ...
    @property
    def columns(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def way(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def held(self) -> bool: ...
    @property
    def table_rows(self) -> int | None: ...
    @property
    def table_bytes(self) -> int | None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeOrder:
    """One batch to merge: `batch_dir` is its staged directory, `tables` the "database.table" in it.

    `refusal`: asked before each commit, from any thread: why this batch may no longer be merged, or empty. `run`: the run's id,
    which the commits keep. `stored`: URL of the same files in an object store; empty: they are in `batch_dir` alone.
    """

    config: SluiceConfig
    destination: str
    batch_dir: Path
    tables: Sequence[str]
    refusal: Callable[[], str]
    run: str = ""
    stored: str = ""


class Merge(Protocol):
    def __call__(self, order: MergeOrder, on_table_done: Callable[[TableOutcome], None]) -> None:
        """Merges the whole batch and calls back, in the calling thread, after each table.

        Raises MergeFailedError, one sentence; SparkAwayError when no Spark answered. Calling it again with the same batch changes
        nothing twice.
        """


@dataclasses.dataclass(frozen=True)
class TableFailure:
    """Why one table could not be merged. `for_good`: trying again will not help (another owner, a table that was replaced)."""

    state: str
    reason: str
    for_good: bool = False


class MergeFailedError(Exception):
    """A batch could not be merged, or not wholly; the message is a sentence for the run's page and holds no secret.

    `tables`: "database.table" → why that table could not be merged, for reasons of its own.
    """

    def __init__(self, message: str, tables: Mapping[str, TableFailure] | None = None) -> None:
        super().__init__(message)
        self.tables = dict(tables or {})


class SparkAwayError(MergeFailedError):
    """No Spark answered, or it went away meanwhile: it is tried again soon."""


class BatchDamagedError(MergeFailedError):
    """The staged files are not what their manifest says: they are staged anew."""


class Compare(Protocol):
    def __call__(
        self, config: SluiceConfig, destination: str, tables: Sequence[str], extent: Extent, /
    ) -> Iterator[TableResult]:
        """Compares tables with the source, one result each. Raises SluiceError where a side does not answer."""


def no_comparison(*_: object, **__: object) -> Iterator[TableResult]:
    """Implements `Compare` where nobody asks."""
    raise NotImplementedError


class PublishOutcome(Protocol):
    """What the publication of a snapshot did; `spark_jobs.snapshot.publish.Published` is one.

    `label`: the order key up to which the table has its changes. `table_rows`, `table_bytes`, `way`, `reason`: as in `TableOutcome`.
    """

    @property
    def rows(self) -> int: ...
    @property
    def label(self) -> int: ...
    @property
    def delta_version(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def columns(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def table_rows(self) -> int | None: ...
    @property
    def table_bytes(self) -> int | None: ...
    @property
    def way(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Publish(Protocol):
    def __call__(
        self,
        config: SluiceConfig,
        destination: str,
        record: SnapshotRecord,
        table: TableVersion,
        run: str,
        *,
        refusal: Callable[[], str],
    ) -> PublishOutcome:
        """Makes the table of the lake from what was read and buffered; the caller holds the run lock. Doing it again is safe.

        `run`: the Dagster run's id, for the commit's record. `refusal`: of the run lock, asked before each commit.

        Raises MergeFailedError, SparkAwayError, or TableChangedError where the rows are to be read anew.
        """


def no_publish(
    config: SluiceConfig,  # noqa: ARG001
    destination: str,
    record: SnapshotRecord,
    table: TableVersion,  # noqa: ARG001
    run: str,  # noqa: ARG001
    *,
    refusal: Callable[[], str],  # noqa: ARG001
) -> PublishOutcome:
    """Of definitions without a Spark."""
    raise MergeFailedError(f"{record.name} of {destination} cannot be published: there is no Spark")


def no_feed(directory: Path, destination: str) -> Feed:
    """Of definitions whose engine opens no door."""
    raise FeedAwayError(f"no engine of {destination} answers: {directory} has no door")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the definitions reach the rest of Sluice.

    `conf_troubles`: why the file of a destination in conf/ is not what is in use, or not what its engine uses, a sentence each.
    `conf_changed`: why a run of a destination is to leave what it has not begun to one with the conf/ of now, or empty.
    """

    host: Callable[[], EngineHost]
    files: Callable[[], DestinationFiles]
    merge: Merge
    compare: Compare = no_comparison
    publish: Publish = no_publish
    feed: Callable[[Path, str], Feed] = no_feed
    conf_troubles: Callable[[str], tuple[str, ...]] = lambda _: ()
    conf_changed: Callable[[str], str] = lambda _: ""
