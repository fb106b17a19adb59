"""conf/sluice.yaml, and with it the whole of conf/."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from cdc_engine.config.alarms import AlarmConfig
from cdc_engine.config.consumers import EVERYWHERE, CanalServerConfig
from cdc_engine.config.destination import DestinationConfig
from cdc_engine.config.engine import EngineConfig
from cdc_engine.config.group import GroupConfig
from cdc_engine.config.operation import MetricsConfig, TelemetryConfig
from cdc_engine.config.places import DatabaseUrl, StorageOptions, TableLocation, TablePath, is_in_a_store
from cdc_engine.contracts import DestinationDir, MetaPlace
from cdc_engine.source.settings import LocalPath, Strict

# options that are of a whole Delta table: runs of shards that differ in them would alter it to and fro
OF_ALL_SHARDS = ("deletes", "deletion_vectors", "partition_by", "cluster_by", "change_feed")


class SparkConfig(Strict):
    """`remote` attaches to a Spark Connect server; `master` builds a session inside the run. Exactly one is used; `master` wins if set."""

    remote: str = "sc://127.0.0.1:15002"
    master: str = ""


class MetaConfig(Strict):
    """Where ledgers, leases and what runs remember are kept.

    `file`: beside the destination's files. `memory`: nowhere. `sql`, `zookeeper`: where several hosts reach it, the leases as well.
    `mixed`, `period_mixed`: beside the files, and the cursor also in ZooKeeper for others to see, after each change or once a period.
    """

    kind: Literal["file", "memory", "sql", "zookeeper", "mixed", "period_mixed"] = "file"
    url: DatabaseUrl = Field("", description="of sql: SQLAlchemy's URL, its password as $NAME of the environment")
    hosts: str = Field("", description="of zookeeper, mixed, period_mixed: host:port,host:port")
    session_seconds: float = Field(
        30.0,
        ge=2,
        le=120,
        description="a host that says nothing for so long has lost its leases; a standby then takes over",
    )
    period_seconds: float = Field(1.0, gt=0, description="of period_mixed")
    address: str = Field(
        "",
        description="host:port by which others find this host; empty: the destination's canal_server, else its name and ports.code_server",
    )

    @model_validator(mode="after")
    def _reachable(self) -> MetaConfig:
        if self.kind == "sql" and not self.url:
            raise ValueError("kind sql needs the url of a database")
        if self.kind in {"zookeeper", "mixed", "period_mixed"} and not self.hosts:
            raise ValueError(f"kind {self.kind} needs hosts, such as zk1:2181,zk2:2181,zk3:2181")
        return self


class PortsConfig(Strict):
    code_server: int = 4266
    webserver: int = 3000
    spark_connect: int = 15002


class SluiceConfig(Strict):
    """The whole of conf/."""

    data_dir: LocalPath = Path("data")
    staging: TablePath = Field(
        "",
        description="folder of the destinations' files that all engine hosts and runs reach; empty: <data_dir>/engine. Or a prefix of an "
        "object store for staged batches: the other files are in <data_dir>/engine then",
    )
    meta: MetaConfig = MetaConfig()
    lake: TableLocation = Field("data/lake", description="directory or object-store prefix of the Delta tables")
    spark: SparkConfig = SparkConfig()
    ports: PortsConfig = PortsConfig()
    engine: EngineConfig = EngineConfig()
    metrics: MetricsConfig = MetricsConfig()
    alarms: tuple[AlarmConfig, ...] = ()
    telemetry: TelemetryConfig = TelemetryConfig()
    storage_options: StorageOptions = Field(
        {}, description="of the store of lake and staging, in deltalake's words; secrets as $NAME of the environment"
    )
    destinations: dict[str, DestinationConfig] = Field({})
    groups: dict[str, GroupConfig] = Field({}, description="files of conf/destinations with members")

    def destination_dir(self, destination: str) -> DestinationDir:
        """Schema history, staged batches and what else of one destination is in files; it knows where the ledger and the leases are."""
        return DestinationDir.of(self.meta_place(destination))

    def meta_place(self, destination: str) -> MetaPlace:
        """Where the ledger and the leases of one destination or group are."""
        captured, stored = self.destinations.get(destination), is_in_a_store(self.staging)
        return MetaPlace(
            destination=destination,
            directory=(Path(self.staging) if self.staging and not stored else self.data_dir / "engine") / destination,
            kind=self.meta.kind,
            url=self.meta.url,
            hosts=self.meta.hosts,
            session_seconds=self.meta.session_seconds,
            period_seconds=self.meta.period_seconds,
            address=self.meta.address or self._found_at(captured or self.groups.get(destination)),
            source=(captured.source.host, captured.source.port) if captured else ("", 0),
            staging=self.staging if stored else "",
            storage_options=tuple(self.storage_options.items()) if stored else (),
        )

    def groups_of(self, member: str) -> tuple[str, ...]:
        """The groups that a destination is a member of, by name."""
        return tuple(sorted(name for name, group in self.groups.items() if member in group.members))

    def _found_at(self, captured: DestinationConfig | GroupConfig | None) -> str:
        """host:port by which others find this host: clients of Canal look for its server there."""
        server = captured.canal_server if captured else CanalServerConfig()
        if not server.port:
            return f"{platform.node()}:{self.ports.code_server}"
        return f"{platform.node() if server.host in EVERYWHERE else server.host}:{server.port}"

    def with_sources_in_use(self) -> SluiceConfig:
        """Every destination with the source that it reads now, where several stand by. Raises ConfigurationError."""
        reading = {name: each.reading_now(self.meta_place(name).directory) for name, each in self.destinations.items()}
        return self.model_copy(update={"destinations": reading})

    def quarantine_path(self, destination: str) -> str:
        """The Delta table with the values of a destination that could not be decoded."""
        return f"{self.lake}/_sluice_quarantine/{destination}"

    def table_path(self, destination: str, database: str, table: str) -> str:
        """Where the mirror of a source table is in the lake."""
        settings = self.destinations[destination]
        if (shard := settings.shard(database, table)) is not None:
            return f"{self.lake}/{shard.into}"
        below = settings.table_path.format(destination=destination, database=database, table=table)
        return settings.table(database, table).path or f"{self.lake}/{below}"

    def paths_beside(self, destination: str, database: str, table: str) -> tuple[str, str]:
        """Where the change log and the history of a source table are; empty what conf/ does not want."""
        options = self.destinations[destination].table(database, table)
        path = self.table_path(destination, database, table)
        return f"{path}__log" if options.change_log else "", f"{path}__history" if options.history else ""

    def kept_path(self, destination: str, database: str, table: str) -> str:
        """Where most is kept of a source table: its mirror, else its history, else its change log."""
        if self.destinations[destination].table(database, table).mirror:
            return self.table_path(destination, database, table)
        log, history = self.paths_beside(destination, database, table)
        return history or log


def path_clashes(config: SluiceConfig, tables: Mapping[str, Iterable[str]]) -> list[str]:
    """Delta paths that two source tables would write, a sentence each. `tables`: destination → its "database.table", where they are known.

    Tables that conf/ names are looked at too. Two writers of one table would lose changes silently, unless they are shards of it.
    """
    users: dict[str, dict[str, Writer]] = {}
    for name, destination in config.destinations.items():
        for table in {*tables.get(name, ()), *destination.tables}:
            database, _, short = table.partition(".")
            shard, options = destination.shard(database, short), destination.table(database, short)
            words = tuple(f"{word}: {getattr(options, word)}" for word in OF_ALL_SHARDS) if shard else ()
            writer = Writer(shard.column if shard else "", shard.name if shard else "", words)
            beside = filter(None, config.paths_beside(name, database, short))
            for path in (config.table_path(name, database, short), *beside):
                users.setdefault(path, {})[f"{table} of {name}"] = writer
    return [clash for path, those in sorted(users.items()) if len(those) > 1 and (clash := _clash(path, those))]


class Writer(NamedTuple):
    """A source table at a Delta path. `shard`: its name in `column`, or empty. `words`: what all shards have to have alike."""

    column: str
    shard: str
    words: tuple[str, ...]


def _clash(path: str, those: Mapping[str, Writer]) -> str:
    """Why several cannot have the path, with the way out; empty where each has rows of its own."""
    who, writers = f"{' and '.join(sorted(those))} have the same Delta path {path}", those.values()
    if not all(each.shard for each in writers):
        return f"{who}: set `path` of one of them under `tables` in conf/destinations"
    if len({each.column for each in writers}) > 1:
        return f"{who} and do not differ as shards: give all `shards` of it one `column` in conf/destinations"
    names = [each.shard for each in writers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        same = " and ".join(sorted(table for table, each in those.items() if each.shard == twice[0]))
        return (
            f"{same} have the same Delta path {path} and do not differ as shards, for both are called {twice[0]!r}: give `shards` another "
            "`name` for each in conf/destinations; {destination} in it tells those of several apart"
        )
    if differ := sorted(set[str]().union(*(each.words for each in writers)) - set(next(iter(writers)).words)):
        return f"{who}, and not all of their `shards` have {differ[0]} among their `options`: say the same for all in conf/destinations"
    return ""
