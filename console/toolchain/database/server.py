"""Runs private MySQL and MariaDB servers, which end with the process that started them. The demo, the tests and the benchmarks use these
servers.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql

from sluice.console.toolchain.database.data_folder import provide_data_folder
from sluice.console.toolchain.database.options import Options, merged_options, option_arguments
from sluice.console.toolchain.database_packages import ServerHome
from sluice.console.toolchain.errors import PortTakenError, ServerError
from sluice.console.toolchain.ports import LOOPBACK, free_port, require_free
from sluice.console.toolchain.process import ChildProcess, last_lines
from sluice.console.toolchain.setup import set_up

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 30.0
INITIALISE_SECONDS_MAX = 180.0
# If the path of a socket would have more characters than this, the socket is created in the system's temporary directory. The kernel allows
# 107 characters.
SOCKET_PATH_CHARS_MAX = 100
PORT_ATTEMPTS_MAX = 5
MARIADB_SCRIPTS = (
    "*_system_tables.sql",
    "*_performance_tables.sql",
    "*_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "*_sys_schema.sql",
)


class DatabaseServer:
    """A database server with its own directory, socket and port on 127.0.0.1. The server's user root has no password."""

    def __init__(
        self,
        version: str,
        datadir: Path,
        port: int | None = None,
        options: Options | None = None,
        *,
        die_with_parent: bool = True,
    ) -> None:
        """Describes a server; `start` starts the server. `datadir` is the directory for all files of the server: the data directory `data`,
        the error log and the socket. If `port` is None, a free port is chosen. For an option with the value None, the server uses its own
        default. With `die_with_parent`, the server is killed when this process dies.
        """
        self.version = version
        self.folder = datadir.absolute()
        self.options = dict(options or {})
        self._wanted_port = port
        self._port = port
        self._die_with_parent = die_with_parent
        self._home: ServerHome | None = None
        self._process: ChildProcess | None = None

    @property
    def home(self) -> ServerHome:
        """The unpacked server. If the cache lacks the server, the first use of this property downloads and unpacks it."""
        if self._home is None:
            self._home = set_up([self.version], delta=False).servers[self.version]
        return self._home

    @property
    def data_folder(self) -> Path:
        """The directory with the tables and binlog files."""
        return self.folder / "data"

    @property
    def error_log(self) -> Path:
        """The server's error log."""
        return self.folder / "error.log"

    @property
    def socket(self) -> Path:
        """The server's Unix socket. The socket is in the system's temporary directory if its usual path would be too long."""
        inside = self.folder / "mysql.sock"
        if len(str(inside)) <= SOCKET_PATH_CHARS_MAX:
            return inside
        digest = hashlib.sha256(str(inside).encode()).hexdigest()
        return Path(tempfile.gettempdir()) / f"sluice-{digest[:16]}.sock"

    @property
    def pid_file(self) -> Path:
        """The file that the server writes when it is ready."""
        return self.folder / "server.pid"

    @property
    def port(self) -> int:
        """The port on which the server listens. If the caller gave no port, the first use of this property chooses a free one. A restart
        does not change the port, with one exception: if another program has taken a chosen port, `start` chooses another one.
        """
        if self._port is None:
            self._port = free_port()
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the server that was started last. Raises ServerError if no server was started."""
        if self._process is None:
            raise ServerError(f"{self.version} in {self.folder} was not started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.running

    def start(self) -> "DatabaseServer":
        """Starts the server, and returns when the server answers. Creates the data directory first if it does not exist or is incomplete.
        Does nothing if the server runs.

        Raises PortTakenError if another program has the port, and ServerError if the server ends or does not answer within
        START_SECONDS_MAX.
        """
        if self.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.data_folder / "mysql").exists():
            shutil.rmtree(self.data_folder, ignore_errors=True)
            provide_data_folder(self.home, self.options, self.data_folder, self._initialise)
        for _ in range(PORT_ATTEMPTS_MAX):
            try:
                self._start_once()
            except PortTakenError:
                if self._wanted_port is not None:
                    raise
                self._port = None  # Another process has taken the port, so the next attempt uses another port.
            else:
                return self
        raise PortTakenError(f"No free port was found for {self.version} in {PORT_ATTEMPTS_MAX} attempts; try again.")

    def stop(self) -> None:
        """Shuts the server down. Kills the server if it has not ended after STOP_SECONDS_MAX. Removes the socket and the pid file."""
        if self._process:
            self._process.stop(STOP_SECONDS_MAX)
        self._forget_socket()

    def kill(self) -> None:
        """Ends the server with SIGKILL, to simulate a crash. Removes the socket and the pid file."""
        if self._process:
            self._process.kill()
        self._forget_socket()

    def restart(self, options: Options | None = None) -> None:
        """Stops the server and starts it again on the same port. `options` are added to the server's options, or replace them."""
        self.stop()
        self.options.update(options or {})
        self.start()

    def connect(self, **arguments: Any) -> "pymysql.Connection[Any]":
        """Connects to the server as root over TCP, with autocommit and utf8mb4. `arguments` are passed to PyMySQL, and override these
        defaults. Without a password, connects without TLS.
        """
        settings: dict[str, Any] = {"host": LOOPBACK, "port": self.port, "user": "root", "autocommit": True}
        # For TLS, PyMySQL loads all certificate authorities of the system, which takes ten times as long as the rest of the connection.
        plain = {} if "password" in arguments else {"ssl_disabled": True}
        return pymysql.connect(**{**settings, "charset": "utf8mb4", **plain, **arguments})

    def __enter__(self) -> "DatabaseServer":
        """Starts the server at the start of a with block."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stops the server at the end of a with block."""
        self.stop()

    def _start_once(self) -> None:
        require_free(self.port, self.version)
        self._forget_socket()
        network: dict[str, str | int | None] = {
            "port": self.port,
            "socket": str(self.socket),
            "pid_file": str(self.pid_file),
        }
        command = self._command(self.data_folder, {**merged_options(self.version, self.options), **network})
        self._process = ChildProcess(
            command, self.error_log, environment=self.home.environment(), die_with_parent=self._die_with_parent
        )
        self._wait_until_it_answers(self._process)

    def _wait_until_it_answers(self, process: ChildProcess) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            if not process.running:
                process.kill()
                raise self._start_failed(f"ended with exit code {process.exit_code}")
            if self._answers():
                return
            time.sleep(0.1)
        process.kill()
        raise self._start_failed(f"did not answer for {START_SECONDS_MAX:.0f} s")

    def _answers(self) -> bool:
        """Returns whether this server answers a query. If another server has the port, the result is False, because that server reports
        another pid_file.
        """
        try:
            with contextlib.closing(self.connect(connect_timeout=5)) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@pid_file")
                return bool(cursor.fetchone() == (str(self.pid_file),))
        except pymysql.err.OperationalError:
            return False

    def _start_failed(self, what: str) -> ServerError:
        end = last_lines(self.error_log)
        if "Address already in use" in end or "Do you already have another" in end:
            return PortTakenError(
                f"Port {self.port} of {self.version} is taken by another program; choose another port."
            )
        return ServerError(f"{self.version} {what}; its log {self.error_log} ends: {end}")

    def _command(self, data_folder: Path, options: Mapping[str, str | int | None]) -> list[str]:
        user = ["--user=root"] if os.geteuid() == 0 else []
        # Each server gets its own temporary directory. In a shared directory, a starting server would delete the temporary files of other
        # servers.
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        folders = {**self.home.folders, "datadir": str(data_folder), "tmpdir": str(temporary)}
        return [*self.home.command, "--no-defaults", *user, *option_arguments({**folders, **options})]

    def _initialise(self, data_folder: Path, options: Mapping[str, str | int]) -> None:
        mode = "--bootstrap" if self.home.is_mariadb else "--initialize-insecure"
        if self.home.is_mariadb:
            (data_folder / "mysql").mkdir(parents=True)
        done = subprocess.run(
            [*self._command(data_folder, options), mode],
            input=self._bootstrap_sql() if self.home.is_mariadb else b"",
            env=self.home.environment(),
            capture_output=True,
            timeout=INITIALISE_SECONDS_MAX,
            check=False,
        )
        with self.error_log.open("ab") as log:
            log.write(done.stdout + done.stderr)
        if done.returncode != 0:
            shutil.rmtree(data_folder, ignore_errors=True)
            raise self._start_failed("could not initialise its data folder")

    def _bootstrap_sql(self) -> bytes:
        """Returns the statements that mariadb-install-db would run. The statements create a user root that has no password and is not tied
        to a user of the operating system.
        """
        share = self.home.folder / "share"
        files = [file for pattern in MARIADB_SCRIPTS for file in sorted(share.glob(pattern))]
        head = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        return head + b"\n".join(file.read_bytes() for file in files)

    def _forget_socket(self) -> None:
        """Removes the files that a killed server leaves: its socket, the socket's lock file and its pid file. The lock file contains the id
        of the killed process. If another process had this id by now, the server would not start.
        """
        for file in (self.socket, self.socket.with_name(f"{self.socket.name}.lock"), self.pid_file):
            file.unlink(missing_ok=True)
