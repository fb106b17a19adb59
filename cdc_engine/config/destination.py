"""conf/destinations/*.yaml: one captured server, and how its tables are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from cdc_engine import limits
from cdc_engine.config.brokers import AnyBroker
from cdc_engine.config.consumers import CanalServerConfig, HandlerConfig
from cdc_engine.config.operation import AssetsOfDestination, Cron, MaintenanceConfig
from cdc_engine.config.places import ArchivePlace, DatabaseUrl, PathTemplate
from cdc_engine.config.shards import ShardOf, ShardsConfig
from cdc_engine.config.table import SchemaChangesConfig, TableConfig
from cdc_engine.source.in_use import address_in_use
from cdc_engine.source.settings import HeartbeatConfig, SourceConfig, StartConfig, Strict


class RingConfig(Strict):
    bytes_max: int = Field(limits.RING_BYTES_MAX, ge=limits.READ_BUFFER_BYTES)
    events_max: int = Field(limits.RING_EVENTS_MAX, ge=1024)


class BatchConfig(Strict):
    bytes_max: int = Field(limits.BATCH_BYTES_MAX, ge=1)
    events_max: int = Field(limits.BATCH_EVENTS_MAX, ge=1)
    ddl_isolation: bool = Field(False, description="a statement that changes captured tables is a batch of its own")


class StoreConfig(Strict):
    """Where events wait between the source and the batches."""

    kind: Literal["memory", "file", "mixed"] = Field(
        "memory",
        description="the ring alone; files that a restart goes on from without reading the source again; or the ring, and files for what "
        "does not fit into it",
    )
    bytes_max: int = Field(
        limits.STORE_BYTES_MAX,
        ge=limits.SEGMENT_BYTES,
        description="of files; reading waits where so much is not merged yet",
    )


SnapshotPolicy = Literal["initial", "when_needed", "when_stopped", "never"]


class SnapshotConfig(Strict):
    """How the rows that a table has already are read."""

    chunk_rows: int = Field(200_000, ge=1, description="rows of one read transaction and one file")
    readers: int = Field(2, ge=1, le=32, description="chunks of a table that are read at once, a connection each")
    rows_per_second_max: int = Field(0, ge=0, description="of all readers of a table together; 0: as fast as it goes")
    threads_running_max: int = Field(
        0, ge=0, description="reading waits while the source has more running threads than this; 0: never"
    )
    source: SourceConfig | None = Field(None, description="a replica to read from; empty: the source itself")


class EqualityConfig(Strict):
    """How the scheduled comparison of a destination with its source is bounded; `sluice equal` says it by options."""

    schedule: Cron = Field("", description="cron, in UTC; empty: Dagster's schedule is there, switched off")
    mode: Literal["since-last", "sample", "full"] = "since-last"
    percent: float = Field(10.0, gt=0, le=100, description="of `sample`: so many of each table's chunks")
    settle_seconds: float = Field(300.0, ge=0, description="how long merges may take to reach what was read")


class DrainConfig(Strict):
    """How long a run stays attached that merges batch after batch, and how often it takes one."""

    idle_seconds: float = Field(
        300.0, gt=0, description="without a batch; then it ends, and the next change starts one"
    )
    seconds_max: float = Field(1800.0, gt=0, description="in all; then another takes its place")
    every_seconds: float = Field(
        0.0, ge=0, description="from one batch to the next at least: fewer commits and events, older rows"
    )


class DestinationConfig(AssetsOfDestination, Strict):
    """One captured server and the tables that are merged from it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    source: SourceConfig = Field(description="of several, the one that is read now")
    sources: tuple[SourceConfig, ...] = Field(
        (), description="in place of source: the master, then those that stand by"
    )
    stream: Literal["own", "shared"] = Field(
        "own",
        description="shared: its server sends the binlog once for all destinations that say so; one behind them connects by itself",
    )
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    failover: Literal["by_gtid", "by_time"] = Field(
        "by_gtid",
        description="another server is read on from where GTIDs prove the place; or also by the clock, a minute earlier: tables that "
        "cannot take a change twice (no key, a log, a history, cascades) stop then",
    )
    archive: ArchivePlace = Field(
        "",
        description="folder or object-store prefix with binlog files that the source has purged: plain, .gz or .tar; empty: none",
    )
    runway_hours_min: float = Field(
        12.0, ge=0, description="warn when the source may purge what a restart would read in fewer hours"
    )
    include: str = Field(r".*\..*", description="comma-separated patterns of database.table, as canal.md §3.1")
    exclude: str = Field(r"mysql\..*,sys\..*,information_schema\..*,performance_schema\..*")
    column_include: str = Field("", description="database.table:a/b,… keeps only these columns (canal.md §2.7)")
    column_exclude: str = ""
    start: StartConfig = StartConfig()
    schema_history_url: DatabaseUrl = Field(
        "",
        description="SQLAlchemy URL of a database that keeps the schema history, its password as $NAME; empty: a file",
    )
    ring: RingConfig = RingConfig()
    store: StoreConfig = StoreConfig()
    batch: BatchConfig = BatchConfig()
    schema_changes: SchemaChangesConfig = SchemaChangesConfig()
    cascades: Literal["apply", "stop", "ignore"] = Field(
        "apply",
        description="what foreign keys change in a table without row events: carried out in the lake; the table stops; or the lake differs",
    )
    equality: EqualityConfig = EqualityConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    merge: Literal["auto", "spark", "small"] = Field(
        "auto",
        description="small tables in one job, the others by a MERGE of Spark each; a MERGE for each; or all that it can in the job",
    )
    runs: Literal["batch", "drain"] = Field(
        "batch", description="a run for each batch; or one that stays attached and merges batch after batch"
    )
    drain: DrainConfig = DrainConfig()
    snapshot: SnapshotPolicy = Field(
        "when_stopped",
        description="rows that no change tells: read when the destination or a table begins; also where the position was lost; "
        "only where a table would stop for the lack of them; or never",
    )
    snapshots: SnapshotConfig = SnapshotConfig()
    table_path: PathTemplate = Field(
        "{database}/{table}", description="where tables are below the lake, of {destination}, {database} and {table}"
    )
    canal_server: CanalServerConfig = CanalServerConfig()
    brokers: tuple[AnyBroker, ...] = Field(
        (), description="Kafka and others that the changes are sent to, beside the lake"
    )
    handlers: tuple[HandlerConfig, ...] = Field(
        (),
        description="what others installed, called before a batch is handed out, after its ack, and where it comes again",
    )
    tables: dict[str, TableConfig] = Field({})
    shards: tuple[ShardsConfig, ...] = Field(
        (), description="tables that become one in the lake; of several patterns that a name meets the first counts"
    )

    @model_validator(mode="before")
    @classmethod
    def _first_of_several(cls, record: Any) -> Any:
        if not isinstance(record, dict) or not record.get("sources"):
            return record
        if "source" in record:
            raise ValueError("say source, or sources where others stand by, not both")
        sources = record["sources"]
        return {**record, "source": sources[0]} if isinstance(sources, list | tuple) else record

    @model_validator(mode="after")
    def _one_address_each(self) -> DestinationConfig:
        if len({each.address for each in self.sources}) < len(self.sources):
            raise ValueError("two of the sources have one address")
        return self

    @model_validator(mode="after")
    def _one_number_each(self) -> DestinationConfig:
        numbers = [broker.client_id for broker in self.brokers]
        if len(set(numbers)) < len(numbers):
            raise ValueError(
                "two of the brokers have one client_id: give each another one, its cursor is kept under it"
            )
        return self

    @model_validator(mode="after")
    def _options_of_shards(self) -> DestinationConfig:
        for name in self.tables:
            if self.shard(*name.partition(".")[::2]) is not None:
                raise ValueError(
                    f"tables.{name}: it is one of the `shards`, which are merged alike: say it in their `options`"
                )
        return self

    @property
    def has_consumers(self) -> bool:
        """Whether any are beside the lake."""
        return bool(self.canal_server.port or self.brokers)

    def reading(self, address: str) -> DestinationConfig:
        """With the source of that address as the one that is read; as it is where none has it."""
        found = next((each for each in self.sources if each.address == address), self.source)
        return self.model_copy(update={"source": found})

    def reading_now(self, directory: Path) -> DestinationConfig:
        """With the source that is read now, by the files of the destination's directory. Raises ConfigurationError."""
        return self.reading(address_in_use(directory)) if self.sources else self

    def reads_first_rows(self, database: str, table: str) -> bool:
        """Whether the rows are read that a table has before its changes are captured."""
        return self._snapshot_policy(database, table) in {"initial", "when_needed"}

    def takes_anew(self, database: str, table: str) -> bool:
        """Whether a table that stopped for the lack of rows is read anew by itself."""
        return self._snapshot_policy(database, table) != "never"

    def _snapshot_policy(self, database: str, table: str) -> str:
        return self.table(database, table).snapshot or self.snapshot

    def schema_policy(self, database: str, table: str) -> dict[str, str]:
        """Kind of change → word of one table: its own words over the destination's. A declared key does not change with the source's."""
        for each in self.shards:
            if each.of(self.name, database, table) is not None:
                return each.policy(self.schema_changes.model_dump())
        configured = self.table(database, table)
        own = configured.schema_changes.model_dump(include=configured.schema_changes.model_fields_set)
        declared = {"key": "apply"} if configured.key else {}
        return {**self.schema_changes.model_dump(), **declared, **own}

    def cascade_policy(self, database: str, table: str) -> str:
        """apply, stop or ignore, for what foreign keys change in one table. They are carried out on its rows, which only a mirror has."""
        options = self.table(database, table)
        word = options.cascades or self.cascades
        confined = options.mirror and self.shard(database, table) is None  # keys of other shards may be the same
        return "stop" if word == "apply" and not confined else word

    def merge_way(self, database: str, table: str) -> Literal["auto", "spark", "small"]:
        """Who merges one table."""
        return self.table(database, table).merge or self.merge

    def table(self, database: str, table: str) -> TableConfig:
        own = self.tables.get(f"{database}.{table}")
        if own is None and (shard := self.shard(database, table)) is not None:
            return shard.options
        return own or TableConfig()

    def shard(self, database: str, table: str) -> ShardOf | None:
        """What a source table is a shard of; None for one that has a Delta table of its own."""
        return next((found for each in self.shards if (found := each.of(self.name, database, table))), None)
