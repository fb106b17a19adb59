"""conf/sluice.yaml and conf/destinations/*.yaml as checked values. Read by `launcher`, `orchestration` and the console; never by a stage.

A stage gets the few values it needs as arguments, so that no room depends on the shape of a file. Secrets are named by the environment
variable that holds them; the value is read where a connection is opened and nowhere else.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from cdc_engine import config_paths, limits
from cdc_engine.contracts import DestinationDir, MetaPlace
from cdc_engine.errors import ConfigurationError
from cdc_engine.time_words import time_us


def _root(info: ValidationInfo) -> Path | None:
    """The folder that holds conf/; None for a configuration that was not read from files."""
    return info.context["root"] if info.context else None


LocalPath = Annotated[Path, AfterValidator(lambda word, info: config_paths.local_path(str(word), _root(info)))]
TableLocation = Annotated[str, AfterValidator(lambda word, info: config_paths.table_location(word, _root(info)))]
TablePath = Annotated[str, AfterValidator(lambda word, info: word and config_paths.table_location(word, _root(info)))]


def _time_word(word: Any) -> Any:
    """YAML makes a moment of what looks like one."""
    return word.isoformat() if isinstance(word, dt.date) else word


def _readable_time(word: str) -> str:
    try:
        _ = word and time_us(word, 0)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return word


TimeWord = Annotated[str, BeforeValidator(_time_word), AfterValidator(_readable_time)]
PathTemplate = Annotated[str, AfterValidator(config_paths.path_template)]
DatabaseUrl = Annotated[str, AfterValidator(lambda url, info: config_paths.database_url(url, _root(info)))]


class Strict(BaseModel):
    """A misspelt key is an error, not a default; and a default is checked as what stands in a file is."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TlsConfig(Strict):
    mode: Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"] = "PREFERRED"
    ca_file: LocalPath | None = None
    certificate_file: LocalPath | None = None
    key_file: LocalPath | None = None


class SourceConfig(Strict):
    """One MySQL or MariaDB server. `password_env` names the environment variable with the password."""

    host: str = "127.0.0.1"
    port: int = Field(3306, ge=1, le=65535)
    user: str
    password_env: str = Field("", description="environment variable that holds the password; empty: no password")
    tls: TlsConfig = TlsConfig()
    server_id: int = Field(0, ge=0, le=0xFFFFFFFF, description="replica id; 0 derives one from the destination's name")

    def password(self) -> str:
        """The secret itself; raises ConfigurationError naming the variable when it is not set."""
        if not self.password_env:
            return ""
        if self.password_env not in os.environ:
            raise ConfigurationError(
                f"the environment variable {self.password_env} with the password of {self.user} is not set"
            )
        return os.environ[self.password_env]


class StartConfig(Strict):
    """Where a destination without a saved cursor begins; all empty: at the latest position."""

    file: str = ""
    offset: int = Field(4, ge=4)
    gtid_set: str = ""
    time: TimeWord = Field(
        "", description="ISO form with its zone, or -10m: before the first transaction that committed then or later"
    )

    @model_validator(mode="after")
    def _one_place(self) -> StartConfig:
        if self.time and (self.file or self.gtid_set):
            raise ValueError("say where to begin once: time, or file and offset, or gtid_set")
        return self


class RingConfig(Strict):
    bytes_max: int = Field(limits.RING_BYTES_MAX, ge=limits.READ_BUFFER_BYTES)
    events_max: int = Field(limits.RING_EVENTS_MAX, ge=1024)


class BatchConfig(Strict):
    bytes_max: int = Field(limits.BATCH_BYTES_MAX, ge=1)
    events_max: int = Field(limits.BATCH_EVENTS_MAX, ge=1)


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


class SchemaChangesConfig(Strict):
    """What the lake does when a table changes in the source: a word for each kind of change, as docs/operations.md explains them.

    `hold`: the table waits for `sluice schema approve`. `stop`: it waits until this file says another word and it is resumed.
    """

    add: Literal["apply", "hold", "stop"] = "apply"
    drop: Literal["keep", "apply", "hold", "stop"] = Field(
        "keep", description="keep: the column stays, NULL from then on"
    )
    rename: Literal["hold", "apply", "new_column", "stop"] = "hold"
    widen: Literal["apply", "rewrite", "hold", "stop"] = Field(
        "rewrite", description="apply: Delta type widening, which deltalake and Polars refuse to read"
    )
    convert: Literal["hold", "apply", "new_column", "stop"] = Field(
        "hold", description="a type that holds other values"
    )
    key: Literal["hold", "apply", "stop"] = Field("hold", description="the columns of the primary key")
    truncate: Literal["apply", "ignore", "hold", "stop"] = "apply"
    drop_table: Literal["ignore", "apply", "hold", "stop"] = Field("ignore", description="apply: the rows go")
    drop_partition: Literal["hold", "ignore", "stop"] = Field(
        "hold", description="DROP or TRUNCATE PARTITION: rows that no row event names"
    )


class TableConfig(Strict):
    """How one table is merged. Keys of the mapping in a destination are "database.table"."""

    key: tuple[str, ...] = Field(
        (), description="key columns; empty: the primary key; none at all: changes are appended"
    )
    deletes: Literal["hard", "soft"] = "hard"
    deletion_vectors: bool = Field(
        True, description="off: copy-on-write, readable by every Delta reader, merges several times slower"
    )
    merge: Literal["", "auto", "spark", "small"] = Field("", description="the destination's word, if empty")
    path: TablePath = Field("", description="Delta path; empty: as the destination's table_path says")
    partition_by: tuple[str, ...] = Field((), description="columns that a table is partitioned by when it is made")
    cluster_by: tuple[str, ...] = Field((), description="columns of Delta's liquid clustering, which OPTIMIZE sorts by")
    change_feed: bool = Field(False, description="Delta's change data feed, from then on")
    zero_dates: Literal["null", "error", "text"] = Field(
        "null",
        description="dates that are none: NULL; refused as undecodable; or the column is the text that SELECT prints",
    )
    undecodable: Literal["stop", "quarantine"] = Field(
        "stop",
        description="a value that cannot be decoded: the table stops, or the value goes to quarantine and the row on with NULL",
    )
    charsets: dict[str, str] = Field(
        {}, description="column: charset that its bytes really have, where the source declares another"
    )
    cascades: Literal["", "apply", "stop", "ignore"] = Field("", description="the destination's word, if empty")
    snapshot: Literal["", "initial", "when_needed", "when_stopped", "never"] = Field(
        "", description="the destination's word, if empty"
    )
    schema_changes: SchemaChangesConfig = Field(
        SchemaChangesConfig(), description="the words that differ from the destination's"
    )

    @model_validator(mode="after")
    def _one_layout(self) -> TableConfig:
        if self.partition_by and self.cluster_by:
            raise ValueError("Delta partitions a table or clusters it: leave partition_by or cluster_by out")
        return self


class EqualityConfig(Strict):
    """How the scheduled comparison of a destination with its source is bounded; `sluice equal` says it by options."""

    schedule: str = Field(
        "", pattern=r"^(\S+( \S+){4})?$", description="cron, in UTC; empty: Dagster's schedule is there, switched off"
    )
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


class CanalServerConfig(Strict):
    """The server of Canal's protocol for one destination; destinations that name the same host and port share it."""

    port: int = Field(0, ge=0, le=65535, description="11111 is Canal's; 0: no server, and no consumers beside the lake")
    host: str = Field("127.0.0.1", description="address to listen on; another than the loopback wants a user")
    user: str = Field("", description="whom clients must be; empty: anyone")
    password_hash_env: str = Field(
        "",
        description="environment variable with hex(SHA1(SHA1(password))), as Canal's canal.passwd; empty: no password",
    )
    certificate_file: LocalPath | None = Field(None, description="PEM with the server's chain: TLS, and nothing else")
    key_file: LocalPath | None = None
    time_zone: str = Field("UTC", description="in which TIMESTAMP values are shown; Canal takes that of its machine")
    window_bytes_max: int = Field(
        limits.WINDOW_BYTES_MAX,
        ge=limits.READ_BUFFER_BYTES,
        description="row events kept for consumers in memory; one behind them reads the source by itself",
    )
    connections_max: int = Field(64, ge=1, le=4096)


class DestinationConfig(Strict):
    """One captured server and the tables that are merged from it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    source: SourceConfig
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
    batch: BatchConfig = BatchConfig()
    schema_changes: SchemaChangesConfig = SchemaChangesConfig()
    cascades: Literal["apply", "stop", "ignore"] = Field(
        "apply",
        description="what foreign keys change in a table without row events: carried out in the lake; the table stops; or the lake differs",
    )
    equality: EqualityConfig = EqualityConfig()
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
    tables: dict[str, TableConfig] = {}

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
        configured = self.table(database, table)
        own = configured.schema_changes.model_dump(include=configured.schema_changes.model_fields_set)
        declared = {"key": "apply"} if configured.key else {}
        return {**self.schema_changes.model_dump(), **declared, **own}

    def cascade_policy(self, database: str, table: str) -> str:
        """apply, stop or ignore, for what foreign keys change in one table."""
        return self.table(database, table).cascades or self.cascades

    def merge_way(self, database: str, table: str) -> Literal["auto", "spark", "small"]:
        """Who merges one table."""
        return self.table(database, table).merge or self.merge

    def table(self, database: str, table: str) -> TableConfig:
        return self.tables.get(f"{database}.{table}", TableConfig())


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
        "", description="host:port by which others find this host; empty: its name and ports.code_server"
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
    staging: LocalPath | None = Field(
        None,
        description="folder of the destinations' files that all engine hosts and runs reach; empty: <data_dir>/engine",
    )
    meta: MetaConfig = MetaConfig()
    lake: TableLocation = Field("data/lake", description="directory or object-store prefix of the Delta tables")
    spark: SparkConfig = SparkConfig()
    ports: PortsConfig = PortsConfig()
    storage_options: dict[str, str] = Field(
        {}, description="for deltalake when the lake is not local; values may be $NAME of the environment"
    )
    destinations: dict[str, DestinationConfig] = {}

    def destination_dir(self, destination: str) -> DestinationDir:
        """Schema history, staged batches and what else of one destination is in files; it knows where the ledger and the leases are."""
        return DestinationDir.of(self.meta_place(destination))

    def meta_place(self, destination: str) -> MetaPlace:
        """Where the ledger and the leases of one destination are."""
        captured = self.destinations.get(destination)
        return MetaPlace(
            destination=destination,
            directory=(self.staging or self.data_dir / "engine") / destination,
            kind=self.meta.kind,
            url=self.meta.url,
            hosts=self.meta.hosts,
            session_seconds=self.meta.session_seconds,
            period_seconds=self.meta.period_seconds,
            address=self.meta.address or f"{platform.node()}:{self.ports.code_server}",
            source=(captured.source.host, captured.source.port) if captured else ("", 0),
        )

    def quarantine_path(self, destination: str) -> str:
        """The Delta table with the values of a destination that could not be decoded."""
        return f"{self.lake}/_sluice_quarantine/{destination}"

    def table_path(self, destination: str, database: str, table: str) -> str:
        """Where a source table is in the lake."""
        settings = self.destinations[destination]
        below = settings.table_path.format(destination=destination, database=database, table=table)
        return settings.table(database, table).path or f"{self.lake}/{below}"


def path_clashes(config: SluiceConfig, tables: Mapping[str, Iterable[str]]) -> list[str]:
    """Delta paths that two source tables would write, a sentence each. `tables`: destination → its "database.table", where they are known.

    Tables that conf/ names are looked at too. Two writers of one table would lose changes silently.
    """
    users: dict[str, set[str]] = {}
    for name, destination in config.destinations.items():
        for table in {*tables.get(name, ()), *destination.tables}:
            database, _, short = table.partition(".")
            users.setdefault(config.table_path(name, database, short), set()).add(f"{table} of {name}")
    return [
        f"{' and '.join(sorted(those))} have the same Delta path {path}: set `path` of one of them under `tables` in conf/destinations"
        for path, those in sorted(users.items())
        if len(those) > 1
    ]


def conf_dir() -> Path:
    """$SLUICE_CONF, or conf/ of the working directory; the folder above it is where relative paths in it start."""
    return Path(os.environ.get("SLUICE_CONF", "conf")).resolve()


def load_config(directory: Path | None = None) -> SluiceConfig:
    """Reads and checks every file of conf/; raises one ConfigurationError with all that is wrong, a line each."""
    directory = (directory or conf_dir()).resolve()
    if not directory.is_dir():
        raise ConfigurationError(
            f"there is no folder {directory}; start `sluice` in the folder that holds conf/, or set SLUICE_CONF to it"
        )
    problems: list[str] = []
    record = _read_yaml(directory / "sluice.yaml", problems, required=False)
    destinations: dict[str, Any] = {}
    for path in sorted((directory / "destinations").glob("*.yaml")):
        destinations[path.stem] = {"name": path.stem, **_read_yaml(path, problems, required=True)}
    try:
        record = {**record, "destinations": destinations}
        config = SluiceConfig.model_validate(record, context={"root": directory.parent})
    except ValidationError as error:
        problems += [_sentence(item) for item in error.errors()]
    else:
        problems += path_clashes(config, {})
    if problems:
        raise ConfigurationError(f"{directory}: " + "; ".join(problems))
    return config


def _read_yaml(path: Path, problems: list[str], *, required: bool) -> dict[str, Any]:
    if not path.exists() and not required:
        return {}
    try:
        record = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(record, dict):
        problems.append(f"{path.name} is not a mapping of keys to values")
        return {}
    return record


def _sentence(item: Any) -> str:
    """One pydantic error as `file: key: what is wrong`; the input value is left out, it may be a secret."""
    where = [str(part) for part in item["loc"]]
    file = "sluice.yaml"
    if where[:1] == ["destinations"] and len(where) > 1:
        file, where = f"destinations/{where[1]}.yaml", where[2:]
    return f"{file}: {'.'.join(where)}: {item['msg'].removeprefix('Value error, ')}"
