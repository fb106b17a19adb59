"""Defines protocols for the parts of Sluice that orchestration calls: the engines, the files of a destination, the merge. `testing`
contains fakes of them.

The sensor keeps no engine: each tick gets it from the host. The host belongs to the process and not to Dagster's definitions, so a
rebuild of the definitions starts no second engine. Runs use no host: they read the destination's files and call the merge. All ports are
functions that import their code at the first call, so that building definitions does not import it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.cdc_engine.errors import EngineStartingError, LeaseLostError, SluiceError
from sluice.orchestration.base.batch_reference import BatchReference

if TYPE_CHECKING:
    from sluice.batch_manifest.table_report import TableReport
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.contracts import OutstandingBatch, StoppedTable, TableVersion
    from sluice.cdc_engine.position import Position
    from sluice.cdc_engine.snapshot.record import SnapshotRecord
    from sluice.equality.values import Extent, TableResult


class EngineSnapshot(Protocol):
    """The state of an engine at one moment. `state`: its name, for example RUNNING or POSITION_LOST. `reason`: a sentence, or empty.

    `lag_seconds`: the lag behind the source's clock. `retention_left_hours`: hours until the source purges the binlog file that a restart
    needs; None: unlimited or unknown. `oldest_binlog_hours`: the age of the source's oldest binlog file; None: unknown. `cursor`: the
    acked position. `position`: the read position. `troubles`: other problems, one sentence each.
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
    def retention_left_hours(self) -> float | None: ...
    @property
    def oldest_binlog_hours(self) -> float | None: ...
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
    """The engine of one destination as the sensor uses it. All methods may be called from any thread."""

    @property
    def directory(self) -> Path:
        """The destination's directory, which contains the ledger, the staged batches and the locks."""

    def status(self) -> EngineSnapshot: ...

    def outstanding(self) -> OutstandingBatch | None:
        """Returns the oldest batch in flight, or None. Repeated calls change nothing."""

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        """Returns the batch in flight. If there is none, waits until the next batch is staged; returns None after the timeout.

        `appendable`: the engine may leave the end of the next batch open until the batch's run takes it.
        """

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        """Fixes the end of the batch and returns the batch. The run calls this before it merges. Every later call returns the same batch.

        `append`: first append the changes that arrived since the batch was staged, if the batch is appendable. Raises CanalServiceError
        if the batch is no longer in flight. After any other error the caller may repeat the call.
        """

    def ack(self, batch: OutstandingBatch) -> None:
        """Acks the batch. Raises CanalServiceError if `batch` is no longer in flight."""

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        """Rolls the batch back: the engine hands out the same changes again with a new delivery number. Raises CanalServiceError as `ack`
        does.

        `damaged`: the run could not read the staged files, so the engine stages them again.
        """

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        """Stops tables that cannot be merged and hands the batch out again without them. Raises CanalServiceError as `ack` does.

        `reasons`: "database.table" → (state, reason).
        """

    def tell_lake(self, troubles: tuple[str, ...]) -> None:
        """Replaces the problems that the sensor reports in the engine's status, one sentence each: changes of the Delta tables or of
        conf/ by other programs, and failing runs.
        """

    def tell_tick(self, failed: str = "") -> None:
        """Records in the engine's status that the sensor has ticked. `failed`: why the tick failed, or empty."""

    def tell_run(self, batch: OutstandingBatch, state: str) -> None:
        """Records the Dagster state of the batch's run in the engine's status. `state` is empty if the batch has no run."""

    def tell_failing(self, reason: str) -> None:
        """Records in the engine's status why several runs in a row failed to merge the batch in flight; empty if they did not. The reason
        stays until a batch is acked.
        """

    def tell_waiting(self, reason: str) -> None:
        """Records in the engine's status why the next attempt to merge the batch in flight waits; empty if it does not wait."""


class EngineHost(Protocol):
    """Starts and returns the engines of this process."""

    def get_or_start(self, destination: str) -> EngineHandle:
        """Returns the engine and starts it if necessary. Returns or raises after a short wait at most. Raises LeaseLostError if another
        process runs the destination, EngineStartingError while the engine starts, and another SluiceError if it cannot start.
        """


class EngineAwayError(SluiceError):
    """No engine process answers, or the engine process rejects the caller. The request may nevertheless be executed, now or later."""

    code = "ENGINE_AWAY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """The engine's answer to a draining run: its next batch, or None if none is staged yet. `leave`: why the run must end; otherwise
    empty.
    """

    reference: BatchReference | None = None
    leave: str = ""


# The errors by which a run finds no engine: its host is stopped or dead, the engine is starting, or another process runs it. The sensor
# settles the merged batches later.
NO_ENGINE = (EngineAwayError, EngineStartingError, LeaseLostError)


class RunEngine(Protocol):
    """The engine of a destination as a run uses it: like `EngineHandle`, but with references instead of batches.

    Each call raises one of NO_ENGINE if no engine answers, although the request may have been executed, and another SluiceError if the
    engine refuses. The caller may repeat every call after each of these errors.
    """

    def hand_out(self, timeout_seconds: float) -> Offer:
        """Returns what `EngineHandle.hand_out` returns, with the end of the batch fixed."""

    def take(self, reference: BatchReference, *, append: bool) -> None:
        """Does what `EngineHandle.take` does. Raises BatchNotFoundError if the batch is no longer in flight."""

    def ack(self, reference: BatchReference) -> None:
        """Acks a batch that is merged into all of its tables. Raises BatchNotFoundError if it is no longer in flight."""


class DestinationFiles(Protocol):
    """Reads the files of a destination and takes its locks. `directory`: the destination's directory."""

    def head_of_line(self, directory: Path) -> OutstandingBatch | None:
        """Returns the oldest batch in flight from the ledger, which must be settled next. Raises SluiceError if the ledger cannot be
        read.
        """

    def run_lock(self, directory: Path, timeout_seconds: float) -> AbstractContextManager[Callable[[], str]]:
        """Takes the run lock, which one run of the destination holds at a time. Raises SluiceError if another process holds it for longer
        than the timeout.

        Yields the fence: a function that checks the lock at its store and returns why the run may not write any more, or an empty text.
        """

    def run_lock_held(self, directory: Path) -> bool:
        """Returns whether a process holds the run lock now."""

    def run_lock_wanted(self, directory: Path) -> bool:
        """Returns whether a process waits for the run lock now."""

    def drain_lock(self, directory: Path) -> AbstractContextManager[Callable[[], str]]:
        """Takes the drain lock until the block ends. Yields a function that returns why this run may not drain, or an empty text. The
        function waits for another holder, because that holder may have been killed.
        """

    def drain_lock_held(self, directory: Path) -> bool:
        """Returns whether a draining run holds the drain lock."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeOrder:
    """A request to merge one batch. `batch_dir`: the directory of the staged batch. `tables`: the "database.table" names in the batch.

    `refusal`: called before each commit, from any thread; returns why this batch may no longer be merged, or an empty text. `run`: the
    run's id, which the commits record. `stored`: the URL of the same files in an object store, or empty if they are only in `batch_dir`.
    """

    config: SluiceConfig
    destination: str
    batch_dir: Path
    tables: Sequence[str]
    refusal: Callable[[], str]
    run: str = ""
    stored: str = ""


class Merge(Protocol):
    def __call__(self, order: MergeOrder, on_table_done: Callable[[TableReport], None]) -> None:
        """Merges the whole batch. Calls `on_table_done` after each table, in the calling thread.

        Raises MergeFailedError with one sentence; SparkAwayError if no Spark answered. Merging the same batch again changes nothing.
        """


@dataclasses.dataclass(frozen=True)
class TableFailure:
    """Why one table could not be merged. `for_good`: another attempt cannot succeed, because the table has another owner or was
    replaced.
    """

    state: str
    reason: str
    for_good: bool = False


class MergeFailedError(Exception):
    """A batch could not be merged, or only some of its tables. The message is a sentence for the run's page and contains no secret.

    `tables`: "database.table" → the failure of that table, for tables that failed for a reason of their own.
    """

    def __init__(self, message: str, tables: Mapping[str, TableFailure] | None = None) -> None:
        super().__init__(message)
        self.tables = dict(tables or {})


class SparkAwayError(MergeFailedError):
    """No Spark answered, or it stopped during the merge. The merge is tried again soon."""


class BatchDamagedError(MergeFailedError):
    """The staged files do not match their manifest. The engine stages them again."""


class CompareTables(Protocol):
    def __call__(
        self, config: SluiceConfig, destination: str, tables: Sequence[str], extent: Extent, /
    ) -> Iterator[TableResult]:
        """Compares tables with the source and yields one result per table. Raises SluiceError if the source or the lake does not answer."""


def no_comparison(*_: object, **__: object) -> Iterator[TableResult]:
    """Implements `CompareTables` for definitions that never compare."""
    raise NotImplementedError


class WrittenTable(Protocol):
    """A table after a commit: its columns (name, type), and its size if the Delta log states it."""

    @property
    def columns(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def table_rows(self) -> int | None: ...
    @property
    def table_bytes(self) -> int | None: ...


class PublishOutcome(WrittenTable, Protocol):
    """The result of a snapshot's publication; `spark_jobs.snapshot.publish.Published` implements it.

    `label`: the order key up to which the table contains changes. `way`, `reason`: as in `TableReport`.
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
        amend: Callable[[str, int], None] | None = None,
    ) -> PublishOutcome:
        """Publishes a table in the lake from the rows that the snapshot read and the buffered changes. The caller holds the run lock and
        may repeat the call.

        `run`: the Dagster run's id, for the commit's metadata. `refusal`: the fence of the run lock, called before each commit. `amend`:
        called with the table and its label after the commit, to add the table to the newest consistent snapshot.

        Raises MergeFailedError, SparkAwayError, or TableChangedError if the rows must be read again.
        """


def no_publish(
    config: SluiceConfig,  # noqa: ARG001
    destination: str,
    record: SnapshotRecord,
    table: TableVersion,  # noqa: ARG001
    run: str,  # noqa: ARG001
    *,
    refusal: Callable[[], str],  # noqa: ARG001
    amend: Callable[[str, int], None] | None = None,  # noqa: ARG001
) -> PublishOutcome:
    """Implements `Publish` for definitions without a Spark."""
    raise MergeFailedError(
        f"{record.name} of {destination} cannot be published, because these definitions have no Spark; "
        "`sluice up` starts definitions with Spark"
    )


def no_run_engine(directory: Path, destination: str) -> RunEngine:
    """Raises EngineAwayError. It implements `run_engine` for definitions whose runs cannot call an engine."""
    raise EngineAwayError(f"these definitions reach no engine of {destination} ({directory})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ports:
    """The functions through which the definitions call the rest of Sluice.

    `conf_troubles`: returns one sentence for each reason why the file of a destination in conf/ is not used. Either another version is in
    use here, or the engine uses another version. `conf_changed`: returns why a run must begin no more work, or an empty text. The reason is
    that conf/ has changed, and a run with the current conf/ must do the work.
    """

    host: Callable[[], EngineHost]
    files: Callable[[], DestinationFiles]
    merge: Merge
    compare: CompareTables = no_comparison
    publish: Publish = no_publish
    run_engine: Callable[[Path, str], RunEngine] = no_run_engine
    conf_troubles: Callable[[str], tuple[str, ...]] = lambda _: ()
    conf_changed: Callable[[str], str] = lambda _: ""
