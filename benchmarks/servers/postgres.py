"""Runs a Postgres 16 from its jar for the tests.

Postgres refuses to run as root. If the user is root, Postgres runs as `nobody`. In this case, the program and data of Postgres are in the
system's temporary directory, because `nobody` cannot read the cache of root.
"""

import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from rich.console import Console

from sluice.console.toolchain.artifacts import load_artifacts
from sluice.console.toolchain.cache import locked, open_cache
from sluice.console.toolchain.download import fetch
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.java import provide_java
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines

POSTGRES = "postgres-16"
USER = "sluice"
NOBODY = 65534
START_SECONDS_MAX = 60.0
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# With these options, the server does not wait for the disk. Tests kill the server, never the machine, so committed data stays in the
# kernel's cache and is not lost.
FAST = ("fsync=off", "full_page_writes=off")


class PostgresServer:
    """A Postgres on 127.0.0.1, whose user has no password."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self._is_root = os.geteuid() == 0
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-postgres-")) if self._is_root else folder.absolute()
        self.port = port or free_port()
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """The URL for SQLAlchemy."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/postgres"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerError(f"the Postgres in {self.folder} was not started")
        return self._process.pid

    def start(self) -> "PostgresServer":
        """Starts the server on its port, and returns when it answers. The first start creates the data directory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        home = self._home()
        data = self.folder / "data"
        if not data.exists():
            self._initialise(home, data)
        settings = [f"port={self.port}", f"listen_addresses={LOOPBACK}", "unix_socket_directories=", *FAST]
        options = [word for setting in settings for word in ("-c", setting)]
        command = [*self._as_whom(), str(home / "bin" / "postgres"), "-D", str(data), *options]
        self._process = ChildProcess(command, self.log, folder=self.folder)
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end and self._process.running:
            if "ready to accept connections" in last_lines(self.log, 3) and self._listens():
                return self
            time.sleep(0.05)
        raise ServerError(f"Postgres did not start; its log {self.log} ends: {last_lines(self.log)}")

    def stop(self) -> None:
        """Kills the server and deletes its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        if self._process:
            self._process.kill()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0

    def _as_whom(self) -> tuple[str, ...]:
        return AS_NOBODY if self._is_root else ()

    def _home(self) -> Path:
        home = unpacked()
        if not self._is_root:
            return home
        copy = self.folder / "home"
        if not copy.exists():
            self.folder.chmod(0o711)
            shutil.copytree(home, copy, symlinks=True)
        return copy

    def _initialise(self, home: Path, data: Path) -> None:
        data.mkdir(mode=0o700)
        if self._is_root:
            os.chown(data, NOBODY, NOBODY)
        initdb = [str(home / "bin" / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"]
        done = subprocess.run(
            [*self._as_whom(), *initdb, "--locale=C"], capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode:
            raise ServerError(f"Postgres could not make its data folder: {done.stdout[-500:]} {done.stderr[-500:]}")


def unpacked() -> Path:
    """Returns the unpacked server in the cache. The first call downloads it."""
    cache, screen = open_cache(), Console(stderr=True)
    (artifact,) = load_artifacts(POSTGRES)
    folder = cache.servers / POSTGRES
    stamp = folder / ".unpacked"
    with locked(cache, screen.print):
        if stamp.exists() and stamp.read_text(encoding="utf-8") == artifact.sha256:
            return folder
        fetch(cache, provide_java(cache), [artifact], screen)
        scratch = cache.servers / f"{POSTGRES}.new"
        for old in (scratch, folder):
            shutil.rmtree(old, ignore_errors=True)
        scratch.mkdir(parents=True)
        jar = cache.jars / artifact.file_name
        with zipfile.ZipFile(jar) as archive:
            (name,) = [each for each in archive.namelist() if each.endswith(".txz")]
            with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as members:
                members.extractall(scratch, filter="data")
        (scratch / ".unpacked").write_text(artifact.sha256, encoding="utf-8")
        scratch.rename(folder)
        jar.unlink()
    return folder
