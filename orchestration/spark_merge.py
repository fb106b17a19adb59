"""The merge of a batch by `spark_jobs`, the only place of this room that knows it; imported and called inside a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from orchestration.ports import MergeFailedError, MergeOrder, SparkAwayError, TableOutcome

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from spark_jobs.report import TableTarget

LANES_FILE = "spark-sessions.json"  # so that the next run ends what a killed one left running in Spark


def spark_merge(order: MergeOrder, on_table_done: Callable[[TableOutcome], None]) -> None:
    """Implements `ports.Merge`."""
    from spark_jobs.errors import SparkJobError, SparkUnavailableError  # noqa: PLC0415  pyspark takes a second to import
    from spark_jobs.run_batch import merge_batch  # noqa: PLC0415
    from spark_jobs.session import SparkSettings  # noqa: PLC0415

    config = order.config
    settings = SparkSettings(
        remote=config.spark.remote,
        master=config.spark.master,
        lanes_file=config.destination_dir(order.destination) / LANES_FILE,
    )
    try:
        merge_batch(
            order.batch_dir,
            {name: target(config, order.destination, name) for name in order.tables},
            settings,
            on_table_done=on_table_done,
            refusal=order.refusal,
            storage_options=storage_options(config.storage_options),
            quarantine_path=config.quarantine_path(order.destination),
        )
    except SparkUnavailableError as error:
        raise SparkAwayError(str(error)) from error
    except SparkJobError as error:
        raise MergeFailedError(str(error)) from error


def target(config: SluiceConfig, destination: str, name: str) -> TableTarget:
    """Where and how a table is merged; `name` is "database.table"."""
    from spark_jobs.report import TableTarget  # noqa: PLC0415

    database, _, table = name.partition(".")
    options = config.destinations[destination].table(database, table)
    return TableTarget(
        path=config.table_path(destination, database, table),
        deletes=options.deletes,
        deletion_vectors=options.deletion_vectors,
    )


def storage_options(configured: Mapping[str, str]) -> dict[str, str]:
    """`$NAME` values read from the environment, here and nowhere else: they are secrets. Raises MergeFailedError naming what lacks."""
    missing = sorted(
        value[1:] for value in configured.values() if value.startswith("$") and value[1:] not in os.environ
    )
    if missing:
        raise MergeFailedError(f"storage_options name {', '.join(missing)}, which the run's environment does not have")
    return {name: os.environ[value[1:]] if value.startswith("$") else value for name, value in configured.items()}
