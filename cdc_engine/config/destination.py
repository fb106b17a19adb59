"""Defines the settings of conf/destinations/*.yaml: the source, the tables, and how they are merged."""

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
    OnlyWith,
    SourceConfig,
    StartConfig,
    Strict,
)

READER_INSTEAD = (
    "name the replica in `reader`, next to `source`; Sluice then reads the replica for snapshots, comparisons and "
    "repairs, and to find positions by time"
)


class RingConfig(Strict):
    removed: ClassVar[Mapping[str, str]] = {
        "events_max": f"the ring has at most {limits.RING_EVENTS_MAX} events; `bytes_max` bounds its memory"
    }

    bytes_max: int = Field(
        limits.RING_BYTES_MAX,
        ge=limits.READ_BUFFER_BYTES,
        description=(
            "Size of the ring: maximum bytes of events that wait in memory until a batch contains them. Sluice stops "
            "reading the source while the ring is full. The window for consumers has the same size. A consumer whose position "
            "is before the window reads the source over its own connection."
        ),
    )


class BatchConfig(Strict):
    removed: ClassVar[Mapping[str, str]] = {
        "events_max": f"a batch ends after {limits.BATCH_EVENTS_MAX} events; set `bytes_max` to end batches earlier"
    }

    bytes_max: int = Field(
        limits.BATCH_BYTES_MAX,
        ge=1,
        description=(
            "Maximum bytes of events in a batch. A batch has only complete transactions: a larger transaction becomes a batch "
            "of its own."
        ),
    )
    ddl_isolation: bool = Field(
        False, description="Whether a DDL statement that alters captured tables becomes a separate batch."
    )


class StoreConfig(Strict):
    """Where events wait between the source and the batches."""

    only_with: ClassVar[OnlyWith] = {"bytes_max": ("kind", ("file", "mixed"))}

    kind: Literal["memory", "file", "mixed"] = Field(
        "memory",
        description="Where events wait until a batch contains them. `memory`: in the ring. `file`: in files that survive "
        "a restart. `mixed`: in the ring, and in files while the ring is full.",
    )
    bytes_max: int = Field(
        limits.STORE_BYTES_MAX,
        ge=limits.SEGMENT_BYTES,
        description=(
            "Maximum bytes of event files, for `file` and `mixed`. Sluice stops reading the source while so many bytes "
            "wait to be merged."
        ),
    )


SnapshotPolicy = Literal["initial", "when_needed", "when_stopped", "never"]


class SnapshotConfig(Strict):
    """How snapshots read the source."""

    removed: ClassVar[Mapping[str, str]] = {"source": READER_INSTEAD}

    chunk_rows: int = Field(
        200_000,
        ge=1,
        description="Rows in a chunk. A snapshot reads each chunk in one read transaction, and writes it to one file.",
    )
    readers: int = Field(
        2,
        ge=1,
        le=32,
        description="Number of chunks of a table that are read at the same time, each over its own connection.",
    )
    rows_per_second_max: int = Field(
        0, ge=0, description="Maximum rows per second that all parallel reads of a table read together. 0: no limit."
    )
    threads_running_max: int = Field(
        0,
        ge=0,
        description=(
            "Snapshots pause while the source has more running threads (Threads_running) than this number. 0: snapshots "
            "never pause."
        ),
    )


class EqualityConfig(Strict):
    """The settings of the scheduled comparison of the lake with the source. `sluice equal` has options with the same meanings."""

    removed: ClassVar[Mapping[str, str]] = {
        "source": READER_INSTEAD,
        "settle_seconds": "the schedule waits 300 seconds for the lake to merge the changes that the source has; set another time with "
        "`sluice equal --settle-seconds`, or in the job's configuration",
    }
    only_with: ClassVar[OnlyWith] = {"percent": ("mode", ("sample",))}

    schedule: Cron = Field(
        "",
        description=(
            "Cron schedule in UTC of the comparison of lake and source. Empty: the schedule exists in Dagster and is "
            "switched off."
        ),
    )
    mode: Literal["since-last", "sample", "full"] = Field(
        "since-last",
        description=(
            "Which chunks of a table the scheduled comparison reads. `since-last`: chunks that changed in the lake since "
            "they were last found equal. `sample`: a random part of the chunks, set by `percent`. `full`: all chunks."
        ),
    )
    percent: float = Field(10.0, gt=0, le=100, description="Percentage of each table's chunks that `sample` compares.")


class DrainConfig(Strict):
    """How often a run with `runs: drain` takes a batch."""

    removed: ClassVar[Mapping[str, str]] = {
        "idle_seconds": f"a draining run ends after {limits.DRAIN_IDLE_SECONDS_MAX:g} seconds without a batch, and the next change "
        "starts another run",
        "seconds_max": f"another run replaces a draining run after {limits.DRAIN_SECONDS_MAX:g} seconds",
    }

    every_seconds: float = Field(
        0.0,
        ge=0,
        description=(
            "Minimum seconds between two batches of a draining run. With a higher value, the lake gets fewer commits, and "
            "shows changes later."
        ),
    )


NO_OPTIONS = TableConfig()  # The default settings, for a table that conf/ does not name.


class DestinationConfig(AssetsOfDestination, StreamConfig):
    """Settings of a destination. The file's name is the destination's name."""

    removed: ClassVar[Mapping[str, str]] = {
        "schema_history_url": "set meta.kind: sql and meta.url in conf/sluice.yaml, so that the schema history and the ledger are "
        "in the database",
        "runway_hours_min": "write retention_left_hours_min",
        "retention_hours_min": "Sluice warns if the source keeps its binlog for less than twice retention_left_hours_min",
    }
    only_with: ClassVar[OnlyWith] = {
        "failover_back_seconds": ("failover", ("by_time",)),
        "drain": ("runs", ("drain",)),
    }
    source: SourceConfig = Field(description="The server to read.")
    sources: tuple[ListedSourceConfig, ...] = Field(
        (), description="Instead of `source`: the primary server, then its standby servers."
    )
    reader: SourceConfig | None = Field(
        None,
        description=(
            "Replica of the source, or reader endpoint of a cluster. Snapshots, comparisons and repairs of tables with a "
            "key read this server instead of the source. Searches for a time read this server too, if it writes a binlog. "
            "Needs GTIDs. Default: the source."
        ),
    )
    stream: Literal["own", "shared"] = Field(
        "own",
        description=(
            "`own`: the destination has its own replication connection to the source. `shared`: all destinations with "
            "`shared` that read the same source in the same process use one replication connection."
        ),
    )
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    failover: Literal["by_gtid", "by_time"] = Field(
        "by_gtid",
        description=(
            "How a failover finds the position on the other source. `by_gtid`: only by GTIDs. `by_time`: if a source has "
            "no GTIDs, by the time of the last change, minus `failover_back_seconds`. Tables that cannot apply a change "
            "twice then stop."
        ),
    )
    failover_back_seconds: int = Field(
        60,
        ge=1,
        le=86_400,
        description=(
            "With `failover: by_time`: Sluice reads the other source from this many seconds before the last change on. "
            "Must be larger than the difference between the servers' clocks, and than the time by which a replica "
            "reorders commits."
        ),
    )
    archive: ArchiveLocation = Field(
        "",
        description=(
            "Directory or object-store prefix with copies of binlog files that the source has purged. A copy may be "
            "uncompressed, .gz or .tar."
        ),
    )
    archive_fetch: ArchiveFetchConfig | None = Field(
        None,
        description=(
            "Command that fetches a binlog file into the directory `archive` if the source has purged the file "
            "and `archive` lacks it."
        ),
    )
    retention_left_hours_min: float = Field(
        12.0,
        ge=0,
        description=(
            "Sluice warns if, within this many hours, the source may purge the binlog file that the destination needs next. "
            "It also warns if the source keeps its binlog files for less than twice this many hours, by its settings or as "
            "observed. Set a lower value for a source that keeps them for a shorter time on purpose. 0: a warning only after "
            "a purge."
        ),
    )
    include: str = Field(r".*\..*", description="Comma-separated regular expressions of `database.table` to capture.")
    exclude: str = Field(
        r"mysql\..*,sys\..*,information_schema\..*,performance_schema\..*",
        description="Comma-separated regular expressions of `database.table` to leave out. Overrides `include`.",
    )
    column_include: str = Field(
        "",
        description="Columns to capture, as `database.table:a/b,…`. Of the named tables, only the named columns are captured.",
    )
    column_exclude: str = Field("", description="Columns to leave out, as `database.table:a/b,…`.")
    start: StartConfig = StartConfig()
    ring: RingConfig = RingConfig()
    store: StoreConfig = StoreConfig()
    batch: BatchConfig = BatchConfig()
    schema_changes: SchemaChangesConfig = SchemaChangesConfig()
    cascades: Literal["apply", "stop", "ignore"] = Field(
        "apply",
        description=(
            "What Sluice does if foreign keys change rows of a child table without row events. `apply`: Sluice makes the "
            "same changes in the lake. `stop`: the child table stops. `ignore`: Sluice does nothing, and the lake differs "
            "from the source."
        ),
    )
    equality: EqualityConfig = EqualityConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    merge: Literal["auto", "spark", "small"] = Field(
        "auto",
        description=(
            "How tables are merged. `auto`: small tables together in one Spark job (small merges), other tables by one "
            "MERGE each. `spark`: every table by one MERGE. `small`: every table that allows it by a small merge, even "
            "large tables."
        ),
    )
    runs: Literal["batch", "drain"] = Field(
        "batch",
        description=(
            "`batch`: each batch is merged by a run of its own. `drain`: one run merges batch after batch, for at most half "
            "an hour."
        ),
    )
    drain: DrainConfig = DrainConfig()
    snapshot: SnapshotPolicy = Field(
        "when_stopped",
        description=(
            "When Sluice takes a snapshot of a table by itself. `initial`: when the capture of the table begins, and when "
            "the table stops in a state that a snapshot resolves. `when_needed`: as `initial`, and also after the "
            "position was lost. `when_stopped`: only when the table stops in such a state. `never`: Sluice takes "
            "snapshots only by command."
        ),
    )
    snapshots: SnapshotConfig = SnapshotConfig()
    table_path: PathTemplate = Field(
        "{database}/{table}",
        description="Path of a table in the lake. May contain {destination}, {database} and {table}.",
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
            raise ValueError("set either `source` or, if there are standby sources, `sources`")
        sources = record["sources"]
        first = sources[0] if isinstance(sources, list | tuple) else None
        if isinstance(first, dict) and "start" in first:
            raise ValueError(
                "the first of `sources` starts at the destination's `start`: move `start` from this entry to the "
                "destination, next to `sources`"
            )
        return record if first is None else {**record, "source": first}

    @model_validator(mode="after")
    def _fetches_into_a_directory(self) -> DestinationConfig:
        if self.archive_fetch is not None and (not self.archive or is_in_a_store(self.archive)):
            raise ValueError(
                "archive_fetch needs a directory for the fetched files: set `archive` to a directory, not to an object store"
            )
        return self

    @model_validator(mode="after")
    def _checks_a_source_with_a_standby(self) -> DestinationConfig:
        if len(self.sources) <= 1 and not self.is_default("heartbeat"):
            raise ValueError(
                "`heartbeat` has no effect without a standby source: write the servers in `sources`, or remove `heartbeat`"
            )
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
                    f"tables.{name}: the table matches `shards`, and all shards have the same settings: write "
                    "these settings in `options` of the `shards` entry"
                )
        return self

    @model_validator(mode="after")
    def _hides_nothing_of_statements(self) -> DestinationConfig:
        if not self.canal_server.rows_query:
            return self
        if self.stream == "shared":
            raise ValueError(
                "canal_server.rows_query: a shared connection does not receive SQL texts: set `stream: own`"
            )
        settings = [*self.tables.values(), *(each.options for each in self.shards)]
        if self.column_include or self.column_exclude or any(each.has_rules for each in settings):
            raise ValueError(
                "canal_server.rows_query: clients would read in the SQL texts what column_include, column_exclude, `rows`, `masks` or a "
                "transform hides from them: remove rows_query, or these settings"
            )
        return self

    def start_here(self) -> StartConfig:
        """Returns the setting `start` of the current source: where the destination starts to read if it has no cursor. Raises
        PositionLostError if `start` names a binlog file of another source.
        """
        standby = next((each for each in self.sources[1:] if each.address == self.source.address), None)
        if standby is None:
            return self.start
        if standby.start is None and self.start.file:
            raise PositionLostError(
                f"the destination has no position yet, and start.file {self.start.file} is a file of the "
                f"first of `sources`, not of {standby.address}: give {standby.address} a `start` of its own "
                "in `sources`, or set `start` to a time or a GTID set"
            )
        return self.start if standby.start is None else standby.start

    @property
    def retention_hours_min(self) -> float:
        """The hours for which the source should keep its binlog: twice `retention_left_hours_min`. An engine that is behind by half of
        these hours causes a warning, and the operator has the other half to act.
        """
        return 2 * self.retention_left_hours_min

    @property
    def installation(self) -> str:
        """The id of the installation. The source's list of replicas (SHOW REPLICAS) shows this id for the engine. Empty unless these
        settings come from `of_installation`.
        """
        return self._installation

    def of_installation(self, installation: str) -> DestinationConfig:
        """Returns a copy of these settings in which the property `installation` is this id."""
        made = self.model_copy()
        made._installation = installation  # noqa: SLF001  a copy of its own class
        return made

    def reading(self, address: str) -> DestinationConfig:
        """Returns a copy of these settings whose `source` is the source with this address. `source` stays unchanged if `sources` has no
        such address.
        """
        found = next((each for each in self.sources if each.address == address), self.source)
        return self.model_copy(update={"source": found})

    def reading_now(self, directory: Path) -> DestinationConfig:
        """Returns a copy of these settings whose `source` is the source that is read now. After a failover, a file in `directory` names
        this source. Raises ConfigurationError if that file cannot be read.
        """
        return self.reading(address_in_use(directory)) if self.sources else self

    def reads_first_rows(self, database: str, table: str) -> bool:
        """Returns whether a table gets an initial snapshot."""
        return self._snapshot_policy(database, table) in {"initial", "when_needed"}

    def resnapshots(self, database: str, table: str) -> bool:
        """Returns whether a table is re-snapshotted automatically if it stopped because the lake lacks rows."""
        return self._snapshot_policy(database, table) != "never"

    def _snapshot_policy(self, database: str, table: str) -> str:
        return self.table(database, table).snapshot or self.snapshot

    def schema_policy(self, database: str, table: str) -> dict[str, str]:
        """Returns the policy for each kind of schema change of a table. The table's own policies override the destination's. If conf/
        declares the table's `key`, the default policy for a change of the primary key is `apply`, because the change does not affect the
        declared key. For a shard, `stop` replaces a policy that would change columns of other shards.
        """
        for each in self.shards:
            if each.of(self.name, database, table) is not None:
                return each.policy(self.schema_changes.model_dump())
        configured = self.table(database, table)
        own = configured.schema_changes.model_dump(include=configured.schema_changes.model_fields_set)
        declared = {"key": "apply"} if configured.key else {}
        return {**self.schema_changes.model_dump(), **declared, **own}

    def cascade_policy(self, database: str, table: str) -> str:
        """Returns what Sluice does if a foreign key changes rows of the table without row events: `apply`, `stop` or `ignore`. Returns
        `stop` instead of `apply` for a shard, and for a table that has no current-state table.
        """
        options = self.table(database, table)
        action = options.cascades or self.cascades
        # `apply` finds the rows of the Delta table by the source table's key. Rows of several shards may have the same key, so `apply`
        # could change rows of other shards.
        confined = options.current_state and self.shard(database, table) is None
        return "stop" if action == "apply" and not confined else action

    def merge_way(self, database: str, table: str) -> Literal["auto", "spark", "small"]:
        """Returns the setting `merge` of a table, or of the destination if the table has none."""
        return self.table(database, table).merge or self.merge

    def table(self, database: str, table: str) -> TableConfig:
        own = self.tables.get(f"{database}.{table}")
        if own is None and (shard := self.shard(database, table)) is not None:
            return shard.options
        return own or NO_OPTIONS

    def folder(self, database: str, table: str) -> str:
        """Returns the path of a table's folder below the lake: `into` of the `shards` entry if the table is a shard, otherwise the folder
        from `table_path`.
        """
        if (shard := self.shard(database, table)) is not None:
            return shard.into
        names = {"database": path_segment(database), "table": path_segment(table)}
        return self.table_path.format(destination=self.name, **names)

    def shard(self, database: str, table: str) -> ShardOf | None:
        """Returns the shard settings of a source table, or None if the source table has a Delta table of its own."""
        return next((found for each in self.shards if (found := each.of(self.name, database, table))), None)
