"""Keeps the cuts of a destination: which version of every table belongs to one position. A run calls it, holding the run lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_engine.destination_files import LakeTables, read_ledger
from orchestration.run.lake_settings import storage_options, target

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdc_engine.config import SluiceConfig
    from spark_jobs.staged_batch import StagedBatch


def keep_cut(
    config: SluiceConfig, destination: str, run: str, batch: StagedBatch, *, held: Collection[str] = ()
) -> None:
    """The run's last commit: all tables of the destination at the batch's end. `held`: those whose rows are being read, which stand still.

    Raises SparkJobError where Delta refuses.
    """
    from lake_cut.cut import cuts_path  # noqa: PLC0415
    from spark_jobs.cuts import Published, publish_cut  # noqa: PLC0415
    from spark_jobs.tables.table_owner import TableRecord  # noqa: PLC0415

    directory = config.destination_dir(destination)
    tables = {
        name: (target(config, destination, name).path, TableRecord(table_id=table_id, version=version))
        for name, (table_id, version) in LakeTables(directory).tables.items()
    }
    stopped = {each.name for each in read_ledger(directory).stopped_tables}
    published = Published(tables=tables, stopped=stopped | set(held), run=run)
    publish_cut(batch, cuts_path(config.lake, destination), published, storage_options(config.storage_options))


def amend_cut(config: SluiceConfig, destination: str, table: str, label: int) -> None:
    """A snapshot of the table was published, with its changes up to the order key `label`. Raises SparkJobError where Delta refuses."""
    from lake_cut.cut import cuts_path  # noqa: PLC0415
    from spark_jobs.cuts import amend_newest  # noqa: PLC0415
    from spark_jobs.tables.table_owner import TableRecord  # noqa: PLC0415

    kept = LakeTables(config.destination_dir(destination)).get(table)
    if kept is not None:
        there = target(config, destination, table).path, TableRecord(table_id=kept[0], version=kept[1])
        path = cuts_path(config.lake, destination)
        amend_newest(path, table, there, label, storage_options(config.storage_options))
