"""What conf/ says of the brokers that a destination's changes are sent to; Canal's canal.mq.* in the words of this file."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cdc_engine.source.settings import Strict

SECRET = re.compile(r"password|secret|token|jaas|private\.key$|key\.pem")
FLAT_BYTES, PACKET_BYTES = 1 << 20, 50 * 1024
# What a batch needs to be there before its ack, and in order.
NEEDED = {"acks": ("all", "-1"), "request.required.acks": ("all", "-1"), "enable.idempotence": ("true",)}
NAMED = {"bootstrap.servers", "metadata.broker.list"}


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


class KafkaConfig(BrokerConfig):
    kind: Literal["kafka"]
    servers: str = Field(min_length=1, description="host:port,host:port: some of the cluster's")
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


AnyBroker = KafkaConfig
