"""Defines the settings of conf/sluice.yaml, and the configuration as a whole."""

from __future__ import annotations

import platform
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.config.consumers import EVERYWHERE, CanalServerConfig
from sluice.cdc_engine.config.destination import DestinationConfig
from sluice.cdc_engine.config.engine import EngineConfig
from sluice.cdc_engine.config.group import GroupConfig
from sluice.cdc_engine.config.locations import (
    CatalogConfig,
    DatabaseUrl,
    StorageOptions,
    TableLocation,
    TablePath,
    folds_case,
    is_in_a_store,
)
from sluice.cdc_engine.config.operation import DagsterConfig, MetricsConfig
from sluice.cdc_engine.config.shards import not_distinguished
from sluice.cdc_engine.config.stream import StreamConfig
from sluice.cdc_engine.config_paths import comparable_path
from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation, ZooKeeperServers
from sluice.cdc_engine.source.settings import LocalPath, OnlyWith, SecretReference, Strict, TlsFilesConfig
from sluice.secret_values import is_reference

TOKEN = re.compile(r";token=([^;]*)")
REMOTE = re.compile(r"sc://(?:\[[0-9a-fA-F:.]+\]|[^\s/;?#@:\[\]]+)(?::(\d{1,5}))?(?:/(?:;.*)?)?")
PORT_MAX = 65_535
WITH_ZOOKEEPER = ("zookeeper", "mixed", "period_mixed")  # The kinds of `meta` that use ZooKeeper servers.
# Finds a parameter of Spark's address, other than `token`, that seems to have a secret as its value. conf/ must not have such a parameter:
# a run replaces `$NAME` by the secret only in `token`.
SECRET_PARAMETER = re.compile(r";(?!(?-i:token)=)[^=;]*(?:token|authorization|password|secret)[^=;]*=", re.IGNORECASE)
OWN_FOLDERS = ("_sluice_quarantine", "_sluice_consistent_snapshots")  # Folders in a lake that Sluice itself uses.
OWN_FOLDER = "belongs to a folder that is reserved for Sluice, or is the whole lake: set another `path` under `tables` in conf/destinations"
OTHER_PATH = "set another `path` for one of these tables under `tables` in conf/destinations"
# The settings that must be equal for all shards of a Delta table, because they apply to the whole table. If two shards had different
# values, a merge of one shard would replace the value that a merge of the other shard has set.
OF_ALL_SHARDS = ("deletes", "deletion_vectors", "partition_by", "cluster_by", "change_feed")


class SparkConfig(Strict):
    """Which Spark runs the merges: a Spark Connect server, or a session inside each run."""

    remote: str = Field(
        "sc://127.0.0.1:15002",
        description=(
            "Address of the Spark Connect server that runs use. With the default address, `sluice up` starts the server. "
            "Write a token in the address as `;token=$NAME`."
        ),
    )
    token: SecretReference = Field(
        "",
        description=(
            "Token for `remote`, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`. Read when a run connects "
            "to Spark."
        ),
    )
    master: str = Field(
        "",
        description="Spark master, for example `local[2]` or `yarn`. Each run then starts its own Spark session. "
        "Overrides `remote`.",
    )
    sessions: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = Field(
        "auto",
        description=(
            "How many tables of a batch are merged by MERGE at the same time, each in its own Spark session. `auto`: one "
            "table for every two task slots of Spark, at least 2 and at most 16. Each of these MERGEs needs memory of "
            "Spark's driver."
        ),
    )

    @model_validator(mode="after")
    def _is_an_address(self) -> SparkConfig:
        found = REMOTE.fullmatch(self.remote)
        if not self.master and (found is None or int(found[1] or 0) > PORT_MAX):
            raise ValueError(
                "remote must be sc://HOST:PORT, or sc://HOST:PORT/;token=$NAME; the value is not shown here, "
                "because it may contain a secret"
            )
        if SECRET_PARAMETER.search(self.remote):
            raise ValueError(
                "remote may contain no secret except ;token=$NAME: remove the parameter with another secret"
            )
        return self

    @model_validator(mode="after")
    def _one_spark(self) -> SparkConfig:
        if self.master and (found := next((name for name in ("remote", "token") if not self.is_default(name)), "")):
            raise ValueError(f"`{found}` has no effect with `master`: remove one of the two")
        return self

    @model_validator(mode="after")
    def _no_bare_token(self) -> SparkConfig:
        inside = TOKEN.search(self.remote)
        if inside and not is_reference(inside[1]):
            raise ValueError("remote must have ;token=$NAME of an environment variable, not the token itself")
        if inside and self.token:
            raise ValueError("set token, or write ;token=$NAME in remote, not both")
        return self

    @property
    def address(self) -> str:
        """The address of the Spark Connect server. If conf/ sets `token`, the address has the reference to the token, such as `$NAME`, as
        its parameter `token`.
        """
        if not self.token:
            return self.remote
        base = self.remote if "/;" in self.remote else f"{self.remote.rstrip('/')}/"
        return f"{base};token={urllib.parse.quote(self.token, safe='$')}"


class MetaConfig(Strict):
    """Where ledgers, leases and the other records of a destination are stored."""

    removed: ClassVar[Mapping[str, str]] = {
        "period_seconds": "`period_mixed` copies the cursor once a second, and when the engine stops"
    }
    only_with: ClassVar[OnlyWith] = {
        "url": ("kind", ("sql",)),
        **dict.fromkeys(("hosts", "user", "sasl", "tls"), ("kind", WITH_ZOOKEEPER)),
        **dict.fromkeys(("password", "session_seconds"), ("kind", ("sql", *WITH_ZOOKEEPER))),
        "address": ("kind", ("zookeeper",)),
    }

    kind: Literal["file", "memory", "sql", "zookeeper", "mixed", "period_mixed"] = Field(
        "file",
        description=(
            "Where ledgers and leases are stored. `file`: in the destination's folder. `sql`, `zookeeper`: in a database "
            "or in ZooKeeper, shared by several hosts. `memory`: in the engine's process, and lost when the process ends. "
            "`mixed`, `period_mixed`: in files, with a copy of the cursor in ZooKeeper, which `mixed` writes after each ack "
            "and `period_mixed` once a second."
        ),
    )
    url: DatabaseUrl = Field(
        "",
        description="SQLAlchemy URL of the database, for `sql`. Write the password as `$NAME`, or set `password`.",
    )
    hosts: str = Field(
        "", description="ZooKeeper servers as `host:port,host:port`, for `zookeeper`, `mixed` and `period_mixed`."
    )
    user: str = Field(
        "",
        description=(
            "User name for ZooKeeper. Only this user may then use the nodes that Sluice creates. Empty: no "
            "authentication."
        ),
    )
    password: SecretReference = Field(
        "",
        description=(
            "Password of the user in `url`, or of `user` at ZooKeeper, as `$NAME`, `{file: PATH}` or `{command: "
            "[PROGRAM]}`. Read at each connect."
        ),
    )
    sasl: Literal["", "DIGEST-MD5", "GSSAPI"] = Field(
        "",
        description=(
            "SASL mechanism for ZooKeeper. Needs the Python package pure-sasl, and for `GSSAPI` its extra `GSSAPI`. Empty: "
            "ZooKeeper's scheme `digest` with `user` and `password`."
        ),
    )
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings for ZooKeeper. `{}`: TLS with the system's certificate authorities."
    )
    session_seconds: float = Field(
        30.0,
        ge=2,
        le=120,
        description="Seconds after which a host that does not renew its leases loses them. A standby host then takes over.",
    )
    address: str = Field(
        "",
        description=(
            "With `zookeeper`: `host:port` at which other hosts and Canal clients reach this host. Default: the address of "
            "the destination's `canal_server`, otherwise the host name and `ports.code_server`."
        ),
    )

    @model_validator(mode="after")
    def _reachable(self) -> MetaConfig:
        if self.kind == "sql" and not self.url:
            raise ValueError("kind sql needs the url of a database, such as postgresql://USER@HOST/DATABASE")
        if self.kind in WITH_ZOOKEEPER and not self.hosts:
            raise ValueError(f"kind {self.kind} needs hosts, such as zk1:2181,zk2:2181,zk3:2181")
        if self.hosts and bool(self.user) != bool(self.password) and self.sasl != "GSSAPI":
            raise ValueError("set both user and password for ZooKeeper, or neither")
        if self.sasl == "DIGEST-MD5" and not self.user:
            raise ValueError("sasl DIGEST-MD5 needs user and password: set both, or remove sasl")
        return self

    @property
    def zookeeper(self) -> ZooKeeperServers:
        """The ZooKeeper servers, and how to log in to them."""
        files = self.tls or TlsFilesConfig()
        return ZooKeeperServers(
            hosts=self.hosts,
            user=self.user,
            password=self.password,
            sasl=self.sasl,
            tls=self.tls is not None,
            ca_file=files.ca_file,
            certificate_file=files.certificate_file,
            key_file=files.key_file,
        )


class PortsConfig(Strict):
    code_server: int = Field(4266, description="Port of Dagster's code server, which runs the engines.")
    webserver: int = Field(3000, description="Port of Dagster's UI.")
    spark_connect: int = Field(15002, description="Port of the local Spark Connect server.")


class SluiceConfig(Strict):
    """Settings of the installation. The file is conf/sluice.yaml."""

    removed: ClassVar[Mapping[str, str]] = {
        "telemetry": "set OpenTelemetry's environment variables where Sluice starts: OTEL_EXPORTER_OTLP_ENDPOINT for "
        "`otlp` and OTEL_EXPORTER_OTLP_HEADERS for `headers`"
    }

    data_dir: LocalPath = Field(
        Path("data"), description="Directory for positions, staged batches, Dagster's storage and logs."
    )
    staging: TablePath = Field(
        "",
        description=(
            "Directory for the destinations' files, which all engine hosts and runs must reach under the same path. If the "
            "value is an object-store prefix, the store has staged batches, the rows of snapshots and prepared XA "
            "transactions, and `data_dir` has the other files. Default: `engine` in `data_dir`."
        ),
    )
    meta: MetaConfig = MetaConfig()
    lake: TableLocation = Field("data/lake", description="Directory or object-store prefix of the Delta tables.")
    spark: SparkConfig = SparkConfig()
    catalog: CatalogConfig | None = Field(
        None, description="Catalog of Spark in which the Delta tables are registered. Empty: none."
    )
    ports: PortsConfig = PortsConfig()
    engine: EngineConfig = EngineConfig()
    metrics: MetricsConfig = MetricsConfig()
    dagster: DagsterConfig = DagsterConfig()
    alarms: tuple[AlarmConfig, ...] = Field(
        (), description="Webhooks and email addresses that get a message when an engine or a table stops."
    )
    storage_options: StorageOptions = Field(
        {},
        description=(
            "Options of the object store that has `lake` and `staging`, with the names that deltalake uses. Write secrets "
            "as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
        ),
    )
    destinations: dict[str, DestinationConfig] = Field({})
    groups: dict[str, GroupConfig] = Field(
        {}, description="Groups: the files of conf/destinations that have `members`."
    )

    @property
    def streams(self) -> Mapping[str, StreamConfig]:
        """All destinations and groups, which have an engine each."""
        return {**self.destinations, **self.groups}

    def destination_dir(self, destination: str) -> DestinationDir:
        """Returns the folder with a destination's files, together with the location of the destination's ledger and leases."""
        return DestinationDir.of(self.ledger_location(destination))

    def ledger_location(self, destination: str) -> LedgerLocation:
        """Returns the location of the ledger and the leases of a destination or group."""
        captured, stored = self.destinations.get(destination), is_in_a_store(self.staging)
        return LedgerLocation(
            destination=destination,
            directory=(Path(self.staging) if self.staging and not stored else self.data_dir / "engine") / destination,
            kind=self.meta.kind,
            url=self.meta.url,
            password=self.meta.password,
            zookeeper=self.meta.zookeeper,
            session_seconds=self.meta.session_seconds,
            address=self.meta.address or self._found_at(self.streams.get(destination)),
            source=(captured.source.host, captured.source.port) if captured else ("", 0),
            staging=self.staging if stored else "",
            storage_options=tuple(self.storage_options.items()) if stored else (),
        )

    def groups_of(self, member: str) -> tuple[str, ...]:
        """Returns the names of the groups that have this destination as a member, sorted."""
        return tuple(sorted(name for name, group in self.groups.items() if member in group.members))

    def _found_at(self, stream: StreamConfig | None) -> str:
        """Returns "host:port" at which other hosts find this host if conf/ does not set `meta.address`. This is the address of the Canal
        server of `stream` if that server has a port, otherwise the address of the code server.
        """
        server = stream.canal_server if stream else CanalServerConfig()
        if not server.port:
            return f"{platform.node()}:{self.ports.code_server}"
        return f"{platform.node() if server.host in EVERYWHERE else server.host}:{server.port}"

    def with_sources_in_use(self) -> SluiceConfig:
        """Returns a copy of the configuration in which `source` of each destination is the source that is read now, even after a failover.
        Raises ConfigurationError if the file that names this source cannot be read.
        """
        reading = {
            name: each.reading_now(self.ledger_location(name).directory) for name, each in self.destinations.items()
        }
        return self.model_copy(update={"destinations": reading})

    def quarantine_path(self, destination: str) -> str:
        """Returns the path of the Delta table with the destination's values that could not be decoded."""
        return f"{self.lake}/_sluice_quarantine/{destination}"

    def table_path(self, destination: str, database: str, table: str) -> str:
        """Returns the path of a source table's current-state table."""
        settings = self.destinations[destination]
        own = "" if settings.shard(database, table) else settings.table(database, table).path
        return own or f"{self.lake}/{settings.folder(database, table)}"

    def side_table_paths(self, destination: str, database: str, table: str) -> tuple[str, str]:
        """Returns the paths of a source table's change log and history, each empty if conf/ does not enable it."""
        options = self.destinations[destination].table(database, table)
        path = self.table_path(destination, database, table)
        return f"{path}__log" if options.change_log else "", f"{path}__history" if options.history else ""

    def catalog_name(self, destination: str, database: str, table: str, kind: str = "") -> tuple[str, str, str]:
        """Returns the catalog, schema and name under which a Delta table of a source table is registered. `kind` is "log", "history", or
        empty for the current-state table. The result is the same for all shards that the destination has of a Delta table. Raises
        ValueError if conf/ has no catalog.
        """
        return self._catalog().identifier(destination, *self._named_in_catalog(destination, database, table, kind))

    def catalog_view(self, destination: str, database: str, table: str, kind: str = "") -> tuple[str, str, str] | None:
        """Returns the catalog, schema and name of the view of a Delta table. `kind` is "history", "log", or empty for the current-state
        table. Returns None for a change log, and if conf/ has no `views`.
        """
        if kind == "log":
            return None
        return self._catalog().view_identifier(destination, *self._named_in_catalog(destination, database, table, kind))

    def _catalog(self) -> CatalogConfig:
        if self.catalog is None:
            raise ValueError("conf/sluice.yaml has no catalog")
        return self.catalog

    def _named_in_catalog(self, destination: str, database: str, table: str, kind: str) -> tuple[str, str]:
        shard = self.destinations[destination].shard(database, table)
        if shard is not None:
            schema, _, table = shard.into.rpartition("/")
            database = schema.rpartition("/")[2] or destination
        return database, f"{table}__{kind}" if kind else table

    def kept_path(self, destination: str, database: str, table: str) -> str:
        """Returns the path of a source table's current-state table. If conf/ does not enable a current-state table, returns the path of the
        history, or of the change log if there is no history.
        """
        if self.destinations[destination].table(database, table).current_state:
            return self.table_path(destination, database, table)
        log, history = self.side_table_paths(destination, database, table)
        return history or log


def path_clashes(config: SluiceConfig, tables: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns a message for each Delta path that cannot be used. `tables` has the known tables of each destination, as "database.table"."""
    return list(dict.fromkeys(clashing_tables(config, tables).values()))


def clashing_tables(config: SluiceConfig, tables: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], str]:
    """Finds tables whose Delta path conflicts with the path of another table, or with a folder that Sluice reserves for itself. Returns a
    message for each of these tables, by (destination, "database.table").

    `tables` has the known tables of each destination, as "database.table". Tables that conf/ names are added. Only shards may share a path:
    other tables with one path would lose changes. No path may be inside another one: VACUUM of the outer table would remove the files of
    the inner table.
    """
    users = _users(config, tables)
    folded = _folded(config, users)
    own = [comparable_path(f"{config.lake}/{name}", folds_case=folded) for name in OWN_FOLDERS]
    by_path: dict[str, dict[str, TableWriter]] = {}
    for path, writers in sorted(users.items()):
        by_path.setdefault(comparable_path(path, folds_case=folded), {}).update(writers)
    found: dict[tuple[str, str], str] = {}
    for path, writers in by_path.items():
        within = next((each for each in _above(path) if each in by_path or each in own), "")
        above = by_path.get(within, {})
        sentence = _taken(path, writers, own, config.lake) or (_inside(writers, within, above) if within else "")
        sentence = sentence or _clash(writers)
        if sentence:
            found |= {writer.table: sentence for writer in (*writers.values(), *(above.values() if within else ()))}
    return found


def _users(config: SluiceConfig, tables: Mapping[str, Iterable[str]]) -> dict[str, dict[str, TableWriter]]:
    """Returns the tables that write to each Delta path. The first key is the path. The second key is the text "table of destination"."""
    users: dict[str, dict[str, TableWriter]] = {}
    for name, destination in config.destinations.items():
        for table in {*tables.get(name, ()), *destination.tables}:
            database, _, short = table.partition(".")
            shard, options = destination.shard(database, short), destination.table(database, short)
            settings = tuple(f"{name}: {getattr(options, name)}" for name in OF_ALL_SHARDS) if shard else ()
            side_paths = filter(None, config.side_table_paths(name, database, short))
            for path in (config.table_path(name, database, short), *side_paths):
                writer = TableWriter(
                    (name, table), path, shard.column if shard else "", shard.name if shard else "", settings
                )
                users.setdefault(path, {})[f"{table} of {name}"] = writer
    return users


class TableWriter(NamedTuple):
    """A source table that writes to a Delta path. `table` is (destination, "database.table").

    `shard` is the name of the shard, and `column` the column of the Delta table that contains this name. `shard` and `column` are empty if
    the source table is not a shard. `settings` are the settings that must be equal for all shards of a Delta table.
    """

    table: tuple[str, str]
    path: str
    column: str
    shard: str
    settings: tuple[str, ...]


def _folded(config: SluiceConfig, users: Iterable[str]) -> bool:
    """Returns whether paths of the lake must be compared without regard to letter case. Looks at the file system only if two of the paths
    differ only in letter case.
    """
    paths = {comparable_path(path) for path in users}
    return len({comparable_path(path, folds_case=True) for path in paths}) < len(paths) and folds_case(config.lake)


def _above(path: str) -> Iterable[str]:
    """Yields the parent folders of a path, nearest first."""
    while "/" in path.partition("://")[2 if "://" in path else 0].lstrip("/"):
        path = path.rpartition("/")[0]
        yield path


def _taken(path: str, writers: Mapping[str, TableWriter], own: Iterable[str], lake: str) -> str:
    """Returns a message for the tables in `writers` if their path is reserved for Sluice or is the lake itself, otherwise ""."""
    if path not in own and path != comparable_path(lake):
        return ""
    location = next(iter(writers.values())).path
    return f"{_names(writers)} has the Delta path {location}, which {OWN_FOLDER}"


def _inside(writers: Mapping[str, TableWriter], within: str, above: Mapping[str, TableWriter]) -> str:
    """Returns a message for the tables in `writers`, whose path is inside the folder `within`. `above` are the tables that write to
    `within`, or empty if `within` is reserved for Sluice.
    """
    location = next(iter(writers.values())).path
    if not above:
        return f"{_names(writers)} has the Delta path {location}, which {OWN_FOLDER}"
    return (
        f"{_names(writers)} has the Delta path {location}, which is inside {within}, the path of "
        f"{_names(above)}, and VACUUM of the outer table would remove files of the inner one: {OTHER_PATH}"
    )


def _names(writers: Iterable[str]) -> str:
    return " and ".join(sorted(writers))


def _clash(writers: Mapping[str, TableWriter]) -> str:
    """Returns a message that says why the tables in `writers` cannot share their path, and what to do. Returns "" if there is only one
    table, which is not a shard, or if the tables are shards whose names and settings allow a common path.
    """
    tables = writers.values()
    path = next(iter(tables)).path
    who = f"{_names(writers)} have the same Delta path {path}"
    if len({each.path for each in tables}) > 1:
        who += " (the lake's file system ignores letter case, or the path is spelled in two ways)"
    if not all(each.column for each in tables):
        return f"{who}: {OTHER_PATH}" if len(writers) > 1 else ""
    if len({each.column for each in tables}) > 1:
        return (
            f"{who}, and their `shards` entries have different values of `column`: set the same `column` in all `shards` "
            "entries of this path in conf/destinations"
        )
    if why := not_distinguished({name: each.shard for name, each in writers.items()}, path):
        return why
    if differ := sorted(set[str]().union(*(each.settings for each in tables)) - set(next(iter(tables)).settings)):
        return (
            f"{who}, and not all of their `shards` entries have {differ[0]} in `options`: set the same "
            "options in all these entries in conf/destinations"
        )
    return ""
