"""Publishes the snapshot of a table with `spark_jobs`. Only runs that hold the run lock call this module."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sluice.cdc_engine.destination_files import LakeTables, read_ledger
from sluice.cdc_engine.errors import CascadeUnseenError, SluiceError, TableChangedError, TableStoppedError
from sluice.cdc_engine.position import file_number, order_key
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.orchestration.base.lake_settings import lake_error_line, spark_settings, storage_options
from sluice.orchestration.base.ports import MergeFailedError, PublishOutcome, SparkAwayError
from sluice.orchestration.run.consistent_snapshots import SnapshotAmendments
from sluice.orchestration.run.spark_merge import KeptRecords
from sluice.orchestration.run.table_locks import table_locks_of, written_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.contracts import TableVersion
    from sluice.cdc_engine.snapshot.record import SnapshotRecord
    from sluice.spark_jobs.snapshot.spark_on_demand import SparkOnDemand


def spark_publish(
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
    """Publishes a snapshot in the lake: the rows that were read, and the buffered changes. Implements `ports.Publish`. `refusal` returns
    why the run may no longer write, or "". After the commit, adds the table to the newest consistent snapshot, or calls `amend` to do so.
    If `spark` is None, uses a Spark session of its own.

    Raises TableStoppedError if the table cannot be created because its path clashes with that of another table. The table then stops,
    because every further attempt would fail too. Raises TableChangedError if the rows must be read again, SparkAwayError if Spark does not
    answer, and MergeFailedError after any other failure.
    """
    from sluice.batch_manifest.values import LakeColumn  # noqa: PLC0415
    from sluice.spark_jobs.errors import SparkJobError, SparkUnavailableError, TableError  # noqa: PLC0415
    from sluice.spark_jobs.fence import Fence  # noqa: PLC0415
    from sluice.spark_jobs.snapshot.publication import CascadesUnseenError, ColumnsDifferError, Publication  # noqa: PLC0415
    from sluice.spark_jobs.snapshot.publish import publish_snapshot  # noqa: PLC0415
    from sluice.spark_jobs.table_owner import Owner  # noqa: PLC0415

    directory = config.destination_dir(destination)
    ledger, records = read_ledger(directory), SnapshotRecords(directory)
    nullable = {column.name: column.nullable for column in table.columns}
    given = Publication(
        snapshot_id=record.snapshot_id,
        owner=Owner(ledger_id=ledger.ledger_id, destination=destination, table=record.name),
        target=written_target(config, destination)(record.name),
        columns=tuple(
            LakeColumn(name=name, type=kind.lower(), nullable=nullable.get(name, True)) for name, kind in record.columns
        ),
        key=record.key,
        chunks=records.chunks(record),
        rows=record.rows,
        changes=records.changes(record),
        cascades=records.cascades(record),
        order_key=_order_key(record, ledger.cursor.order_key if ledger.cursor else -1),
        read_at_us=record.read_at_us or time.time_ns() // 1000,
        run=run,
        epoch=ledger.epoch,
        start=record.began_at.to_json() if record.began_at else {},
        end=ledger.cursor.to_json() if ledger.cursor else {},
        since=record.began_at.order_key if record.began_at else -1,
    )
    try:
        published = publish_snapshot(
            given,
            spark or spark_settings(config, destination),
            fence=Fence(refusal),
            storage_options=storage_options(config.storage_options),
            records=KeptRecords(LakeTables(directory)),
            table_locks=table_locks_of(config, destination, run),
        )
        if amend is None:
            SnapshotAmendments(config, destination).add(record.name, published.label, refusal)
        else:
            amend(record.name, published.label)
        return published
    except CascadesUnseenError as error:
        raise CascadeUnseenError(lake_error_line(config, error)) from error
    except ColumnsDifferError as error:
        raise TableChangedError(f"{record.name}: {lake_error_line(config, error)}") from error
    except SparkUnavailableError as error:
        raise SparkAwayError(lake_error_line(config, error)) from error
    except (SparkJobError, SluiceError) as error:
        if isinstance(error, TableError) and error.for_good and given.target.clash:
            raise TableStoppedError(
                table.database, table.table, error.state, lake_error_line(config, error.reason)
            ) from error
        raise MergeFailedError(lake_error_line(config, error)) from error


def _order_key(record: SnapshotRecord, cursor_key: int) -> int:
    """Returns the order key up to which the published table has all changes. For a table with a key this is the ledger's cursor. For a
    table without a key it is the position at which the table was read, or the cursor if the record has no such position.
    """
    if record.key or record.high is None or record.began_at is None:
        return cursor_key
    return order_key(record.began_at.epoch, file_number(record.high.file), record.high.offset)
