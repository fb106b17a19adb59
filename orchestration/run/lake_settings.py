"""Where the Spark and the tables of a destination are, as conf/ and the environment say. Runs call it, and who reads the lake."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from object_stores.errors import StoreError
from object_stores.options import resolved, without_secrets
from orchestration.ports import MergeFailedError

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from spark_jobs.lent_files import Lending
    from spark_jobs.report import TableTarget
    from spark_jobs.session import SparkSettings

S3 = ("s3://", "s3a://")
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")
SHARED_KINDS = ("sql", "zookeeper")
LANES_FILE = "spark-sessions.json"  # so that the next run ends what a killed one left running in Spark


def spark_settings(config: SluiceConfig, destination: str) -> SparkSettings:
    """Where the Spark of a destination is. The lanes' file is for who holds the run lock."""
    from spark_jobs.session import SparkSettings  # noqa: PLC0415

    inside = bool(config.spark.master)  # a Spark of its own; any other is told by who starts it
    return SparkSettings(
        remote=config.spark.remote,
        master=config.spark.master,
        lanes_file=config.destination_dir(destination) / LANES_FILE,
        options=store_settings(config) if inside else {},
        environment=store_environment(config) if inside else {},
        lending=_lending(config, destination),
    )


def _lending(config: SluiceConfig, destination: str) -> Lending:
    """Where Spark reads what a run writes for it: in the store that has the staged batches, if one has."""
    from spark_jobs.lent_files import Lending  # noqa: PLC0415

    url = config.meta_place(destination).beside_url("lent")
    return Lending(url=url, storage_options=storage_options(config.storage_options) if url else {})


def on_s3(config: SluiceConfig) -> bool:
    """Whether the lake, a table with a path of its own, or what is staged is in S3."""
    paths = [table.path for each in config.destinations.values() for table in each.tables.values()]
    return any(path.startswith(S3) for path in (config.lake, config.staging, *paths))


def several_sparks(config: SluiceConfig) -> str:
    """Why a lake in S3 is not safe with this conf/: several hosts may write it, each by a Spark of its own. Empty where it is.

    A commit by Spark looks whether its version is there and then writes it; only within one Spark server nothing comes in between.
    """
    own = config.spark.master or (urllib.parse.urlsplit(config.spark.remote).hostname or "") in LOOPBACK
    if not (own and on_s3(config) and config.meta.kind in SHARED_KINDS):
        return ""
    what = f"spark.master {config.spark.master}" if config.spark.master else f"spark.remote {config.spark.remote}"
    return (
        f"the lake is in S3, `meta` of kind {config.meta.kind} is for several hosts, and {what} is a Spark of each host: one that stands "
        "still amid a commit can write over a commit of another host. Start one Spark Connect server for all hosts and name it by the "
        "same address in spark.remote everywhere; with one host alone, name that host there, or keep `meta` in files"
    )


def store_settings(config: SluiceConfig) -> dict[str, str]:
    """What a Spark that is started must be set to for the lake's store; no credentials. Raises MergeFailedError naming what lacks."""
    if not on_s3(config):
        return {}
    from spark_jobs import object_store  # noqa: PLC0415  with deltalake, a second to import

    return object_store.spark_settings(storage_options(config.storage_options))


def store_environment(config: SluiceConfig) -> dict[str, str]:
    """The store's credentials, for the environment of a Spark that is started. Raises MergeFailedError naming what lacks."""
    if not on_s3(config):
        return {}
    from spark_jobs import object_store  # noqa: PLC0415

    return object_store.spark_environment(storage_options(config.storage_options))


def target(config: SluiceConfig, destination: str, name: str, *, locks: str = "", clash: str = "") -> TableTarget:
    """Returns where and how a table is merged; `name` is "database.table".

    `locks`: where the locks of its writers are. `clash`: why it may not be made. `turns.written_target` gives both.
    """
    from spark_jobs.report import TableTarget  # noqa: PLC0415
    from spark_jobs.tables.layout import Layout  # noqa: PLC0415
    from spark_jobs.tables.shards import Shard  # noqa: PLC0415

    database, _, table = name.partition(".")
    options = config.destinations[destination].table(database, table)
    shard = config.destinations[destination].shard(database, table)
    change_log, history = config.paths_beside(destination, database, table)
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
        mirror=options.mirror,
        clash=clash,
        shard=Shard(column=shard.column, name=shard.name, locks=locks) if shard else None,
    )


def told(config: SluiceConfig, error: object) -> str:
    """An error of the lake in one line, free of what `storage_options` keep secret: it may show what a store was asked with."""
    configured = config.storage_options
    known = {
        name: os.environ.get(value[1:], "") if value.startswith("$") else value for name, value in configured.items()
    }
    return without_secrets(str(error), known)


def storage_options(configured: Mapping[str, str]) -> dict[str, str]:
    """`$NAME` values read from the environment: they are secrets. Raises MergeFailedError naming what lacks."""
    try:
        return resolved(configured)
    except StoreError as error:
        raise MergeFailedError(str(error)) from None
