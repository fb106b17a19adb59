"""Runs an OpenSSH server on 127.0.0.1 for the tests of bastions. The server is unpacked into the cache and not installed, so no root rights
are needed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.debian import unpacked
from sluice.console.toolchain.errors import SetupError

PACKAGES = ("openssh-server", "libwrap0", "libnsl2", "libtirpc3")
START_SECONDS_MAX = 20.0
POLL_SECONDS = 0.05
NOBODY = "nobody"


class SshServer:
    """An SSH server with one account. `key_file` is the private key of the account, and `known_hosts_file` contains the server's host key.
    All users must be able to read `folder`.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.key_file, self.known_hosts_file = folder / "key", folder / "known_hosts"
        # The account that can log in. A server without root can log in only the account that runs it. If the user is root, the server runs
        # as nobody: as root, sshd would need a system account for privilege separation.
        self.user = NOBODY if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server. After a stop, it has the same keys as before. Raises SetupError if the server does not answer."""
        if not self.key_file.exists():
            self._make_keys()
        program = self._program()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), "-D", "-e", "-f", str(self.folder / "sshd_config")],
                env={**os.environ, "LD_LIBRARY_PATH": str(program.parent)},
                stderr=log,
                start_new_session=True,
                user=self.user if os.geteuid() == 0 else None,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SetupError(f"sshd does not start: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ends the server and all its connections."""
        if self._process is not None and self._process.poll() is None:
            self.disconnect()
            self._process.kill()
            self._process.wait()
        self._process = None

    def disconnect(self) -> None:
        """Ends all connections. The server continues."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _program(self) -> Path:
        """Returns the path of a copy of the server's program, with its libraries. The copy is needed because the account may not be able to
        read the cache.
        """
        program = self.folder / "bin" / "sshd"
        if not program.exists():
            root = unpacked(open_cache(), "openssh-server", PACKAGES)
            program.parent.mkdir()
            for file in (root / "usr/sbin/sshd", *(each for each in root.rglob("*.so.*") if each.is_file())):
                shutil.copy(file, program.parent)
        return program

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _make_keys(self) -> None:
        for name in ("key", "host_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)], check=True
            )
        public = (self.folder / "host_key.pub").read_text()
        self.known_hosts_file.write_text(f"[127.0.0.1]:{self.port} {public}")
        shutil.copy(self.folder / "key.pub", self.folder / "authorized_keys")
        settings = (
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "PidFile none",
            "StrictModes no",
            "UsePAM yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 100",
        )
        (self.folder / "sshd_config").write_text("\n".join((*settings, "")))
        if os.geteuid() == 0:
            shutil.chown(self.folder / "host_key", NOBODY)
