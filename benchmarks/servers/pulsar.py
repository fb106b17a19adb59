"""Runs a Pulsar from its distribution for the tests: one broker with its storage in one process."""

import base64
import functools
import hashlib
import hmac
import json
import tarfile
import time
import urllib.request
from pathlib import Path
from typing import Self

from benchmarks.servers.installing import installed_once
from sluice.console.toolchain.artifacts import load_artifacts
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.setup import set_up

PULSAR = "pulsar"
START_SECONDS_MAX, CALL_SECONDS_MAX = 120.0, 30.0
MESSAGE_BYTES_MAX = 2 << 20
LIMITS = ("-Xmx256m", "-XX:MaxDirectMemorySize=192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
OPENED = (
    *("java.base/java.io", "java.base/java.nio", "java.base/java.util.zip", "java.base/sun.net"),
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.platform"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
KEY = b"the key that signs the tokens of tests"
SETTINGS = {
    "bindAddress": LOOPBACK,
    "advertisedAddress": LOOPBACK,
    "allowAutoTopicCreation": "false",
    "maxMessageSize": str(MESSAGE_BYTES_MAX),
    "loadBalancerEnabled": "false",
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "authorizationEnabled": "true",
    "superUserRoles": "admin",
    "tokenSecretKey": f"data:;base64,{base64.b64encode(KEY).decode()}",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
}


class PulsarServer:
    """A Pulsar broker on 127.0.0.1 that requires a token. The broker does not create missing topics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.port, self._web_port, self._storage_port = free_port(), free_port(), free_port()
        self._process: ChildProcess | None = None

    @property
    def servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def token(self) -> str:
        """The token of a user who has all permissions."""
        return token_of("admin")

    @property
    def log(self) -> Path:
        return self.folder / "pulsar.log"

    def start(self) -> Self:
        """Starts the server on its ports, with the data in its directory. Returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        java, home = _distribution()
        settings = self.folder / "standalone.conf"
        own = {
            **SETTINGS,
            "brokerServicePort": str(self.port),
            "webServicePort": str(self._web_port),
            "brokerClientAuthenticationParameters": f"token:{self.token}",
        }
        lines = "".join(f"{name}={value}\n" for name, value in own.items())
        settings.write_text(f"{(home / 'conf' / 'standalone.conf').read_text()}\n{lines}")
        storage = (
            "--metadata-dir",
            "metadata",
            "--bookkeeper-dir",
            "bookkeeper",
            "--bookkeeper-port",
            str(self._storage_port),
        )
        command = [
            *(str(java), *LIMITS, *(f"--add-opens={each}=ALL-UNNAMED" for each in OPENED)),
            *("-Dio.netty.tryReflectionSetAccessible=true", "-Dpulsar.log.root.level=warn", "-cp", f"{home / 'lib'}/*"),
            *("org.apache.pulsar.PulsarStandaloneStarter", "--config", str(settings), *storage),
            *("--advertised-address", LOOPBACK, "--no-functions-worker", "--no-stream-storage"),
        ]
        self._process = ChildProcess(command, self.log, folder=self.folder)
        end = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if not self._process.running or time.monotonic() > end:
                raise ServerError(f"Pulsar did not start; its log {self.log} ends: {last_lines(self.log)}")
            time.sleep(0.1)
        return self

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        if self._process:
            self._process.kill()

    def stall(self) -> None:
        """Makes the server hang, until it is killed."""
        if self._process:
            self._process.stall()

    def create(self, topic: str, partitions: int, namespace: str = "public/default") -> None:
        """Creates a partitioned topic."""
        self._call("PUT", f"persistent/{namespace}/{topic}/partitions", str(partitions))

    def _answers(self) -> bool:
        try:
            self._call("GET", "persistent/public/default")
        except OSError:
            return False
        return True

    def _call(self, method: str, path: str, body: str | None = None) -> None:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self._web_port}/admin/v2/{path}",
            body.encode() if body is not None else None,
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX):  # noqa: S310  on the loopback address
            pass


def token_of(user: str) -> str:
    """Returns a JSON web token that the server accepts."""
    parts = [_encoded(json.dumps(each).encode()) for each in ({"alg": "HS256"}, {"sub": user})]
    signed = ".".join(parts)
    return f"{signed}.{_encoded(hmac.digest(KEY, signed.encode(), hashlib.sha256))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _distribution() -> tuple[Path, Path]:
    """Returns the path of Java and the unpacked distribution. The first call downloads and unpacks it."""
    toolchain = set_up([], delta=False, extras=(PULSAR,))
    (artifact,) = load_artifacts(PULSAR)
    archive = toolchain.cache.jars / artifact.file_name
    return toolchain.java.program, installed_once(
        toolchain.cache, f"{PULSAR}-{artifact.revision}", functools.partial(_unpacked, archive)
    )


def _unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root
