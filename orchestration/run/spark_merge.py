"""The merge of a batch by `spark_jobs`, the only place of this room that knows it; imported and called inside a run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cdc_engine.destination_files import LakeTables
from cdc_engine.errors import SluiceError
from cdc_engine.snapshot.records import SnapshotRecords
from orchestration.ports import (
    BatchDamagedError,
    MergeFailedError,
    MergeOrder,
    SparkAwayError,
    TableFailure,
    TableOutcome,
)

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from spark_jobs.errors import MergeError
    from spark_jobs.report import TableTarget
    from spark_jobs.session import SparkSettings
    from spark_jobs.snapshot.hold import Held
    from spark_jobs.tables.table_owner import TableRecord

LANES_FILE = "spark-sessions.json"  # so that the next run ends what a killed one left running in Spark


def spark_merge(order: MergeOrder, on_table_done: Callable[[TableOutcome], None]) -> None:
    """Implements `ports.Merge`."""
    from spark_jobs.errors import (  # noqa: PLC0415  pyspark takes a second to import
        MergeError,
        SparkJobError,
        SparkUnavailableError,
        StagedBatchError,
    )
    from spark_jobs.run_batch import merge_batch  # noqa: PLC0415

    config = order.config
    try:
        merge_batch(
            order.batch_dir,
            {name: target(config, order.destination, name) for name in order.tables},
            spark_settings(config, order.destination),
            on_table_done=on_table_done,
            refusal=order.refusal,
            storage_options=storage_options(config.storage_options),
            quarantine_path=config.quarantine_path(order.destination),
            records=KeptRecords(LakeTables(config.destination_dir(order.destination))),
            holds=OpenSnapshots(SnapshotRecords(config.destination_dir(order.destination))),
            target_of=functools.partial(target, config, order.destination),
            run=order.run,
        )
    except SparkUnavailableError as error:
        raise SparkAwayError(str(error)) from error
    except StagedBatchError as error:
        raise BatchDamagedError(str(error)) from error
    except MergeError as error:
        raise MergeFailedError(str(error), failures_of(error)) from error
    except (SparkJobError, SluiceError) as error:
        raise MergeFailedError(str(error)) from error


def spark_settings(config: SluiceConfig, destination: str) -> SparkSettings:
    """Where the Spark of a destination is. The lanes' file is for who holds the run lock."""
    from spark_jobs.session import SparkSettings  # noqa: PLC0415

    return SparkSettings(
        remote=config.spark.remote,
        master=config.spark.master,
        lanes_file=config.destination_dir(destination) / LANES_FILE,
    )


class OpenSnapshots:
    """The snapshots that are open when a run begins, as `spark_jobs` wants them; made by who holds the run lock."""

    def __init__(self, records: SnapshotRecords) -> None:
        self._records = records
        self._open = {each.name: each for each in records.all() if each.is_open}

    def get(self, name: str) -> Held | None:
        from spark_jobs.snapshot.hold import Held  # noqa: PLC0415

        record = self._open.get(name)
        return Held(folder=self._records.changes_dir(record), after=record.held_after) if record else None

    def again(self, name: str, order_key: int, why: str) -> Held:
        from spark_jobs.snapshot.hold import Held  # noqa: PLC0415

        record = self._records.update(name, lambda now: now.again(why, held_after=order_key))
        self._open[name] = record
        return Held(folder=self._records.changes_dir(record), after=record.held_after)

    def fail(self, name: str, why: str) -> None:
        self._records.update(name, lambda now: now.failed(why))


class KeptRecords:
    """`lake-tables.json` as `spark_jobs` wants it."""

    def __init__(self, tables: LakeTables) -> None:
        self._tables = tables

    def get(self, name: str) -> TableRecord | None:
        from spark_jobs.tables.table_owner import TableRecord  # noqa: PLC0415

        kept = self._tables.get(name)
        return TableRecord(table_id=kept[0], version=kept[1]) if kept else None

    def keep(self, name: str, record: TableRecord) -> None:
        self.keep_all({name: record})

    def keep_all(self, records: Mapping[str, TableRecord]) -> None:
        self._tables.keep({name: (record.table_id, record.version) for name, record in records.items()})


def failures_of(error: MergeError) -> dict[str, TableFailure]:
    """The tables that failed for reasons of their own. Where none of several could be merged it is the lake: a disk is away."""
    from spark_jobs.errors import MERGE_FAILED  # noqa: PLC0415
    from spark_jobs.tables.table_owner import TABLE_MISSING  # noqa: PLC0415

    of_the_lake = {TABLE_MISSING, MERGE_FAILED}
    if len(error.failed) > 1 and not error.merged and all(each.state in of_the_lake for each in error.errors):
        return {}
    return {each.table: TableFailure(each.state, each.reason, each.for_good) for each in error.errors}


def target(config: SluiceConfig, destination: str, name: str) -> TableTarget:
    """Where and how a table is merged; `name` is "database.table"."""
    from spark_jobs.report import TableTarget  # noqa: PLC0415

    database, _, table = name.partition(".")
    options = config.destinations[destination].table(database, table)
    return TableTarget(
        path=config.table_path(destination, database, table),
        deletes=options.deletes,
        deletion_vectors=options.deletion_vectors,
        merge=config.destinations[destination].merge_way(database, table),
    )


def storage_options(configured: Mapping[str, str]) -> dict[str, str]:
    """`$NAME` values read from the environment, here and nowhere else: they are secrets. Raises MergeFailedError naming what lacks."""
    missing = sorted(
        value[1:] for value in configured.values() if value.startswith("$") and value[1:] not in os.environ
    )
    if missing:
        raise MergeFailedError(f"storage_options name {', '.join(missing)}, which the run's environment does not have")
    return {name: os.environ[value[1:]] if value.startswith("$") else value for name, value in configured.items()}
