"""Defines the settings that all kinds of brokers have, which correspond to Canal's canal.mq.*. Also finds the settings class for a kind of
broker.

A kind of broker is an entry point of the group `sluice.brokers`. The entry point names a settings class, which is a subclass of
`BrokerConfig`. Plug-ins in other packages use `BrokerConfig` and `PartitionedConfig` (docs/guides/write-a-broker-plug-in.md).
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from sluice.cdc_engine.config.consumers import RenderingConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.source.settings import LOOPBACK, OnlyWith, SecretReference, Strict, TlsFilesConfig
from sluice.plugins import PluginGroup, described

BROKERS = PluginGroup("sluice.brokers", "kind of broker")
FLAT_BYTES, PACKET_BYTES = 1 << 20, 50 * 1024
ADDRESS = re.compile(r"(?:(?P<host>[^\s:/@\[\]]+)|\[(?P<six>[0-9A-Fa-f:.]+)\])(?::(?P<port>[1-9][0-9]{0,4}))?")


def _addresses(text: str) -> str:
    for address in filter(None, (each.strip() for each in re.split("[,;]", text))):
        _ = address_of(address, 1)
    return text


Addresses = Annotated[str, Field(min_length=1), AfterValidator(_addresses)]


def addresses_of(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Parses addresses that are divided by commas or semicolons, such as `host:port,host`. `port` is the default port. Raises ValueError if
    an entry is not an address.
    """
    return tuple(address_of(address.strip(), port) for address in re.split("[,;]", text) if address.strip())


def address_of(address: str, port: int) -> tuple[str, int]:
    """Parses the address `host:port` or `host`. `port` is the default port. Raises ValueError if `address` is not an address."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(
            f"{address!r} is not an address: write host:port or host, and an IPv6 address in brackets, such as [::1]:port"
        )
    return found["host"] or found["six"], int(found["port"] or port)


class RegistryConfig(Strict):
    """A schema registry with Confluent's API: Confluent's, Karapace, Apicurio (its `ccompat` path) or Redpanda's."""

    url: str = Field(description="Address of the registry: `http://host:8081`, or `https://…`.")
    user: str = Field("", description="User name at the registry. Empty: no login.")
    password: SecretReference = Field(
        "", description="Password of the user, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
    )
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings for a URL with https. Default: TLS with the system's certificate authorities."
    )
    subjects: Literal["topic", "topic_record"] = Field(
        "topic",
        description=(
            "How the registry's subjects are named. `topic`: `<topic>-value` and `<topic>-key`, for topics of one table. "
            "`topic_record`: `<topic>-<record>`, for topics of several tables."
        ),
    )
    auto_register: bool = Field(
        True,
        description=(
            "Whether Sluice registers new schemas. `false`: each schema must be in the registry before its first "
            "message."
        ),
    )

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        wanted = "url: write http://host:port or https://host:port, with a path if the registry has one"
        try:
            parts = urllib.parse.urlsplit(url)
            _ = parts.port
        except ValueError:  # Leaves out urllib's message, which may contain a part of a password.
            raise ValueError(wanted) from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(wanted)
        if "@" in url:
            raise ValueError("url: set `user` and `password` instead of a login in the URL")
        return url

    @model_validator(mode="after")
    def _whole_login(self) -> RegistryConfig:
        if bool(self.user) != bool(self.password):
            raise ValueError("set both user and password, or neither")
        parts = urllib.parse.urlsplit(self.url)
        if self.tls is not None and parts.scheme == "http":
            raise ValueError(
                "`tls` has no effect with a URL that begins with http://: write https://…, or remove `tls`"
            )
        if self.user and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ValueError("url: write https://…, because http would send the password in clear text")
        return self


class BrokerConfig(RenderingConfig):
    """A message broker that receives the changes. `kind` selects the broker, which may have more settings.
    [Canal's protocol](../canal.md#brokers) describes topics and partitions.
    """

    kind: str = Field(
        description="Kind of broker: `kafka`, `pulsar`, `rabbitmq`, `rocketmq`, or a kind that an installed package adds."
    )
    servers: str = Field(
        "",
        description="Servers of the broker, as `host:port,host:port`. Log lines and errors name the broker by this value.",
    )
    client_id: int = Field(
        1001,
        ge=1,
        le=32767,
        description=(
            "Number of the broker as a consumer of the destination. The ledger stores the broker's cursor under this "
            "number. No other consumer of the destination may have the same number."
        ),
    )
    filter: str = Field(
        "",
        description=(
            "Comma-separated regular expressions of `database.table`: captured tables whose changes are sent. Empty: all "
            "captured tables."
        ),
    )
    format: Literal["flat", "protobuf", "avro", "protobuf_rows"] = Field(
        "flat",
        description="`flat`: JSON, one message per row event. `protobuf`: packets of Canal, one message per batch. "
        "`avro`: one message per row, with a schema in `registry`. `protobuf_rows`: one Protobuf message per "
        "row, with a schema in `registry`.",
    )
    registry: RegistryConfig | None = Field(None, description="Schema registry for `format: avro` and `protobuf_rows`.")
    topic: str = Field(min_length=1, description="Topic for tables that no pattern of `dynamic_topic` matches.")
    dynamic_topic: str = Field(
        "", description="`topic:pattern,pattern,…`: the topic for tables or databases that match a pattern."
    )
    batch_bytes_max: int = Field(
        0, ge=0, description="Maximum bytes of row events in one batch. 0: 1 MiB, or 50 KiB for the format `protobuf`."
    )

    @model_validator(mode="after")
    def _fits_the_format(self) -> BrokerConfig:
        if self.has_schemas:
            if self.registry is None:
                raise ValueError(
                    f"format {self.format} needs `registry`, the schema registry with the schemas of its messages"
                )
            if self.time_zone.upper() != "UTC" or self.decimals != "declared":
                raise ValueError(
                    f"format {self.format} has typed values, so two settings have no effect: remove time_zone and decimals"
                )
        elif self.registry is not None:
            raise ValueError(
                f"messages with `format: {self.format}` have no schema, so a registry is not used: remove `registry`, or set "
                "`format: avro` or `format: protobuf_rows`"
            )
        return self

    @property
    def has_schemas(self) -> bool:
        """Whether each row is a message with a schema in `registry`."""
        return self.format in {"avro", "protobuf_rows"}

    @property
    def bytes_max(self) -> int:
        return self.batch_bytes_max or (PACKET_BYTES if self.format == "protobuf" else FLAT_BYTES)

    def publisher(self) -> Any:
        """Returns a publisher that sends messages with these settings. Each kind of broker overrides this method. The broker's library is
        imported only in this method, so that processes that send nothing do not need the library. Raises ConfigurationError if the settings
        are invalid or the class does not override the method, and PublishError if the broker does not answer.
        """
        raise ConfigurationError(
            f"brokers: the plug-in of kind {self.kind!r} cannot send messages: its settings class defines no "
            "`publisher`"
        )


class PartitionedConfig(BrokerConfig):
    """A broker whose topics have partitions or queues."""

    only_with: ClassVar[OnlyWith] = dict.fromkeys(
        ("partitions_num", "dynamic_topic_partition_num", "database_hash", "key_changes"), ("partition_hash", ())
    )

    partition: int = Field(0, ge=0, description="Partition of all messages if `partition_hash` is empty.")
    partitions_num: int = Field(
        1, ge=1, description="Number of partitions of a topic, among which `partition_hash` distributes messages."
    )
    partition_hash: str = Field(
        "",
        description=(
            "Rules for the partition of a message. `database.table:column^column`: by a hash of these columns. "
            "`pattern:$pk$`: by a hash of the table's `key` in conf/, otherwise of its primary key. A pattern alone: by a "
            "hash of the table's name."
        ),
    )
    dynamic_topic_partition_num: str = Field(
        "", description="`topic:number,…`: number of partitions of single topics, instead of `partitions_num`."
    )
    database_hash: bool = Field(
        True,
        description=(
            "Whether the hash of `partition_hash` contains the database name. No effect on rules that hash the table's "
            "name."
        ),
    )
    key_changes: Literal["split", "update"] = Field(
        "split",
        description=(
            "What is sent for an update that moves a row to another partition. `split`: a delete in the old partition and "
            "an insert in the new one, which keeps the order of each key. `update`: one update in the new partition, as "
            "Canal does."
        ),
    )

    @model_validator(mode="after")
    def _one_way_to_partition(self) -> PartitionedConfig:
        if self.partition and self.partition_hash:
            raise ValueError("`partition` has no effect with `partition_hash`: remove one of the two")
        return self


def _of_kind(given: Any, info: ValidationInfo) -> Any:
    """Parses the settings of a broker with the settings class of the broker's kind."""
    if isinstance(given, BrokerConfig) or not isinstance(given, dict):
        return given
    kind = given.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"kind: name the kind of broker, one of {', '.join(BROKERS.names())}")
    return _settings_of(kind).model_validate(given, context=info.context)


def _settings_of(kind: str) -> type[BrokerConfig]:
    """Returns the settings class of a kind of broker. Raises ValueError if no installed package has this kind, or if the class cannot be
    loaded.
    """
    if why := BROKERS.problem_of(kind):
        raise ValueError(why)
    entry = BROKERS.entry(kind)
    try:
        found = entry.load()
    except Exception as error:  # Catches all errors, because the plug-in is not part of Sluice.
        raise ValueError(
            f"the kind {kind!r} ({described(entry)}) cannot be loaded: {type(error).__name__}: {error}; correct the plug-in"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BrokerConfig)):
        raise ValueError(
            f"the entry point of the kind {kind!r} ({described(entry)}) is not a subclass of BrokerConfig: correct the plug-in"
        )
    return found


AnyBroker = Annotated[BrokerConfig, BeforeValidator(_of_kind)]
