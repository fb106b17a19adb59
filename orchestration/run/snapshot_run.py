"""Defines the job that reads all rows of tables and publishes these rows. The sensor `snapshot_sensor` starts the job while snapshots are
open.

A run of the job works in parallel with merges. The run holds the run lock only briefly, when a snapshot begins and when a table is
published.
"""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.snapshot.record import SnapshotRecord, progress
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.orchestration.base import failpoints
from sluice.orchestration.base.lake_settings import lake_errors, spark_settings
from sluice.orchestration.base.markdown import code
from sluice.orchestration.base.open_runs import add_ledger_tags
from sluice.orchestration.base.ports import MergeFailedError, Ports, PublishOutcome
from sluice.orchestration.base.shown_tables import shown_tables
from sluice.orchestration.base.stored_together import stored_together
from sluice.orchestration.base.table_catalog import delta_key
from sluice.orchestration.run.catalog.registration import register_after_run
from sluice.orchestration.run.consistent_snapshots import SnapshotAmendments
from sluice.orchestration.run.merge_run import JoinedSentences, as_failure, give_way, only_writer
from sluice.orchestration.run.table_events import TableEvents

if TYPE_CHECKING:
    from sluice.spark_jobs.snapshot.spark_on_demand import SparkOnDemand

OBSERVED_SECONDS = 10.0  # The progress of a table is reported at most once in this many seconds.
# While a run reads a table, the newest consistent snapshot gets the tables that the run has already published: at each progress report,
# except the first one. If the table that is read probably has at least this many rows, the run does this at the first report too. There
# may be no second report, because a table without a key is read in one chunk.
LONG_READ_ROWS = 1_000_000
WAIT_SECONDS = 20.0  # How long a run waits for the stream before it ends and leaves the remaining work to a later run.


def snapshot_name(destination: str) -> str:
    """Returns the name of the step that reads and publishes the snapshots of a destination. The job's name is the same with `_job`
    appended.
    """
    return f"snapshot_{destination}"


def snapshot_job(config: SluiceConfig, destination: str, ports: Ports) -> dg.JobDefinition:
    """Returns the job that reads and publishes the snapshots of a destination. Its only step works on all open snapshots until none can
    progress within WAIT_SECONDS.
    """

    @dg.op(name=snapshot_name(destination))
    def snapshot(context: dg.OpExecutionContext) -> None:
        from sluice.cdc_engine.instance.tables.table_snapshots import SnapshotCallbacks, snapshot_dependencies  # noqa: PLC0415  imports kernels
        from sluice.cdc_engine.snapshot.groups import run_all  # noqa: PLC0415

        directory = config.destination_dir(destination)
        with as_failure():
            add_ledger_tags(context, directory)
        reading = SnapshotRecords(directory).take_reading()
        if reading is None:
            context.log.info("another run reads the rows of %s, so this run has nothing to do", destination)
            return
        listener = _SnapshotListener(context, config, destination, ports)
        callbacks = SnapshotCallbacks(
            run_lock=listener.run_lock,
            publish=listener.publish,
            say=listener.sentences.say,
            progress=listener.progress,
            flush=listener.flush,
            together=lambda: stored_together(context.instance),
            must_end=lambda: ports.conf_changed(destination) if reading.held else "another run now reads the rows",
        )
        try:
            with as_failure():
                try:
                    run_all(snapshot_dependencies(config, destination, callbacks), WAIT_SECONDS)
                finally:
                    try:
                        listener.flush()
                        listener.amend_rest()
                    finally:  # After an error too, the tables that were published before the error must be registered.
                        register_after_run(config, destination, listener.written)
        finally:
            reading.release()

    @dg.job(
        name=f"{snapshot_name(destination)}_job",
        executor_def=dg.in_process_executor,
        description=(
            f"Reads all rows of tables of {destination} from the source while the stream continues, and publishes each table "
            f"in one commit. Started by the sensor {destination}_snapshots; `sluice snapshot start {destination}` requests a snapshot."
        ),
    )
    def job() -> None:
        snapshot()

    return job


def request_snapshots(
    context: dg.OpExecutionContext, config: SluiceConfig, destination: str, names: Sequence[str], where: str = ""
) -> None:
    """Requests snapshots of the named tables, or of all captured tables, as `sluice snapshot start` does. Raises SluiceError if a named
    table is not captured, or if a record cannot be read or written.

    The destination's snapshot job reads and publishes the rows, and reports the materializations.
    """
    from sluice.cdc_engine.acts.snapshot import chosen, start  # noqa: PLC0415  not needed by merges

    directory, shown = config.destination_dir(destination), shown_tables(config, destination)
    for record in start(directory, chosen(directory, names), where):
        context.log.info(
            "%s: a snapshot is requested (%s): a run reads the table's rows while the stream continues, and publishes "
            "these rows in one commit; `sluice snapshot status` shows the progress",
            *(record.name, record.state),
        )
        metadata = {"snapshot_state": dg.MetadataValue.text(str(record.state))}
        if shown.has_asset(record.name):
            context.log_event(dg.AssetObservation(delta_key(destination, record.name), metadata=metadata))


class _SnapshotListener:
    """Provides the callbacks for a destination's snapshots in a Dagster run: run lock, publication and progress events."""

    def __init__(self, context: dg.OpExecutionContext, config: SluiceConfig, destination: str, ports: Ports) -> None:
        self._context, self._config, self._destination, self._ports = context, config, destination, ports
        self._events = TableEvents(context, config, destination)
        self._consistent_snapshots = SnapshotAmendments(config, destination)
        self._observed: dict[str, float] = {}
        self._outcomes: dict[str, PublishOutcome] = {}
        # Published tables that share an asset. `flush` reports the materialization of the asset.
        self._shared: list[tuple[SnapshotRecord, PublishOutcome]] = []
        self._spark: SparkOnDemand | None = None
        self.sentences = JoinedSentences(context.log.info)
        self.written: dict[str, tuple[tuple[str, str], ...]] = {}  # Path of a Delta table → its columns (name, type).
        self._fence: Callable[[], str] = lambda: "this run does not hold the run lock"

    @contextlib.contextmanager
    def run_lock(self) -> Iterator[None]:
        # A run takes the run lock again right after it has released the lock. `give_way` lets another process that waits for the lock take
        # the lock first.
        give_way(self._ports, self._config.destination_dir(self._destination))
        with only_writer(self._ports, self._config, self._destination, self._context.log.info) as fence:
            self._fence = fence
            try:
                yield
            finally:
                if self._spark is not None:
                    self._spark.release()

    def publish(self, record: SnapshotRecord, table: TableVersion) -> int:
        failpoints.reach(failpoints.BEFORE_PUBLISH)
        outcome = self._ports.publish(
            self._config,
            self._destination,
            record,
            table,
            self._context.run_id,
            refusal=self._fence,
            amend=self._amend,
            spark=self._spark_on_demand(),
        )
        failpoints.reach(failpoints.AFTER_PUBLISH)
        self._outcomes[record.name] = outcome
        self.written[self._config.kept_path(self._destination, table.database, table.table)] = outcome.columns
        return outcome.label

    def _spark_on_demand(self) -> "SparkOnDemand":
        """Returns the object that opens a Spark session for publications of this run. Reads the settings of Spark again for each
        publication, because secrets may change.
        """
        from sluice.spark_jobs.snapshot.spark_on_demand import SparkOnDemand as OnDemand  # noqa: PLC0415

        with lake_errors(self._config):
            settings = spark_settings(self._config, self._destination)
        if self._spark is None:
            self._spark = OnDemand(settings)
        self._spark.settings = settings
        return self._spark

    def _amend(self, table: str, label: int) -> None:
        self._consistent_snapshots.add(table, label, self._fence)

    def amend_rest(self) -> None:
        """Adds to the newest consistent snapshot the published tables that it lacks. Raises MergeFailedError or SluiceError if another
        process keeps the run lock, or if the snapshot cannot be written.
        """
        if self._consistent_snapshots.waiting:
            with lake_errors(self._config), self.run_lock():
                self._consistent_snapshots.write(self._fence)

    def _amend_amid_reading(self) -> None:
        """Adds the published tables to the newest consistent snapshot while another table is read for a long time. If the run is killed
        during this time, the newest consistent snapshot already has the published tables.

        Does nothing while another process holds the run lock. That process is usually a merge run, which records a consistent snapshot with
        these tables itself. After an error, only logs a warning, because the run tries again at its end.
        """
        if not self._consistent_snapshots.waiting or self._ports.files().run_lock_held(
            self._config.destination_dir(self._destination)
        ):
            return
        try:
            self.amend_rest()
        except (SluiceError, MergeFailedError) as error:
            self._context.log.warning(
                "published tables could not be added to the newest consistent snapshot; the end of this run tries again: %s",
                error,
            )

    def progress(self, record: SnapshotRecord) -> None:
        """Reports a table's progress to Dagster, at most once in OBSERVED_SECONDS, because Dagster plots only the newest hundred events. A
        table that is read within OBSERVED_SECONDS gets no progress report. After a table was published, reports a materialization. If the
        table shares its asset with other tables, `flush` reports the materialization.
        """
        failpoints.reach(failpoints.AFTER_CHUNK)
        now = time.time()
        if (outcome := self._outcomes.pop(record.name, None)) is not None:
            if not self._events.shown.has_asset(record.name):
                self._shared.append((record, outcome))
                return
            self._events.written(record.name, outcome, _published(record, outcome))
            details = {
                "source_rows": dg.MetadataValue.int(record.rows),
                "start_position": dg.MetadataValue.text(str(record.began_at)),
            }
            self._events.sides_written(record.name, outcome, details)
            self._events.passed(record.name)
        elif now - self._observed.get(record.name, record.reading_at) >= OBSERVED_SECONDS:
            if record.name in self._observed or record.rows_expected >= LONG_READ_ROWS:
                self._amend_amid_reading()
            self._observed[record.name] = now
            if self._events.shown.has_asset(record.name):
                key = delta_key(self._destination, record.name)
                self._context.log_event(dg.AssetObservation(key, metadata=_progress(record, now)))

    def flush(self) -> None:
        """Logs the sentences that were not logged yet. For each asset that several tables share, reports one materialization for all tables
        of the asset that were published since the last call.
        """
        self.sentences.flush()
        by_key = dict[dg.AssetKey, list[tuple[SnapshotRecord, PublishOutcome]]]()
        for record, outcome in self._shared:
            by_key.setdefault(self._events.shown.key(record.name), []).append((record, outcome))
        self._shared.clear()
        for key, published in by_key.items():
            self._context.log_event(dg.AssetMaterialization(key, metadata=_published_together(published)))


def _progress(record: SnapshotRecord, now: float) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of a snapshot's progress. If the remaining time cannot be estimated, the metadata contains no expected end."""
    made = progress(record, now)
    ends = (
        {}
        if made.seconds_left is None
        else {"snapshot_ends_about": dg.MetadataValue.timestamp(now + made.seconds_left)}
    )
    return {
        "snapshot_rows": dg.MetadataValue.int(made.done),
        "snapshot_rows_expected": dg.MetadataValue.int(made.expected),
        "snapshot_percent": dg.MetadataValue.float(made.percent or 0.0),
        "snapshot_rows_per_second": dg.MetadataValue.float(made.per_second),
        "snapshot_seconds_left": dg.MetadataValue.float(made.seconds_left or 0.0),
        "snapshot_state": dg.MetadataValue.text(str(record.state)),
        **ends,
    }


def _published_together(published: Sequence[tuple[SnapshotRecord, PublishOutcome]]) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of a materialization of an asset that several tables share: sums over the tables, and a line for each table.
    Each sum has the same name as the value of a single table in `_published`.
    """
    lines = [
        f"| {code(record.name)} | {record.rows} | {outcome.delta_version} | {outcome.way} |"
        for record, outcome in published
    ]
    table = "\n".join(["| table | rows | Delta version | published by |", "|---|---|---|---|", *lines])
    return {
        "tables_published": dg.MetadataValue.int(len(published)),
        "snapshot_rows": dg.MetadataValue.int(sum(record.rows for record, _ in published)),
        "snapshot_chunks": dg.MetadataValue.int(sum(record.chunks for record, _ in published)),
        "snapshot_restarts": dg.MetadataValue.int(sum(record.restarts for record, _ in published)),
        "publish_seconds": dg.MetadataValue.float(sum(outcome.seconds for _, outcome in published)),
        "rows_inserted": dg.MetadataValue.int(sum(outcome.rows for _, outcome in published)),
        "tables": dg.MetadataValue.md(table),
    }


def _published(record: SnapshotRecord, outcome: PublishOutcome) -> dict[str, dg.MetadataValue[Any]]:
    return {
        "snapshot_rows": dg.MetadataValue.int(record.rows),
        "snapshot_chunks": dg.MetadataValue.int(record.chunks),
        "snapshot_seconds": dg.MetadataValue.float(max(0.0, record.read_at - record.reading_at)),
        "snapshot_restarts": dg.MetadataValue.int(record.restarts),
        "publish_seconds": dg.MetadataValue.float(outcome.seconds),
        "published_by": dg.MetadataValue.text(f"{outcome.way}: {outcome.reason}"),
        "rows_inserted": dg.MetadataValue.int(outcome.rows),
        "delta_version": dg.MetadataValue.int(outcome.delta_version),
        "start_position": dg.MetadataValue.text(str(record.began_at)),
    }
