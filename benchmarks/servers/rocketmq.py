"""Runs a RocketMQ from its jars for the tests: a name server, and a broker that requires credentials."""

import functools
import os
import socket
from pathlib import Path
from typing import Self

from sluice.console.toolchain.artifacts import load_artifacts
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines, wait_until_listening
from sluice.console.toolchain.setup import set_up

ROCKETMQ = "rocketmq"
START_SECONDS_MAX = 90.0
MESSAGE_BYTES_MAX = 2 << 20
LIMITS = ("-Xmx192m", "-Xss512k", "-XX:MaxDirectMemorySize=128m")
OPENED = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED")
NAME_SERVER, BROKER = "org.apache.rocketmq.namesrv.NamesrvStartup", "org.apache.rocketmq.broker.BrokerStartup"
# The settings of a broker with few threads and small files. The broker does not create missing topics.
BROKER_SETTINGS = {
    "brokerClusterName": "sluice",
    "brokerName": "sluice",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "autoCreateTopicEnable": "false",
    "waitTimeMillsInSendQueue": "10000",  # With the default of 200 ms, the broker refuses messages on a busy machine.
    "maxMessageSize": str(MESSAGE_BYTES_MAX),
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "600000",
    "timerWheelEnable": "false",
    "messageIndexEnable": "false",
    "authenticationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
}


class RocketServer:
    """A name server and a broker on 127.0.0.1. If the broker is killed and restarted, the name server continues meanwhile.
    `certificate` are two PEM files, the certificate and its key, for TLS.
    """

    access_key, secret = "sluice-tests", "open-sesame-rocket"

    def __init__(self, folder: Path, certificate: tuple[Path, Path] | None = None) -> None:
        self.folder = folder.absolute()
        self.name_port, self.broker_port, self._replica_port = free_port(), _port_with_another(), free_port()
        self._certificate = certificate
        self._names: ChildProcess | None = None
        self._broker: ChildProcess | None = None

    @property
    def servers(self) -> str:
        return f"{LOOPBACK}:{self.name_port}"

    @property
    def broker_log(self) -> Path:
        return self.folder / "broker.log"

    def start(self) -> Self:
        """Starts the name server and the broker on their ports. Returns when both answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._names is None or not self._names.running:
            names = {"listenPort": str(self.name_port), "bindAddress": LOOPBACK}
            self._names = self._begin(NAME_SERVER, names, self.folder / "names.log")
        self._broker = self._begin(BROKER, self._settings(), self.broker_log)
        _require_answers(self.name_port, self._names, self.folder / "names.log")
        _require_answers(self.broker_port, self._broker, self.broker_log)
        return self

    def kill(self) -> None:
        """Ends both processes with SIGKILL."""
        self.kill_broker()
        if self._names:
            self._names.kill()

    def kill_broker(self) -> None:
        """Ends the broker with SIGKILL, as a crash would."""
        if self._broker:
            self._broker.kill()

    def stall_broker(self) -> None:
        """Makes the broker hang, until it is killed."""
        if self._broker:
            self._broker.stall()

    def _begin(self, program: str, settings: dict[str, str], log: Path) -> ChildProcess:
        file = log.with_suffix(".conf")
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        words = (*LIMITS, *OPENED, *self._tls(), f"-Duser.home={self.folder}", program, "-c", str(file))
        environment = {**os.environ, "ROCKETMQ_HOME": str(self.folder)}
        return ChildProcess([*java_command(), *words], log, environment=environment, folder=self.folder)

    def _tls(self) -> list[str]:
        """Returns the options for TLS. With them, the port accepts connections with and without TLS."""
        if self._certificate is None:
            return []
        certificate, key = self._certificate
        names = {"mode": "permissive", "certPath": certificate, "keyPath": key, "need.client.auth": "none"}
        return ["-Dtls.test.mode.enable=false", *(f"-Dtls.server.{name}={value}" for name, value in names.items())]

    def _settings(self) -> dict[str, str]:
        key = f'"{self.access_key}","{{}}":"{self.secret}"'
        return {
            **BROKER_SETTINGS,
            "namesrvAddr": self.servers,
            "listenPort": str(self.broker_port),
            "haListenPort": str(self._replica_port),
            "bindAddress": LOOPBACK,
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "storePathRootDir": str(self.folder / "store"),
            "initAuthenticationUser": '{"username":' + key.format("password") + "}",
            "innerClientAuthenticationCredentials": '{"accessKey":' + key.format("secretKey") + "}",
        }


@functools.cache
def java_command() -> tuple[str, ...]:
    """Returns the Java command with all jars of RocketMQ. The caller appends the class to run."""
    toolchain = set_up([], delta=False, extras=(ROCKETMQ,))
    jars = [str(toolchain.cache.jars / each.file_name) for each in load_artifacts(ROCKETMQ)]
    return (str(toolchain.java.program), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", ":".join(jars))


def _port_with_another() -> int:
    """Returns a free port P for which P - 2 is free too. A broker opens both ports."""
    while True:
        port = free_port()
        with socket.socket() as second:
            try:
                second.bind((LOOPBACK, port - 2))
            except OSError:
                continue
            return port


def _require_answers(port: int, process: ChildProcess, log: Path) -> None:
    if not wait_until_listening(port, (process,), START_SECONDS_MAX):
        raise ServerError(f"RocketMQ did not start; its log {log} ends: {last_lines(log)}")
