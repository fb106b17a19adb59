"""Defines the settings of Kafka, RabbitMQ and RocketMQ in conf/. The subclasses in `kinds` add the method that opens a publisher."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sluice.cdc_engine.config.brokers import Addresses, BrokerConfig, PartitionedConfig
from sluice.cdc_engine.source.settings import SecretReference, SecretText, TlsFilesConfig

SECRET = re.compile(r"password|passphrase|secret|token|jaas|private\.key$|key\.pem")
# Option of librdkafka → the values that conf/ may set for it. With other values, messages could be lost or change their order.
NEEDED = {"acks": ("all", "-1"), "request.required.acks": ("all", "-1"), "enable.idempotence": ("true",)}
NAMED = {"bootstrap.servers", "metadata.broker.list"}


class KafkaConfig(PartitionedConfig):
    """An Apache Kafka cluster."""

    kind: Literal["kafka"] = Field(description="Apache Kafka.")
    servers: str = Field(min_length=1, description="Bootstrap servers of the Kafka cluster, as `host:port,host:port`.")
    transactional_id: str = Field(
        "",
        description=(
            "Name under which each batch is sent as a Kafka transaction. Readers then see a whole batch or nothing of it, "
            "and each message once. A host that has lost the destination's lease can send nothing more. Every broker of "
            "every destination needs a different name. Empty: no transactions."
        ),
    )
    options: dict[str, SecretText] = Field(
        {},
        description="Options of librdkafka, Kafka's client. Write secrets as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`.",
    )

    @field_validator("options", mode="before")
    @classmethod
    def _as_texts(cls, given: Any) -> Any:
        """Converts numbers and booleans of options to text, because each option is text, and YAML parses 5 to a number and true to a
        boolean. Leaves any other value unchanged. The type of `options` then accepts references to secrets, and refuses lists and missing
        values.
        """
        if not isinstance(given, dict):
            return given
        return {
            key: str(value).lower()
            if isinstance(value, bool)
            else str(value)
            if isinstance(value, int | float)
            else value
            for key, value in given.items()
        }

    @model_validator(mode="after")
    def _safe_options(self) -> KafkaConfig:
        bare = [name for name, value in self.options.items() if SECRET.search(name) and not value.startswith("$")]
        if bare:
            raise ValueError(
                f"the options {', '.join(bare)} must be $NAME of an environment variable, {{file: …}} or "
                "{command: […]}, not the secret itself"
            )
        for name, value in self.options.items():
            if name == "transactional.id":
                raise ValueError(f"options {name}: set `transactional_id` instead")
            if name in NAMED:
                raise ValueError(
                    f"options: {name} is not allowed, because Sluice sets it; name the servers in `servers`"
                )
            if value.lower() not in NEEDED.get(name, (value.lower(),)):
                raise ValueError(
                    f"options {name}: {value} could lose messages or change their order; remove the option"
                )
        return self


class RabbitConfig(BrokerConfig):
    """A RabbitMQ exchange. As in Canal, the topic of a message is its routing key."""

    kind: Literal["rabbitmq"] = Field(description="RabbitMQ.")
    servers: Addresses = Field(
        description="Servers of one RabbitMQ cluster, as `host:port,host`. Sluice uses the first server that answers."
    )
    virtual_host: str = Field("/", description="Virtual host of RabbitMQ.")
    exchange: str = Field(
        "",
        description=(
            "Exchange of RabbitMQ to which messages are sent. Empty: a message goes to the queue with the name of "
            "its topic."
        ),
    )
    user: str = Field("guest", description="User name at the broker.")
    password: SecretReference = Field(
        "", description="Password of the user, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
    )
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings. `{}`: TLS with the system's certificate authorities."
    )
    queue: str = Field(
        "", description="Durable queue that the engine declares when it connects. Empty: the engine declares nothing."
    )
    routing_key: str = Field(
        "",
        description="Routing key that binds `queue` to `exchange`. With a routing key, the engine also declares the exchange.",
    )
    exchange_type: Literal["", "direct", "topic", "fanout", "headers"] = Field(
        "", description="Type with which the engine declares the exchange, such as `topic` (in Canal: `deliveryMode`)."
    )

    @model_validator(mode="after")
    def _whole_binding(self) -> RabbitConfig:
        bound = (self.routing_key, self.exchange_type)
        if any(bound) and not (all(bound) and self.queue and self.exchange):
            raise ValueError("to bind a queue, set all of queue, exchange, routing_key and exchange_type")
        return self


class RocketConfig(PartitionedConfig):
    """A RocketMQ cluster. A partition number means a queue of the topic: the queue whose number is the partition number modulo the number
    of queues.
    """

    kind: Literal["rocketmq"] = Field(description="Apache RocketMQ.")
    servers: Addresses = Field(description="Name servers of the RocketMQ cluster, as `host:port;host`.")
    group: str = Field("sluice", min_length=1, description="Producer group.")
    namespace: str = Field("", description="Namespace of the topics.")
    tag: str = Field("", description="Tag of every message.")
    access_key: str = Field("", description="Access key of RocketMQ's access control list (ACL). Empty: no login.")
    secret_key: SecretReference = Field(
        "", description="Secret key of `access_key`, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
    )
    tls: TlsFilesConfig | None = Field(
        None, description="TLS settings. `{}`: TLS with the system's certificate authorities."
    )
    batches: bool = Field(
        True,
        description=(
            "Whether Sluice sends several messages of a queue in one request. `false`: one message per request, for "
            "services that accept no batches of messages."
        ),
    )

    @model_validator(mode="after")
    def _whole_key(self) -> RocketConfig:
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("set both access_key and secret_key, or neither")
        return self
