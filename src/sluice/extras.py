"""Lists the optional dependencies by the extra that installs them, and builds the message if one is missing.

pyproject.toml defines the extras. A checkout installs all of them. Code that imports an optional library calls `require` first.
"""

from __future__ import annotations

import importlib.util
from enum import Enum


class Extra(Enum):
    """An extra of the distribution. The three values are the name of the extra in pyproject.toml, what needs the extra (for messages), and
    one module of each library that the extra installs.
    """

    KAFKA = ("kafka", "Kafka", ("confluent_kafka",))
    RABBITMQ = ("rabbitmq", "RabbitMQ", ("pika",))
    PULSAR = ("pulsar", "Pulsar", ("pulsar",))
    OTEL = ("otel", "OpenTelemetry", ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
    ZOOKEEPER = ("zookeeper", "ZooKeeper", ("kazoo",))
    POSTGRES = ("postgres", "Postgres", ("psycopg", "dagster_postgres"))
    AWS = ("aws", "auth aws-iam", ("boto3",))
    S3 = ("s3", "sluice sql of a lake in S3", ("duckdb_extension_httpfs", "duckdb_extension_aws"))
    AZURE = ("azure", "sluice sql of a lake in Azure", ("duckdb_extension_azure",))
    SASL = ("sasl", "meta.sasl", ("puresasl",))

    def __init__(self, extra: str, what: str, modules: tuple[str, ...]) -> None:
        self.extra, self.what, self.modules = extra, what, modules


def require(extra: Extra, kind: type[Exception]) -> None:
    """Raises an error of type `kind` if a library of the extra is not installed. The message says what to install."""
    if not all(map(_is_installed, extra.modules)):
        raise kind(missing_sentence(extra))


def missing_sentence(extra: Extra) -> str:
    """Returns the message for an extra whose library is missing; it says what to install."""
    return f"{extra.what} needs a package that is not installed: pip install 'sluice[{extra.extra}]'"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # A parent package of the module is missing.
        return False
