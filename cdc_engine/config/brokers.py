"""Defines the settings of message brokers, which correspond to Canal's canal.mq.*."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.cdc_engine.config.consumers import RenderingConfig
from sluice.cdc_engine.source.settings import SecretConfig, SecretText, TlsFilesConfig

SECRET = re.compile(r"password|secret|token|jaas|private\.key$|key\.pem")
FLAT_BYTES, PACKET_BYTES = 1 << 20, 50 * 1024
# A user may not set these options: other values could lose or reorder messages before the ack.
NEEDED = {"acks": ("all", "-1"), "request.required.acks": ("all", "-1"), "enable.idempotence": ("true",)}
ADDRESS = re.compile(r"(?:(?P<host>[^\s:/@\[\]]+)|\[(?P<six>[0-9A-Fa-f:.]+)\])(?::(?P<port>[1-9][0-9]{0,4}))?")
NAMED = {"bootstrap.servers", "metadata.broker.list"}


def _addresses(text: str) -> str:
    for word in filter(None, (each.strip() for each in re.split("[,;]", text))):
        _ = address_of(word, 1)
    return text


Addresses = Annotated[str, Field(min_length=1), AfterValidator(_addresses)]


def addresses_of(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Splits `host:port,host` at commas or semicolons. `port`: the default. Raises ValueError."""
    return tuple(address_of(word.strip(), port) for word in re.split("[,;]", text) if word.strip())


def address_of(word: str, port: int) -> tuple[str, int]:
    """Splits `host:port` or `host`. `port`: the default. Raises ValueError."""
    found = ADDRESS.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is not an address: write host:port, or host; [::1]:port where the host has colons")
    return found["host"] or found["six"], int(found["port"] or port)


class BrokerConfig(RenderingConfig):
    """A message broker that receives the changes. docs/canal.md describes topics and partitions."""

    client_id: int = Field(1001, ge=1, le=32767, description="Number of the consumer. Its cursor is stored under it.")
    filter: str = Field("", description="Regular expressions of `database.table`. Empty: all captured tables.")
    format: Literal["flat", "protobuf"] = Field(
        "flat", description="`flat`: JSON, one message per row event. `protobuf`: one message per batch."
    )
    topic: str = Field(min_length=1, description="Topic of everything that `dynamic_topic` does not match.")
    dynamic_topic: str = Field("", description="`topic:pattern,pattern,…`: topic by table or database.")
    batch_bytes_max: int = Field(
        0, ge=0, description="Bytes of row events in one batch. 0: 1 MiB for `flat`, 50 KiB for `protobuf`."
    )

    @property
    def bytes_max(self) -> int:
        return self.batch_bytes_max or (FLAT_BYTES if self.format == "flat" else PACKET_BYTES)


class PartitionedConfig(BrokerConfig):
    """A broker whose topics have partitions or queues."""

    partition: int = Field(0, ge=0, description="Partition of all messages if `partition_hash` is empty.")
    partitions_num: int = Field(1, ge=1, description="Number of partitions that `partition_hash` uses.")
    partition_hash: str = Field(
        "", description="`database.table:column^column`, `pattern:$pk$`, or a pattern alone for hashing by table."
    )
    dynamic_topic_partition_num: str = Field(
        "", description="`topic:number,…`: replaces `partitions_num` for these topics."
    )
    database_hash: bool = Field(
        True,
        description="Whether the hash of `partition_hash` contains the database name. No effect where it hashes by table.",
    )
    key_changes: Literal["split", "update"] = Field(
        "split",
        description="An update that moves a row to another partition. `split`: a delete in the old partition and an "
        "insert in the new one, which keeps the order of each key. `update`: one update in the new partition,"
        " as Canal does.",
    )


class KafkaConfig(PartitionedConfig):
    kind: Literal["kafka"] = Field(description="Apache Kafka.")
    servers: str = Field(min_length=1, description="Some servers of the cluster, as `host:port,host:port`.")
    options: dict[str, SecretText] = Field(
        {}, description="Options of librdkafka. Write secrets as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _as_texts(cls, given: Any) -> Any:
        """Converts values to text, because YAML parses numbers and words such as true into other types."""
        if not isinstance(given, dict):
            return given
        return {
            key: value if isinstance(value, dict) else str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in given.items()
        }

    @model_validator(mode="after")
    def _safe_options(self) -> KafkaConfig:
        bare = [name for name, value in self.options.items() if SECRET.search(name) and not value.startswith("$")]
        if bare:
            raise ValueError(
                f"options {', '.join(bare)} must be $NAME of an environment variable, {{file: …}} or {{command: […]}}, not the "
                "secret itself"
            )
        for name, value in self.options.items():
            if name in NAMED:
                raise ValueError(f"options {name}: name the servers in `servers`")
            if value.lower() not in NEEDED.get(name, (value.lower(),)):
                raise ValueError(f"options {name}: {value} would lose messages; remove it")
        return self


class RabbitConfig(BrokerConfig):
    """A RabbitMQ exchange. The routing key of a message is its topic, as in Canal."""

    kind: Literal["rabbitmq"] = Field(description="RabbitMQ.")
    servers: Addresses = Field(
        description="Servers of one cluster, as `host:port,host`. The first that answers is used."
    )
    virtual_host: str = Field("/", description="Virtual host.")
    exchange: str = Field("", description="Exchange. Empty: a message goes to the queue with the name of its topic.")
    user: str = Field("guest", description="User name.")
    password: SecretConfig | None = Field(None, description="Where the password is: `env`, `file` or `command`.")
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings. `{}`: TLS with the system's certificate authorities."
    )
    queue: str = Field(
        "", description="Durable queue that is declared when the engine connects. Empty: nothing is declared."
    )
    routing_key: str = Field("", description="Routing key that binds the queue to the exchange, which is declared too.")
    exchange_type: Literal["", "direct", "topic", "fanout", "headers"] = Field(
        "", description="Type of the declared exchange. Canal calls it `deliveryMode`."
    )

    @model_validator(mode="after")
    def _whole_binding(self) -> RabbitConfig:
        bound = (self.routing_key, self.exchange_type)
        if any(bound) and not (all(bound) and self.queue and self.exchange):
            raise ValueError("to bind a queue, set all of queue, exchange, routing_key and exchange_type")
        return self


class RocketConfig(PartitionedConfig):
    """A RocketMQ cluster. A partition is a queue of its topic: its number modulo the number of queues."""

    kind: Literal["rocketmq"] = Field(description="Apache RocketMQ.")
    servers: Addresses = Field(description="Name servers, as `host:port;host`.")
    group: str = Field("sluice", min_length=1, description="Producer group.")
    namespace: str = Field("", description="Namespace of the topics.")
    tag: str = Field("", description="Tag of every message.")
    access_key: str = Field("", description="Access key of the access control list.")
    secret_key: SecretConfig | None = Field(None, description="Where the secret key is: `env`, `file` or `command`.")
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings. `{}`: TLS with the system's certificate authorities."
    )
    batches: bool = Field(
        True, description="Sends several messages of a queue in one request. Some services do not accept these."
    )

    @model_validator(mode="after")
    def _whole_key(self) -> RocketConfig:
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("set both access_key and secret_key, or neither")
        return self


AnyBroker = Annotated[KafkaConfig | RabbitConfig | RocketConfig, Field(discriminator="kind")]
