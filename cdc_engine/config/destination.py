"""Defines the settings of conf/destinations/*.yaml: a source, its tables, and how they are merged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from sluice.cdc_engine import limits
from sluice.cdc_engine.config.consumers import HandlerConfig
from sluice.cdc_engine.config.locations import ArchiveFetchConfig, ArchiveLocation, PathTemplate, is_in_a_store
from sluice.cdc_engine.config.operation import AssetsOfDestination, Cron, MaintenanceConfig
from sluice.cdc_engine.config.shards import ShardOf, ShardsConfig
from sluice.cdc_engine.config.stream import StreamConfig
from sluice.cdc_engine.config.table import SchemaChangesConfig, TableConfig
from sluice.cdc_engine.config_paths import path_segment
from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.source.in_use import address_in_use
from sluice.cdc_engine.source.settings import (
    HeartbeatConfig,
    ListedSourceConfig,
    SourceConfig,
    StartConfig,
    Strict,
)

READER_INSTEAD = (
    "name the replica in `reader`, next to `source`; snapshots, comparisons, repairs and time searches read it"
)


class RingConfig(Strict):
    removed: ClassVar[Mapping[str, str]] = {
        "events_max": f"the ring has at most {limits.RING_EVENTS_MAX} events; `bytes_max` bounds its memory"
    }

    bytes_max: int = Field(
        limits.RING_BYTES_MAX,
        ge=limits.READ_BUFFER_BYTES,
        description="Bytes of events that are kept in memory between the source and the batches. Reading pauses when the "
        "ring is full.",
    )


class BatchConfig(Strict):
    removed: ClassVar[Mapping[str, str]] = {
        "events_max": f"a batch ends after {limits.BATCH_EVENTS_MAX} events; `bytes_max` ends it earlier"
    }

    bytes_max: int = Field(
        limits.BATCH_BYTES_MAX,
        ge=1,
        description="Bytes after which a batch ends. A batch always ends on a transaction boundary.",
    )
    ddl_isolation: bool = Field(False, description="A statement that alters captured tables becomes a separate batch.")


class StoreConfig(Strict):
    """Where events wait between the source and the batches."""

    kind: Literal["memory", "file", "mixed"] = Field(
        "memory",
        description="Where events wait for their batch. `memory`: the ring. `file`: files that survive a restart. "
        "`mixed`: the ring, then files.",
    )
    bytes_max: int = Field(
        limits.STORE_BYTES_MAX,
        ge=limits.SEGMENT_BYTES,
        description="Bytes of event files. Reading pauses when so many bytes are not merged yet.",
    )


SnapshotPolicy = Literal["initial", "when_needed", "when_stopped", "never"]


class SnapshotConfig(Strict):
    """How snapshots read the source."""

    removed: ClassVar[Mapping[str, str]] = {"source": READER_INSTEAD}

    chunk_rows: int = Field(200_000, ge=1, description="Rows that one read transaction reads into one file.")
    readers: int = Field(
        2, ge=1, le=32, description="Chunks of a table that are read at the same time, each over its own connection."
    )
    rows_per_second_max: int = Field(
        0, ge=0, description="Rows per second that all readers of a table read together. 0: no limit."
    )
    threads_running_max: int = Field(
        0, ge=0, description="Reading pauses while the source has more running threads. 0: never."
    )


class EqualityConfig(Strict):
    """The scheduled comparison of a destination with its source. `sluice equal` has options for the same."""

    removed: ClassVar[Mapping[str, str]] = {
        "source": READER_INSTEAD,
        "settle_seconds": "the schedule waits 300 seconds; `sluice equal --settle-seconds` and the job's configuration have their "
        "own value",
    }

    schedule: Cron = Field("", description="Cron schedule in UTC. Empty: the schedule exists and is switched off.")
    mode: Literal["since-last", "sample", "full"] = Field(
        "since-last",
        description="`since-last`: chunks that changed in the lake. `sample`: `percent` of the chunks. `full`: all "
        "chunks.",
    )
    percent: float = Field(10.0, gt=0, le=100, description="Percentage of each table's chunks that `sample` compares.")


class DrainConfig(Strict):
    """How long a run with `runs: drain` stays attached, and how often it takes a batch."""

    idle_seconds: float = Field(
        300.0, gt=0, description="Seconds without a batch after which the run ends. The next change starts another run."
    )
    seconds_max: float = Field(
        1800.0, gt=0, description="Seconds after which the run ends and another one replaces it."
    )
    every_seconds: float = Field(
        0.0,
        ge=0,
        description="Minimum seconds between two batches. With a higher value the lake has fewer commits, and shows changes "
        "later.",
    )


NO_OPTIONS = TableConfig()  # The options of every table that conf/ does not name.


class DestinationConfig(AssetsOfDestination, StreamConfig):
    """Settings of a destination. The file's name is the destination's name."""

    removed: ClassVar[Mapping[str, str]] = {
        "schema_history_url": "set meta.kind: sql and meta.url in conf/sluice.yaml, which store the schema history and the ledger in "
        "the database",
        "runway_hours_min": "write retention_left_hours_min",
    }
    source: SourceConfig = Field(description="The server to read.")
    sources: tuple[ListedSourceConfig, ...] = Field(
        (), description="Instead of `source`: the primary server, then its standby servers."
    )
    reader: SourceConfig | None = Field(
        None,
        description="Replica, or reader of a cluster, that snapshots, comparisons and repairs read for tables with a key, and "
        "searches for a time if it writes a binlog. Needs GTIDs. Default: the source.",
    )
    stream: Literal["own", "shared"] = Field(
        "own", description="`shared`: destinations of one server and one process share a replication connection."
    )
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    failover: Literal["by_gtid", "by_time"] = Field(
        "by_gtid",
        description="How the position is found on another source. `by_gtid`: only by GTIDs. `by_time`: without GTIDs by "
        "the clock, `failover_back_seconds` earlier; tables that cannot take a change twice stop.",
    )
    failover_back_seconds: int = Field(
        60,
        ge=1,
        le=86_400,
        description="With `failover: by_time`: seconds before the last change from which on changes are read again. More than "
        "the servers' clocks differ, and than a replica reorders commits.",
    )
    archive: ArchiveLocation = Field(
        "",
        description="Directory or object-store prefix with binlog files that the source has purged: plain, .gz or .tar.",
    )
    archive_fetch: ArchiveFetchConfig | None = Field(
        None,
        description="Command that gets a binlog file which the source has purged and `archive`, a directory, lacks.",
    )
    retention_left_hours_min: float = Field(
        12.0, ge=0, description="Warn if the source may purge the next needed binlog file within so many hours."
    )
    retention_hours_min: float = Field(
        24.0,
        ge=0,
        description="Warn if the source keeps its binlog for fewer hours in all, by its settings or as observed. Lower it for a "
        "source that keeps less on purpose; 0: never warn of it.",
    )
    include: str = Field(r".*\..*", description="Comma-separated regular expressions of `database.table` to capture.")
    exclude: str = Field(
        r"mysql\..*,sys\..*,information_schema\..*,performance_schema\..*",
        description="Comma-separated regular expressions of `database.table` to leave out. Overrides `include`.",
    )
    column_include: str = Field("", description="`database.table:a/b,…` keeps only these columns.")
    column_exclude: str = Field("", description="`database.table:a/b,…` leaves these columns out.")
    start: StartConfig = StartConfig()
    ring: RingConfig = RingConfig()
    store: StoreConfig = StoreConfig()
    batch: BatchConfig = BatchConfig()
    schema_changes: SchemaChangesConfig = SchemaChangesConfig()
    cascades: Literal["apply", "stop", "ignore"] = Field(
        "apply",
        description="What becomes of rows that foreign keys change without row events. `apply`: the lake applies the "
        "foreign key. `stop`: the table stops. `ignore`: the lake differs.",
    )
    equality: EqualityConfig = EqualityConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    merge: Literal["auto", "spark", "small"] = Field(
        "auto",
        description="Which program merges. `auto`: small tables together in one Spark job, other tables by one MERGE "
        "each. `spark`: one MERGE per table. `small`: the job merges every table that it can.",
    )
    runs: Literal["batch", "drain"] = Field(
        "batch",
        description="`batch`: one run per batch. `drain`: one run merges batch after batch, until a limit of `drain` ends it.",
    )
    drain: DrainConfig = DrainConfig()
    snapshot: SnapshotPolicy = Field(
        "when_stopped",
        description="When the rows of a table are read. `initial`: when its capture begins. `when_needed`: also after its "
        "position was lost. `when_stopped`: only where a table would stop without it. `never`: only by command.",
    )
    snapshots: SnapshotConfig = SnapshotConfig()
    table_path: PathTemplate = Field(
        "{database}/{table}", description="Path of a table in the lake, from {destination}, {database} and {table}."
    )
    handlers: tuple[HandlerConfig, ...] = Field(
        (),
        description="Installed handlers that are called before a batch is handed out, after its ack and when it is "
        "delivered again.",
    )
    tables: dict[str, TableConfig] = Field({}, description="Settings of single tables, by `database.table`.")
    shards: tuple[ShardsConfig, ...] = Field(
        (), description="Source tables that share a Delta table. If several patterns match, the first one counts."
    )
    _installation: str = PrivateAttr("")

    @model_validator(mode="before")
    @classmethod
    def _first_of_several(cls, record: Any) -> Any:
        if not isinstance(record, dict) or not record.get("sources"):
            return record
        if "source" in record:
            raise ValueError("set source, or sources if there are standby sources, not both")
        sources = record["sources"]
        first = sources[0] if isinstance(sources, list | tuple) else None
        if isinstance(first, dict) and "start" in first:
            raise ValueError("the first of `sources` starts at the destination's `start`: write it there")
        return record if first is None else {**record, "source": first}

    @model_validator(mode="after")
    def _fetches_into_a_directory(self) -> DestinationConfig:
        if self.archive_fetch is not None and (not self.archive or is_in_a_store(self.archive)):
            raise ValueError("archive_fetch: set `archive` to the directory in which fetched files are kept")
        return self

    @model_validator(mode="after")
    def _one_address_each(self) -> DestinationConfig:
        if len({each.address for each in self.sources}) < len(self.sources):
            raise ValueError("two entries of `sources` have the same address: remove one")
        return self

    @model_validator(mode="after")
    def _options_of_shards(self) -> DestinationConfig:
        for name in self.tables:
            if self.shard(*name.partition(".")[::2]) is not None:
                raise ValueError(
                    f"tables.{name}: it is one of the `shards`, which are merged alike: set it in their `options`"
                )
        return self

    @model_validator(mode="after")
    def _hides_nothing_of_statements(self) -> DestinationConfig:
        if not self.canal_server.rows_query:
            return self
        if self.stream == "shared":
            raise ValueError(
                "canal_server.rows_query: a shared connection does not request SQL texts: set `stream: own`"
            )
        settings = [*self.tables.values(), *(each.options for each in self.shards)]
        if self.column_include or self.column_exclude or any(each.has_rules for each in settings):
            raise ValueError(
                "canal_server.rows_query: the SQL texts have the values that column filters, `rows`, `masks` or a transform hide: "
                "remove one of the two"
            )
        return self

    def start_here(self) -> StartConfig:
        """Returns where the destination starts on the source that it reads now, if it has no cursor. Raises PositionLostError if conf/
        names a file of another source.
        """
        standby = next((each for each in self.sources[1:] if each.address == self.source.address), None)
        if standby is None:
            return self.start
        if standby.start is None and self.start.file:
            raise PositionLostError(
                f"nothing was read yet, and start.file {self.start.file} is a file of the first of `sources`, not of {standby.address}: "
                f"give {standby.address} a `start` of its own in `sources`, or set `start` to a time or a GTID set"
            )
        return self.start if standby.start is None else standby.start

    @property
    def installation(self) -> str:
        """The installation's id, by which the engine appears in the source's list of replicas; empty until `of_installation` sets it."""
        return self._installation

    def of_installation(self, installation: str) -> DestinationConfig:
        """Returns a copy with the installation's id."""
        made = self.model_copy()
        made._installation = installation  # noqa: SLF001  a copy of its own class
        return made

    def reading(self, address: str) -> DestinationConfig:
        """Returns a copy that reads the source at this address, or the current source if conf/ has no source with this address."""
        found = next((each for each in self.sources if each.address == address), self.source)
        return self.model_copy(update={"source": found})

    def reading_now(self, directory: Path) -> DestinationConfig:
        """Returns a copy that reads the source in use, which a file in its directory names. Raises ConfigurationError."""
        return self.reading(address_in_use(directory)) if self.sources else self

    def reads_first_rows(self, database: str, table: str) -> bool:
        """Returns whether a table gets an initial snapshot."""
        return self._snapshot_policy(database, table) in {"initial", "when_needed"}

    def resnapshots(self, database: str, table: str) -> bool:
        """Returns whether a table is re-snapshotted automatically after it stopped because rows are missing."""
        return self._snapshot_policy(database, table) != "never"

    def _snapshot_policy(self, database: str, table: str) -> str:
        return self.table(database, table).snapshot or self.snapshot

    def schema_policy(self, database: str, table: str) -> dict[str, str]:
        """Returns kind of schema change → policy of one table. The table's own policies override the destination's. If conf/ declares a
        key, a change of the source's key is applied by default, because it does not affect the table's key.
        """
        for each in self.shards:
            if each.of(self.name, database, table) is not None:
                return each.policy(self.schema_changes.model_dump())
        configured = self.table(database, table)
        own = configured.schema_changes.model_dump(include=configured.schema_changes.model_fields_set)
        declared = {"key": "apply"} if configured.key else {}
        return {**self.schema_changes.model_dump(), **declared, **own}

    def cascade_policy(self, database: str, table: str) -> str:
        """Returns `apply`, `stop` or `ignore`, for rows of a table that foreign keys change. `apply` becomes `stop` for a shard, and
        without a current-state table.
        """
        options = self.table(database, table)
        word = options.cascades or self.cascades
        confined = options.current_state and self.shard(database, table) is None  # Other shards may have the same keys.
        return "stop" if word == "apply" and not confined else word

    def merge_way(self, database: str, table: str) -> Literal["auto", "spark", "small"]:
        """Returns which program merges a table."""
        return self.table(database, table).merge or self.merge

    def table(self, database: str, table: str) -> TableConfig:
        own = self.tables.get(f"{database}.{table}")
        if own is None and (shard := self.shard(database, table)) is not None:
            return shard.options
        return own or NO_OPTIONS

    def folder(self, database: str, table: str) -> str:
        """Returns the folder of a table below the lake: its own `path`, or else that of its shards, or else `table_path`."""
        if (shard := self.shard(database, table)) is not None:
            return shard.into
        names = {"database": path_segment(database), "table": path_segment(table)}
        return self.table_path.format(destination=self.name, **names)

    def shard(self, database: str, table: str) -> ShardOf | None:
        """Returns the shard settings of a source table, or None if the table has a Delta table of its own."""
        return next((found for each in self.shards if (found := each.of(self.name, database, table))), None)
