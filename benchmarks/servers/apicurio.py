"""Runs an Apicurio Registry for the tests: a schema registry with Confluent's API, which keeps its schemas in memory."""

import functools
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

APICURIO = "apicurio"
START_SECONDS_MAX, CALL_SECONDS_MAX = 120.0, 30.0
LIMITS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ApicurioServer:
    """A schema registry on 127.0.0.1 with the compatibility level BACKWARD. A restart loses its schemas."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder.absolute(), free_port()
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/apis/ccompat/v7"

    @property
    def log(self) -> Path:
        return self.folder / "apicurio.log"

    def start(self) -> Self:
        """Starts the server on its port. Returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        java, jar = _distribution()
        settings = (f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self.port}")
        self._process = ChildProcess([str(java), *LIMITS, *settings, "-jar", str(jar)], self.log, folder=self.folder)
        end = time.monotonic() + START_SECONDS_MAX
        while not self.set_compatibility("BACKWARD"):
            if not self._process.running or time.monotonic() > end:
                raise ServerError(f"Apicurio did not start; its log {self.log} ends: {last_lines(self.log)}")
            time.sleep(0.1)
        return self

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        if self._process:
            self._process.kill()

    def set_compatibility(self, level: str, subject: str = "") -> bool:
        """Sets the compatibility level of a subject, or of all subjects if `subject` is empty. Returns whether the server answered."""
        request = urllib.request.Request(  # noqa: S310  on the loopback address
            f"{self.url}/config/{subject}".rstrip("/"),
            json.dumps({"compatibility": level}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX):  # noqa: S310  on the loopback address
                return True
        except OSError:
            return False


def _distribution() -> tuple[Path, Path]:
    """Returns the path of Java and the jar to run. The first call downloads and unpacks the distribution."""
    toolchain = set_up([], delta=False, extras=(APICURIO,))
    (artifact,) = load_artifacts(APICURIO)
    archive = toolchain.cache.jars / artifact.file_name
    home = installed_once(toolchain.cache, f"{APICURIO}-{artifact.revision}", functools.partial(_unpacked, archive))
    (jar,) = home.glob("*-runner.jar")
    return toolchain.java.program, jar


def _unpacked(archive: Path, folder: Path) -> Path:
    target = folder / "unpacked"
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    return target
