"""What conf/ says of the brokers that a destination's changes are sent to; Canal's canal.mq.* in the words of this file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from cdc_engine.errors import ConfigurationError
from cdc_engine.source.settings import LocalPath, Strict

SECRET = re.compile(r"password|secret|token|jaas|private\.key$|key\.pem")
FLAT_BYTES, PACKET_BYTES = 1 << 20, 50 * 1024
# What a batch needs to be there before its ack, and in order.
NEEDED = {"acks": ("all", "-1"), "request.required.acks": ("all", "-1"), "enable.idempotence": ("true",)}
ADDRESS = re.compile(r"(?:(?P<host>[^\s:/@\[\]]+)|\[(?P<six>[0-9A-Fa-f:.]+)\])(?::(?P<port>[1-9][0-9]{0,4}))?")
NAMED = {"bootstrap.servers", "metadata.broker.list"}


def _addresses(text: str) -> str:
    for word in filter(None, (each.strip() for each in re.split("[,;]", text))):
        _ = address_of(word, 1)
    return text


Addresses = Annotated[str, Field(min_length=1), AfterValidator(_addresses)]


def addresses_of(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Hosts and ports of `host:port,host`, by comma or semicolon. `port`: where none is said. Raises ValueError."""
    return tuple(address_of(word.strip(), port) for word in re.split("[,;]", text) if word.strip())


def address_of(word: str, port: int) -> tuple[str, int]:
    """Raises ValueError."""
    found = ADDRESS.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is no address: say host:port, or host; [::1]:port where the host has colons")
    return found["host"] or found["six"], int(found["port"] or port)


class BrokerTlsConfig(Strict):
    """The broker's certificate is always verified, its host name too."""

    ca_file: LocalPath | None = Field(None, description="PEM with the authorities; empty: those of the system")
    certificate_file: LocalPath | None = Field(None, description="PEM, where the broker wants to know who we are")
    key_file: LocalPath | None = None


class SecretConfig(Strict):
    """Where a broker's secret is: in a variable of the environment, or in a file."""

    env: str = ""
    file: LocalPath | None = Field(None, description="its one line is the secret")

    @model_validator(mode="after")
    def _one_place(self) -> SecretConfig:
        if bool(self.env) == (self.file is not None):
            raise ValueError("say env, the name of a variable of the environment, or file, not both")
        return self

    def value(self, environment: Mapping[str, str] = os.environ) -> str:
        """The secret itself. Raises ConfigurationError."""
        if self.file is None:
            if self.env not in environment:
                raise ConfigurationError(
                    f"the environment variable {self.env} with the secret of a broker is not set: set it where the engine starts"
                )
            return environment[self.env]
        return _line_of(self.file)


def _line_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"the file {file} with the secret of a broker cannot be read: {why}") from None


class BrokerConfig(Strict):
    """A consumer beside the lake that sends on. Rules of topics and partitions: docs/canal.md."""

    client_id: int = Field(1001, ge=1, le=32767, description="the consumer's number: its cursor is kept under it")
    filter: str = Field("", description="patterns of database.table; empty: all that is captured")
    format: Literal["flat", "protobuf"] = Field(
        "flat", description="JSON, a message a row event; or packets, one a batch"
    )
    topic: str = Field(min_length=1, description="where everything goes that dynamic_topic says nothing of")
    dynamic_topic: str = Field("", description="topic:pattern,pattern,…: by table or database")
    batch_bytes_max: int = Field(
        0, ge=0, description="row events of a batch; 0: 1 MiB of flat ones, else Canal's 50 KiB"
    )
    time_zone: str = Field("UTC", description="in which TIMESTAMP values are shown; Canal takes that of its machine")

    @property
    def bytes_max(self) -> int:
        return self.batch_bytes_max or (FLAT_BYTES if self.format == "flat" else PACKET_BYTES)


class PartitionedConfig(BrokerConfig):
    """Of a broker whose topics have partitions, or queues."""

    partition: int = Field(0, ge=0, description="of everything, without partition_hash")
    partitions_num: int = Field(1, ge=1, description="so many partitions of a topic are sent to by partition_hash")
    partition_hash: str = Field("", description="database.table:column^column, …:$pk$, or a pattern alone: by table")
    dynamic_topic_partition_num: str = Field("", description="topic:number,…: in place of partitions_num")
    database_hash: bool = Field(True, description="whether the database's name counts in partition_hash")
    key_changes: Literal["split", "update"] = Field(
        "split",
        description="an update that moves a row to another partition: a delete there and an insert here, so that each key's order holds; "
        "or, as Canal, one update here",
    )


class KafkaConfig(PartitionedConfig):
    kind: Literal["kafka"]
    servers: str = Field(min_length=1, description="host:port,host:port: some of the cluster's")
    options: dict[str, str] = Field({}, description="of librdkafka; secrets as $NAME of the environment")

    @field_validator("options", mode="before")
    @classmethod
    def _as_texts(cls, given: Any) -> Any:
        """YAML reads numbers and words such as true."""
        if not isinstance(given, dict):
            return given
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}

    @model_validator(mode="after")
    def _safe_options(self) -> KafkaConfig:
        bare = [name for name, value in self.options.items() if SECRET.search(name) and not value.startswith("$")]
        if bare:
            raise ValueError(
                f"options {', '.join(bare)} must be $NAME of a variable of the environment, not the secret itself"
            )
        for name, value in self.options.items():
            if name in NAMED:
                raise ValueError(f"options {name}: name the servers in `servers`")
            if value.lower() not in NEEDED.get(name, (value.lower(),)):
                raise ValueError(f"options {name}: {value} would lose messages; leave it out")
        return self


class RabbitConfig(BrokerConfig):
    """One exchange. A message's routing key is its topic, as Canal sends it."""

    kind: Literal["rabbitmq"]
    servers: Addresses = Field(description="host:port,host: of one cluster; the first that answers is sent to")
    virtual_host: str = "/"
    exchange: str = Field("", description="empty: a message goes to the queue that is called as its topic")
    user: str = "guest"
    password: SecretConfig | None = None
    tls: BrokerTlsConfig | None = Field(None, description="{}: TLS by the authorities of the system")
    queue: str = Field("", description="is declared, durable, when the engine connects; empty: nothing is declared")
    routing_key: str = Field("", description="by which that queue is bound to the exchange, which is declared too")
    exchange_type: Literal["", "direct", "topic", "fanout", "headers"] = Field(
        "", description="of the exchange that is declared; Canal calls it deliveryMode"
    )

    @model_validator(mode="after")
    def _whole_binding(self) -> RabbitConfig:
        bound = (self.routing_key, self.exchange_type)
        if any(bound) and not (all(bound) and self.queue and self.exchange):
            raise ValueError("to bind a queue say queue, exchange, routing_key and exchange_type, all four")
        return self


class RocketConfig(PartitionedConfig):
    """A partition is a queue of its topic: its number modulo how many there are."""

    kind: Literal["rocketmq"]
    servers: Addresses = Field(description="host:port;host: the name servers")
    group: str = Field("sluice", min_length=1, description="of producers")
    namespace: str = ""
    tag: str = Field("", description="of every message")
    access_key: str = ""
    secret_key: SecretConfig | None = None
    tls: BrokerTlsConfig | None = Field(None, description="{}: TLS by the authorities of the system")
    batches: bool = Field(True, description="several messages of a queue in one request; a service may not take these")

    @model_validator(mode="after")
    def _whole_key(self) -> RocketConfig:
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("say access_key and secret_key, both, or neither")
        return self


AnyBroker = Annotated[KafkaConfig | RabbitConfig | RocketConfig, Field(discriminator="kind")]
