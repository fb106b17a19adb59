"""Makes the Spark Connect server of a configuration for `sluice up`, and runs it in the foreground for `sluice spark`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.engine import host_and_port
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.toolchain.artifacts import EXTRAS
from sluice.console.toolchain.spark.server import ServerSettings, SparkConnectServer
from sluice.orchestration.base.lake_settings import on_s3, store_environment, store_settings
from sluice.orchestration.base.ports import MergeFailedError
from sluice.package_files import conf_file

BINDING = "spark.connect.grpc.binding.address"


@dataclasses.dataclass(frozen=True)
class Listening:
    """The address on which a server accepts clients, and its memory. `host` empty: the host in spark-defaults.conf."""

    port: int
    host: str = ""
    memory: str = "4g"

    @classmethod
    def at(cls, address: str, memory: str) -> Listening:
        """Parses "host:port". Raises ConfigurationError for anything else."""
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise ConfigurationError(f"--listen: {error}") from None
        return cls(port, host, memory)


def spark_server(
    config: SluiceConfig, conf: Path, listening: Listening, *, die_with_parent: bool = False
) -> SparkConnectServer:
    """Returns the server with the settings of conf/ and for its lake, not started yet."""
    return SparkConnectServer(
        None,
        config.data_dir / "spark",
        port=listening.port,
        memory=listening.memory,
        extras=EXTRAS if on_s3(config) else (),
        settings=ServerSettings(
            file=conf_file(conf, "spark-defaults.conf"), more={BINDING: listening.host} if listening.host else {}
        ),
        die_with_parent=die_with_parent,
    )


def tell_of_the_store(server: SparkConnectServer, config: SluiceConfig, command: str) -> None:
    """Adds the settings and credentials of the lake's store to a server that has not started. Raises ConfigurationError if a secret cannot
    be read where `command` was started.
    """
    try:
        server.tell(store_settings(config), store_environment(config))
    except MergeFailedError as error:
        raise ConfigurationError(f"{error}; set the variables where `{command}` is started") from error


def run_spark(config: SluiceConfig, conf: Path, listening: Listening) -> NoReturn:
    """Replaces this process with the server, so that signals reach it directly and its log is this process's output. Raises SetupError and
    ConfigurationError.
    """
    server = spark_server(config, conf, listening)
    tell_of_the_store(server, config, "sluice spark")
    server.replace_process()
