"""Where the Spark and the tables of a destination are, as conf/ and the environment say. Runs call it, and who reads the lake."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestration.ports import MergeFailedError

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from spark_jobs.report import TableTarget
    from spark_jobs.session import SparkSettings

LANES_FILE = "spark-sessions.json"  # so that the next run ends what a killed one left running in Spark


def spark_settings(config: SluiceConfig, destination: str) -> SparkSettings:
    """Where the Spark of a destination is. The lanes' file is for who holds the run lock."""
    from spark_jobs.session import SparkSettings  # noqa: PLC0415

    return SparkSettings(
        remote=config.spark.remote,
        master=config.spark.master,
        lanes_file=config.destination_dir(destination) / LANES_FILE,
    )


def target(config: SluiceConfig, destination: str, name: str) -> TableTarget:
    """Where and how a table is merged; `name` is "database.table"."""
    from spark_jobs.report import TableTarget  # noqa: PLC0415
    from spark_jobs.tables.layout import Layout  # noqa: PLC0415

    database, _, table = name.partition(".")
    options = config.destinations[destination].table(database, table)
    return TableTarget(
        path=config.table_path(destination, database, table),
        deletes=options.deletes,
        deletion_vectors=options.deletion_vectors,
        merge=config.destinations[destination].merge_way(database, table),
        layout=Layout(
            partition_by=options.partition_by, cluster_by=options.cluster_by, change_feed=options.change_feed
        ),
    )


def storage_options(configured: Mapping[str, str]) -> dict[str, str]:
    """`$NAME` values read from the environment, here and nowhere else: they are secrets. Raises MergeFailedError naming what lacks."""
    missing = sorted(
        value[1:] for value in configured.values() if value.startswith("$") and value[1:] not in os.environ
    )
    if missing:
        raise MergeFailedError(f"storage_options name {', '.join(missing)}, which the run's environment does not have")
    return {name: os.environ[value[1:]] if value.startswith("$") else value for name, value in configured.items()}
