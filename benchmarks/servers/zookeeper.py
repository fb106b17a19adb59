"""Runs ZooKeeper servers from pyspark's jars for the tests: one node, or an ensemble of several."""

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.java import Java
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.python_packages import pyspark_jar
from sluice.console.toolchain.setup import set_up

SERVER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JARS = (
    *("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java", "commons-io", "commons-cli"),
    *("netty-buffer", "netty-codec-base", "netty-common", "netty-handler", "netty-resolver", "netty-transport"),
    *("netty-transport-classes-epoll", "netty-transport-native-unix-common"),
)
TICK_MS = 200  # A session lasts at least two ticks.
START_SECONDS_MAX = 60.0


class ZooKeeperServer:
    """A ZooKeeper node with its own directory, which is standalone unless `join` makes the node a member of an ensemble."""

    def __init__(self, folder: Path, port: int | None = None, java: Java | None = None) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self._java = java
        self._process: ChildProcess | None = None
        self._settings: list[str] = []
        self._options: list[str] = []
        self._number = 0

    @property
    def hosts(self) -> str:
        """The address that kazoo needs."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "zookeeper.log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerError(f"the ZooKeeper in {self.folder} was not started")
        return self._process.pid

    def join(self, number: int, members: Sequence[str]) -> None:
        """Makes this node member `number`, counted from 1, of an ensemble. `members` are the lines "server.1=host:port:port" of all
        members.
        """
        self._number, self._settings = number, list(members)

    def permit(self, users: Mapping[str, str]) -> None:
        """Lets users log in with SASL (DIGEST-MD5). `users` has their passwords by name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        logins = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        (self.folder / "jaas.conf").write_text(f"Server {{ {module} required {logins}; }};\n")
        self._options.append(f"-Djava.security.auth.login.config={self.folder / 'jaas.conf'}")
        self._settings.append("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")

    def secure(self, certificate: Path, key: Path, *, authority: Path | None = None) -> int:
        """Opens a port with TLS, and returns it. With `authority`, clients need a certificate that this authority has signed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        both, port = self.folder / "server.pem", free_port()
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        read = serialization.load_pem_private_key(key.read_bytes(), None)
        # ZooKeeper reads a private key only in PKCS #8 without a password.
        both.write_bytes(read.private_bytes(*form) + certificate.read_bytes())
        self._settings += [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={port}",
            f"secureClientPortAddress={LOOPBACK}",
            f"ssl.keyStore.location={both}",
            f"ssl.trustStore.location={authority or certificate}",
            f"ssl.clientAuth={'need' if authority else 'none'}",
        ]
        return port

    def start(self, *, wait: bool = True) -> "ZooKeeperServer":
        """Starts the server on its port. With `wait`, returns only when it serves clients."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        if self._number:
            (data / "myid").write_text(str(self._number))
        settings = self.folder / "zoo.cfg"
        settings.write_text("\n".join([*self._basics(data), *self._settings]) + "\n")
        java = self._java or set_up([], delta=False).java
        classes = ":".join(str(pyspark_jar(name)) for name in JARS)
        options = ["-Xmx96m", "-XX:TieredStopAtLevel=1", *self._options]
        command = [str(java.program), *options, "-cp", classes, SERVER_CLASS, str(settings)]
        self._process = ChildProcess(command, self.log)
        if wait:
            self.wait_until_it_serves()
        return self

    def wait_until_it_serves(self) -> None:
        """Waits until the server serves clients. Raises ServerError if the server has ended or does not serve in time."""
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            if self._process is not None and not self._process.running:
                break
            if self.mode():
                return
            time.sleep(0.05)
        raise ServerError(f"ZooKeeper did not start; its log {self.log} ends: {last_lines(self.log)}")

    def mode(self) -> str:
        """Returns standalone, leader or follower. Returns "" while the server does not serve clients."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                connection.shutdown(socket.SHUT_WR)
                said = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in said.splitlines() if line.startswith("Mode: ")), "")

    def stop(self) -> None:
        """Shuts the server down."""
        if self._process:
            self._process.stop(10)

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        if self._process:
            self._process.kill()

    def _basics(self, data: Path) -> list[str]:
        return [
            f"tickTime={TICK_MS}",
            f"dataDir={data}",
            f"clientPort={self.port}",
            f"clientPortAddress={LOOPBACK}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "maxClientCnxns=0",
            "initLimit=50",
            "syncLimit=25",
            "maxSessionTimeout=120000",
        ]


class ZooKeeperEnsemble:
    """An ensemble of ZooKeeper nodes. The ensemble works while a majority of the nodes runs."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.nodes = [ZooKeeperServer(folder / f"node-{number}") for number in range(1, size + 1)]
        members = [
            f"server.{number}={LOOPBACK}:{free_port()}:{free_port()}" for number in range(1, len(self.nodes) + 1)
        ]
        for number, node in enumerate(self.nodes, start=1):
            node.join(number, members)

    @property
    def hosts(self) -> str:
        return ",".join(node.hosts for node in self.nodes)

    @property
    def leader(self) -> ZooKeeperServer:
        """The leader. Raises ServerError if the ensemble has none now."""
        for node in self.nodes:
            if node.mode() == "leader":
                return node
        raise ServerError("the ZooKeeper nodes have no leader now")

    def start(self) -> "ZooKeeperEnsemble":
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_until_it_serves()
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
