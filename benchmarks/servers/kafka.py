"""Runs a Kafka of one node, which is broker and controller, from its jars for the tests."""

import shutil
import time
from pathlib import Path
from typing import Self

from sluice.console.toolchain.artifacts import load_artifacts
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines, wait_until_listening
from sluice.console.toolchain.python_packages import pyspark_jar
from sluice.console.toolchain.setup import set_up

KAFKA = "kafka"
# Kafka needs these jars, and pyspark already contains them.
PYSPARK_JARS = (
    *("scala-library", "scala-reflect", "jackson-core", "jackson-databind", "jackson-annotations"),
    *("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "zstd-jni", "lz4-java", "snappy-java"),
)
CLUSTER_ID = "c2x1aWNlLXRlc3RzLWthZg"
START_SECONDS_MAX = 90.0
LIMITS = ("-Xmx256m", "-Xss512k", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class KafkaServer:
    """A Kafka of one node on 127.0.0.1. This Kafka does not create missing topics."""

    def __init__(self, folder: Path, port: int | None = None, java: Java | None = None) -> None:
        self.folder = folder.absolute()
        self.port, self._controller = port or free_port(), free_port()
        self._java = java
        self._process: ChildProcess | None = None

    @property
    def servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "kafka.log"

    def start(self) -> Self:
        """Starts the server on its port, with the data in its directory. Returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "server.properties"
        settings.write_text("\n".join(f"{name}={value}" for name, value in self._settings().items()) + "\n")
        command = self._command()
        if not (self.folder / "data" / "meta.properties").exists():
            shutil.rmtree(self.folder / "data", ignore_errors=True)
            words = ("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c", str(settings))
            self._finish(ChildProcess([*command, *words], self.folder / "format.log"))
        self._process = ChildProcess([*command, "kafka.Kafka", str(settings)], self.log)
        self._require_answers(self._process)
        return self

    def stop(self) -> None:
        """Shuts the server down."""
        if self._process:
            self._process.stop(20)

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        if self._process:
            self._process.kill()

    def stall(self) -> None:
        """Makes the server hang, until it is killed."""
        if self._process:
            self._process.stall()

    def _command(self) -> list[str]:
        toolchain = set_up([], delta=False, extras=(KAFKA,))
        jars = [toolchain.cache.jars / each.file_name for each in load_artifacts(KAFKA)]
        classes = ":".join(map(str, [*jars, *map(pyspark_jar, PYSPARK_JARS)]))
        return [str((self._java or toolchain.java).program), *LIMITS, "-cp", classes]

    def _finish(self, process: ChildProcess) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while process.running and time.monotonic() < end:
            time.sleep(0.05)
        process.stop(1)
        if not (self.folder / "data" / "meta.properties").exists():
            log = self.folder / "format.log"
            raise ServerError(f"Kafka's folder could not be made; {log} ends: {last_lines(log)}")

    def _require_answers(self, process: ChildProcess) -> None:
        if not wait_until_listening(self.port, (process,), START_SECONDS_MAX):
            raise ServerError(f"Kafka did not start; its log {self.log} ends: {last_lines(self.log)}")

    def _settings(self) -> dict[str, str]:
        inner = {
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{self._controller}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "num.network.threads": "2",
            "num.io.threads": "2",
            "log.cleaner.dedupe.buffer.size": "2097152",
            **inner,
        }
