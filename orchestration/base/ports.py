"""Defines the protocols of the parts of Sluice that orchestration calls: the engines, the files of a destination, the merge. `testing` has
fakes of these parts.

The sensor keeps no engine: each tick gets the engine from the engine host (`EngineHost`). The host belongs to the process and not to
Dagster's definitions, so rebuilding the definitions starts no second engine. Runs use no host: they read the destination's files, call the
merge, and call the engine through `RunEngine`. Each port is a function that imports its code at the first call. So building definitions
does not import that code.
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
    from sluice.spark_jobs.snapshot.spark_on_demand import SparkOnDemand


class EngineSnapshot(Protocol):
    """The state of an engine at one moment.

    - `state` is the name of the state, for example RUNNING or POSITION_LOST. `reason` is a sentence that explains the state, or empty.
    - `lag_seconds` is the age of the oldest change that the source has committed and that is not acked. It is 0 if there is no such change.
    - `retention_left_hours` are the hours until the source purges the binlog file that a restart needs. None means that the time is
      unlimited or unknown.
    - `oldest_binlog_hours` is the age of the source's oldest binlog file, or None if it is unknown.
    - `cursor` is the position up to which everything is acked, and `position` the position up to which the engine has read. None means that
      the engine has no such position yet.
    - `troubles` has a sentence about each problem that does not change the state.
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
    """The engine of one destination as the sensor uses it: `Engine` (cdc_engine/instance/engine/engine.py) in the same process, which is
    the default, or `orchestration/rpc/remote_host.py`, which calls an engine in another process. All methods may be called from any thread.
    """

    @property
    def directory(self) -> Path:
        """The destination's directory, which contains the ledger, the staged batches and the locks."""

    def status(self) -> EngineSnapshot: ...

    def outstanding(self) -> OutstandingBatch | None:
        """Returns the oldest batch in flight, or None. Repeated calls change nothing."""

    def hand_out(self, timeout_seconds: float, *, appendable: bool = False) -> OutstandingBatch | None:
        """Returns the batch in flight. If there is none, waits until the next batch is staged, and returns None after the timeout. If
        `appendable`, the engine may hand out the next batch as appendable: its end is fixed only when the batch's run takes it.
        """

    def take(self, batch: OutstandingBatch, *, append: bool = True) -> OutstandingBatch:
        """Fixes the end of the batch and returns the batch. A run calls this before it merges. Every later call returns the same batch.

        If `append` and the batch is appendable, first appends the changes that arrived since the batch was staged. Raises
        CanalServiceError if the batch is no longer in flight. After any other error the caller may repeat the call.
        """

    def ack(self, batch: OutstandingBatch) -> None:
        """Acks the batch. Raises CanalServiceError if `batch` is no longer in flight."""

    def rollback(self, batch: OutstandingBatch, *, damaged: bool = False) -> None:
        """Rolls the batch back: the engine hands out the same changes again with a new delivery number. `damaged` says that the run
        could not read the staged files, so the engine stages them again. Raises CanalServiceError if the batch is no longer in
        flight.
        """

    def stop_tables(self, batch: OutstandingBatch, reasons: Mapping[str, tuple[str, str]]) -> None:
        """Stops tables that cannot be merged, and hands the batch out again without these tables. `reasons` has the state and the
        reason for each "database.table". Raises CanalServiceError if the batch is no longer in flight.
        """

    def report_lake(self, troubles: tuple[str, ...]) -> None:
        """Replaces the problems that the sensor has reported in the engine's status. Each sentence in `troubles` is about one problem: a
        change that another program made to a Delta table or to conf/, or a failing run.
        """

    def report_tick(self, failed: str = "") -> None:
        """Records in the engine's status that the sensor has ticked. `failed` says why the tick failed, and is empty if the tick
        succeeded.
        """

    def report_run(self, batch: OutstandingBatch, state: str) -> None:
        """Records the Dagster state of the batch's run in the engine's status. `state` is empty if the batch has no run."""

    def report_failing(self, reason: str) -> None:
        """Records `reason` in the engine's status: why several runs in a row failed to merge the batch in flight. An empty `reason` removes
        the earlier reason. The next ack removes it too.
        """

    def report_waiting(self, reason: str) -> None:
        """Records `reason` in the engine's status: why the next attempt to merge the batch in flight waits. `reason` is empty if the
        attempt does not wait.
        """


class EngineHost(Protocol):
    """Starts and returns the engines of this process."""

    def get_or_start(self, destination: str) -> EngineHandle:
        """Returns the engine, and starts it if necessary. Raises EngineStartingError if the engine is not ready after a short wait,
        LeaseLostError if another process runs the destination, and another SluiceError if the engine cannot start.
        """


class EngineAwayError(SluiceError):
    """Raised if no engine process answers, or if the engine process rejects the caller. The engine may nevertheless have executed the
    request, or may execute it later.
    """

    code = "ENGINE_AWAY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """The engine's answer to a draining run: the next batch for the run, or None if no batch is staged yet. `leave` says why the run must
    end, or is empty.
    """

    reference: BatchReference | None = None
    leave: str = ""


# A run raises one of these errors if it cannot reach its engine: the engine's host is stopped or dead, the engine is starting, or another
# process runs the engine. A later tick settles the batches that the run has merged.
NO_ENGINE = (EngineAwayError, EngineStartingError, LeaseLostError)


class RunEngine(Protocol):
    """The engine of a destination as a run uses it. The methods correspond to those of `EngineHandle`, which the sensor uses, but get a
    reference to a batch instead of the batch.

    If no engine answers, each call raises one of the errors in NO_ENGINE. The engine may have executed the request nevertheless. If the
    engine refuses the request, each call raises another SluiceError. The caller may repeat every call after any of these errors.
    """

    def hand_out(self, timeout_seconds: float) -> Offer:
        """Offers the batch in flight. If there is none, waits at most `timeout_seconds` for the next batch. Fixes the end of the batch. If
        the run must end, the offer has the reason and no batch.
        """

    def take(self, reference: BatchReference, *, append: bool) -> None:
        """Fixes the end of the batch. If `append` and the batch is appendable, the engine first appends the changes that arrived since the
        batch was staged. Raises BatchNotFoundError if the batch is no longer in flight.
        """

    def ack(self, reference: BatchReference) -> None:
        """Acks a batch that is merged into all of its tables. Raises BatchNotFoundError if it is no longer in flight."""


class DestinationFiles(Protocol):
    """Reads the files of a destination and takes its locks. `directory` is the destination's directory."""

    def head_of_line(self, directory: Path) -> OutstandingBatch | None:
        """Returns the oldest batch in flight according to the ledger, which is the next batch to settle. Raises SluiceError if the ledger
        cannot be read.
        """

    def run_lock(self, directory: Path, timeout_seconds: float) -> AbstractContextManager[Callable[[], str]]:
        """Takes the run lock, which only one run of the destination can hold. Raises SluiceError if another process holds it for longer
        than the timeout.

        Yields the fence: a function that checks the lock at the lock's store, and returns why the run may no longer write, or "".
        """

    def run_lock_held(self, directory: Path) -> bool:
        """Returns whether a process holds the run lock now."""

    def run_lock_wanted(self, directory: Path) -> bool:
        """Returns whether a process waits for the run lock now."""

    def drain_lock(self, directory: Path) -> AbstractContextManager[Callable[[], str]]:
        """Returns a context in which this run may take the drain lock. Only one run of a destination can hold this lock, and only its
        holder merges batch after batch.

        Yields a function that tries to take the lock, and returns "" if this run has it. Otherwise the function returns why this run may
        not drain: another run has the lock, or the lock's store does not answer. The function waits for a limited time, because the lock of
        a killed run becomes free only after a while.
        """

    def drain_lock_held(self, directory: Path) -> bool:
        """Returns whether a draining run holds the drain lock."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeOrder:
    """A request to merge one batch.

    - `batch_dir` is the directory of the staged batch, and `tables` are its tables as "database.table".
    - `refusal` is called before each commit, from any thread. `refusal` returns why this batch may no longer be merged, or "".
    - `run` is the run's id, which the commits record.
    - `stored` is the URL of the staged files in an object store. The URL is empty if the files are only in `batch_dir`.
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
        """Merges the whole batch. Calls `on_table_done` after each table, in the calling thread. Merging the same batch again changes
        nothing.

        Raises SparkAwayError if Spark does not answer, and MergeFailedError, with a message for users, after any other failure.
        """


@dataclasses.dataclass(frozen=True)
class TableFailure:
    """Why one table could not be merged. `state` is the state that the table gets if it stops for this reason. `for_good` is true if
    another attempt cannot succeed, for example because the table has another owner or was replaced.
    """

    state: str
    reason: str
    for_good: bool = False


class MergeFailedError(Exception):
    """Raised if a batch, or a part of its tables, could not be merged. The message is a sentence for the run's page and contains no secret.
    `tables` has the failure of each "database.table" that failed for a reason of its own.
    """

    def __init__(self, message: str, tables: Mapping[str, TableFailure] | None = None) -> None:
        super().__init__(message)
        self.tables = dict(tables or {})


class SparkAwayError(MergeFailedError):
    """Raised if Spark does not answer, or stopped during the merge. The merge is tried again soon."""


class BatchDamagedError(MergeFailedError):
    """Raised if the staged files differ from their manifest. The engine stages them again."""


class CompareTables(Protocol):
    def __call__(
        self, config: SluiceConfig, destination: str, tables: Sequence[str], extent: Extent, /
    ) -> Iterator[TableResult]:
        """Compares tables with the source and yields one result per table. Raises SluiceError if the source or the lake does not answer."""


def no_comparison(*_: object, **__: object) -> Iterator[TableResult]:
    """Raises NotImplementedError. Definitions that never compare tables use this function as their `CompareTables`."""
    raise NotImplementedError


class WrittenTable(Protocol):
    """A table after a commit: its columns as (name, type), its number of rows, and its size in bytes. The number or the size is None if the
    Delta log does not have it.
    """

    @property
    def columns(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def table_rows(self) -> int | None: ...
    @property
    def table_bytes(self) -> int | None: ...


class PublishOutcome(WrittenTable, Protocol):
    """The result of a snapshot's publication (`spark_jobs.snapshot.publication.PublishedSnapshot`). `label` is the order key up to which
    the table has all changes. `way` says how the rows came into the table: Spark wrote them ("spark"), or the files into which the snapshot
    stored them became files of the table ("files"). `reason` says why it was this way.
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
        spark: SparkOnDemand | None = None,
    ) -> PublishOutcome:
        """Publishes a table in the lake: the rows that the snapshot read, and the buffered changes. The caller holds the run lock and may
        repeat the call.

        - `run` is the id of the Dagster run, for the commit's metadata.
        - `refusal` is the fence of the run lock, and is called before each commit.
        - `amend` is called after the commit with the table and the order key up to which the table has all changes. `amend` adds the table
          to the newest consistent snapshot. If it is None, the publication itself adds the table.
        - `spark` is a Spark that several publications share while the caller holds the lock. If it is None, the publication has its own.

        Raises TableChangedError if the rows must be read again, SparkAwayError if Spark does not answer, and otherwise MergeFailedError.
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
    spark: SparkOnDemand | None = None,  # noqa: ARG001
) -> PublishOutcome:
    """Raises MergeFailedError. Definitions without a Spark use this function as their `Publish`."""
    raise MergeFailedError(
        f"{record.name} of {destination} cannot be published, because these definitions have no Spark; "
        "`sluice up` starts definitions with Spark"
    )


def no_run_engine(directory: Path, destination: str) -> RunEngine:
    """Raises EngineAwayError. Definitions whose runs cannot call an engine use this function as their `run_engine`."""
    raise EngineAwayError(
        f"runs of these definitions cannot call the engine of {destination} ({directory}); `sluice up` starts "
        "definitions whose runs can call engines"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ports:
    """The functions through which the definitions call the rest of Sluice.

    - `host` returns the engine host, and `files` the object that reads the files of destinations and takes their locks.
    - `run_engine` gets the directory and the name of a destination, and returns the engine with which a run communicates.
    - `conf_troubles` returns a sentence for each reason why a destination's file in conf/ is not used: this process or the engine uses
      another version of the file.
    - `conf_changed` returns a sentence if conf/ has changed since the run started, otherwise "". After a change, the run begins no further
      batch and no further table: a run with the new conf/ must process them.
    """

    host: Callable[[], EngineHost]
    files: Callable[[], DestinationFiles]
    merge: Merge
    compare: CompareTables = no_comparison
    publish: Publish = no_publish
    run_engine: Callable[[Path, str], RunEngine] = no_run_engine
    conf_troubles: Callable[[str], tuple[str, ...]] = lambda _: ()
    conf_changed: Callable[[str], str] = lambda _: ""
