"""Creates the Spark Connect server of a configuration, for `sluice up`, and runs it in the foreground, for `sluice spark`."""

from __future__ import annotations

import dataclasses
import urllib.parse
from pathlib import Path
from typing import NoReturn

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.engine import host_and_port
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.stack.processes import PARTS, part_names
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.orchestration.base.lake_settings import spark_stores, store_environment, store_settings
from sluice.orchestration.base.ports import MergeFailedError
from sluice.package_files import conf_file

BINDING = "spark.connect.grpc.binding.address"
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")
SHARED_KINDS = ("sql", "zookeeper")


@dataclasses.dataclass(frozen=True)
class Listening:
    """The address on which the Spark Connect server accepts clients, and the memory of its Java process, such as "4g". If `host` is empty,
    `spark.connect.grpc.binding.address` in spark-defaults.conf applies.
    """

    port: int
    host: str = ""
    memory: str = "4g"

    @classmethod
    def at(cls, address: str, memory: str) -> Listening:
        """Parses an address "host:port". Raises ConfigurationError if it is invalid."""
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise ConfigurationError(f"--listen: {error}") from None
        return cls(port, host, memory)


def spark_server(
    config: SluiceConfig, conf: Path, listening: Listening, *, die_with_parent: bool = False
) -> SparkConnectServer:
    """Returns a Spark Connect server with the settings and jars that conf/ and the lake in conf/ need. The server is not started."""
    return SparkConnectServer(
        None,
        config.data_dir / "spark",
        port=listening.port,
        memory=listening.memory,
        extras=spark_stores(config),
        settings=ServerSettings(
            file=conf_file(conf, "spark-defaults.conf"), more={BINDING: listening.host} if listening.host else {}
        ),
        die_with_parent=die_with_parent,
    )


def several_sparks(config: SluiceConfig, conf: Path) -> str:
    """Returns why this conf/ is unsafe for a lake in S3, or "". This conf/ is unsafe if several hosts may write the lake, each with its own
    Spark, and these Sparks commit with Delta's own log store.

    Delta's log store first checks whether a version of the table exists, and then writes the version. A single Spark server prevents
    another write in between, but several Spark servers do not know of each other. The Spark that `sluice up` starts uses another log store
    by default, which writes a version only if this version does not exist yet.
    """
    own = config.spark.master or (urllib.parse.urlsplit(config.spark.remote).hostname or "") in LOOPBACK
    if not (own and "s3" in spark_stores(config) and config.meta.kind in SHARED_KINDS):
        return ""
    started = PARTS[-1] in part_names(config)
    if started and spark_server(config, conf, Listening(config.ports.spark_connect)).commits_conditionally("s3"):
        return ""
    what = f"spark.master {config.spark.master}" if config.spark.master else f"spark.remote {config.spark.remote}"
    why = "whose spark-defaults.conf names another log store" if started else "which `sluice up` does not start"
    return (
        f"the lake is in S3, `meta` of kind {config.meta.kind} is for several hosts, and {what} is a separate "
        f"Spark server on each host, {why}: a server that is paused during a commit can overwrite a commit of "
        "another host. Start one Spark Connect server for all hosts, and write the same address in "
        "spark.remote on every host. With only one host, write this host's name in spark.remote, or set meta.kind to file"
    )


def pass_store_settings(server: SparkConnectServer, config: SluiceConfig, command: str) -> None:
    """Passes the settings and credentials of the lake's store to a server that is not started yet. Raises ConfigurationError if a secret
    cannot be read. The error's message names `command`, the command that starts the server.
    """
    try:
        server.add_settings(store_settings(config), store_environment(config))
    except MergeFailedError as error:
        raise ConfigurationError(
            f"{error}; `{command}` passes the secrets in storage_options to Spark: provide them where you start `{command}`"
        ) from error


def run_spark(config: SluiceConfig, conf: Path, listening: Listening) -> NoReturn:
    """Replaces this process by a Spark Connect server. So the server gets the signals that are sent to this process, and writes to the
    output of this process. Raises SetupError if the server cannot be started, and ConfigurationError if a secret cannot be read.
    """
    server = spark_server(config, conf, listening)
    pass_store_settings(server, config, "sluice spark")
    server.replace_process()
