"""Builds the settings of a destination's Spark, object stores and tables from conf/ and the environment, for runs and for readers of the
lake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.object_stores.errors import StoreError
from sluice.object_stores.options import resolved, without_secrets
from sluice.orchestration.base.ports import MergeFailedError, SparkAwayError

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.spark_jobs.session import SparkSettings
    from sluice.spark_jobs.targets.report import TableTarget
    from sluice.spark_jobs.uploaded_files import UploadSettings

# The object stores that Sluice sets up for Spark, by their names in `sluice setup --with`, with the schemes of their URLs.
SPARK_STORES = {"s3": ("s3://", "s3a://"), "azure": ("abfs://", "abfss://"), "google": ("gs://",)}
# This file has the ids of open Spark sessions. If a run is killed, the next run ends the sessions that the killed run left in Spark.
SESSIONS_FILE = "spark-sessions.json"


def spark_settings(config: SluiceConfig, destination: str) -> SparkSettings:
    """Returns the settings with which a run connects to a destination's Spark, or starts one. They include the path of SESSIONS_FILE. Only
    the holder of the run lock may use this file.
    """
    from sluice.spark_jobs.session import SparkSettings  # noqa: PLC0415

    # Only a Spark that this process starts gets options and credentials. A Spark that is already running has its own.
    inside = bool(config.spark.master)
    return SparkSettings(
        remote=config.spark.address,
        master=config.spark.master,
        sessions_file=config.destination_dir(destination) / SESSIONS_FILE,
        options=store_settings(config) if inside else {},
        environment=store_environment(config) if inside else {},
        uploads=_upload_settings(config, destination),
        sessions=0 if config.spark.sessions == "auto" else config.spark.sessions,
    )


def _upload_settings(config: SluiceConfig, destination: str) -> UploadSettings:
    """Returns where a run uploads files that Spark reads: the object store of the staged batches. The settings are empty if staged batches
    are not in a store.
    """
    from sluice.spark_jobs.uploaded_files import UploadSettings  # noqa: PLC0415

    url = config.ledger_location(destination).sibling_url("uploaded")
    return UploadSettings(url=url, storage_options=storage_options(config.storage_options) if url else {})


def spark_stores(config: SluiceConfig) -> tuple[str, ...]:
    """Returns the stores of SPARK_STORES in which the lake, a table with its own path, or the staging directory is."""
    tables = [table.path for each in config.destinations.values() for table in each.tables.values()]
    paths = (config.lake, config.staging, *tables)
    return tuple(store for store, schemes in SPARK_STORES.items() if any(path.startswith(schemes) for path in paths))


def store_settings(config: SluiceConfig) -> dict[str, str]:
    """Returns the Spark options for the lake's object stores, without credentials, for a Spark that Sluice starts. Returns {} if neither
    the lake, nor a table, nor the staging directory is in an object store. Raises MergeFailedError if a secret cannot be read.
    """
    if not (stores := spark_stores(config)):
        return {}
    from sluice.spark_jobs import object_store  # noqa: PLC0415  imports deltalake, which takes a second

    options = storage_options(config.storage_options)
    return {name: value for store in stores for name, value in object_store.spark_settings(store, options).items()}


def store_environment(config: SluiceConfig) -> dict[str, str]:
    """Returns environment variables with the credentials of the lake's object stores, for a Spark that Sluice starts. Returns {} if neither
    the lake, nor a table, nor the staging directory is in an object store. Raises MergeFailedError if a secret cannot be read.
    """
    if not (stores := spark_stores(config)):
        return {}
    from sluice.spark_jobs import object_store  # noqa: PLC0415

    options = storage_options(config.storage_options)
    return {name: value for store in stores for name, value in object_store.spark_environment(store, options).items()}


def target(config: SluiceConfig, destination: str, name: str, *, locks: str = "", clash: str = "") -> TableTarget:
    """Returns the target of a merge: where and how the table `name` ("database.table") is merged.

    `locks` is the path of the locks for tables that several destinations write. `clash` says why Sluice may not create the table, or is
    empty. `table_locks.written_target` provides both.
    """
    from sluice.spark_jobs.targets.layout import Layout  # noqa: PLC0415
    from sluice.spark_jobs.targets.report import TableTarget  # noqa: PLC0415
    from sluice.spark_jobs.targets.shards import Shard  # noqa: PLC0415

    database, _, table = name.partition(".")
    options = config.destinations[destination].table(database, table)
    shard = config.destinations[destination].shard(database, table)
    change_log, history = config.side_table_paths(destination, database, table)
    return TableTarget(
        path=config.table_path(destination, database, table),
        deletes=options.deletes,
        deletion_vectors=options.deletion_vectors,
        merge=config.destinations[destination].merge_way(database, table),
        layout=Layout(
            partition_by=options.partition_by, cluster_by=options.cluster_by, change_feed=options.change_feed
        ),
        change_log=change_log,
        history=history,
        current_state=options.current_state,
        clash=clash,
        shard=Shard(column=shard.column, name=shard.name, locks=locks) if shard else None,
    )


def lake_error_line(config: SluiceConfig, error: object) -> str:
    """Returns an error of the lake as one line. Removes the secrets of `storage_options`, which the error of a store may contain."""
    return without_secrets(str(error), config.storage_options)


@contextlib.contextmanager
def lake_errors(config: SluiceConfig) -> Iterator[None]:
    """Converts errors of the lake: to SparkAwayError if Spark does not answer, otherwise to MergeFailedError. The messages contain no
    secrets.
    """
    from sluice.spark_jobs.errors import SparkJobError, SparkUnavailableError  # noqa: PLC0415  not needed by definitions

    try:
        yield
    except SparkUnavailableError as error:
        raise SparkAwayError(lake_error_line(config, error)) from error
    except SparkJobError as error:
        raise MergeFailedError(lake_error_line(config, error)) from error


def storage_options(configured: Mapping[str, str]) -> dict[str, str]:
    """Returns the options with each secret reference replaced by its value. Raises MergeFailedError if a secret cannot be read."""
    try:
        return resolved(configured)
    except StoreError as error:
        raise MergeFailedError(str(error)) from None
