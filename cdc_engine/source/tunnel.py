"""Connects to a server through a bastion. Each connection has its own process of the system's `ssh`, which carries the bytes over its
standard input and output.

The system's ssh supports every kind of key, certificate and agent, and needs no Python package. `ssh -W` opens no local port. So no other
user of this host can use the tunnel, and no port conflict can occur. The ssh process ends when either side closes the connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import AccessDeniedError, ConfigurationError, SluiceError, SourceConnectionError

# ssh sends a keep-alive message after ALIVE_SECONDS without data, and ends after ALIVE_COUNT_MAX messages without an answer.
ALIVE_SECONDS, ALIVE_COUNT_MAX = 15, 3
END_SECONDS_MAX = 5.0
SSH_FAILED = 255  # ssh's exit code for its own errors.
OUTPUT_CHARS_MAX = 500
_HOST_KEY = ("host key verification failed", "host key is known")
_KEY = ("permission denied", "identity file", "invalid format", "error in libcrypto")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bastion:
    """A host with an SSH server, from which the source can be reached. Without `key_file`, ssh uses its agent and default keys. Without
    `known_hosts_file`, ssh uses the known hosts of the user and the system.
    """

    host: str
    port: int
    user: str
    key_file: Path | None = None
    known_hosts_file: Path | None = None

    @property
    def address(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


class Tunnel:
    """One connection to a server through a bastion. `socket` is the local end of the tunnel, and behaves like a socket that is connected to
    the server.
    """

    def __init__(self, bastion: Bastion, host: str, port: int) -> None:
        """Starts ssh. Raises ConfigurationError if ssh cannot be started. If ssh starts but cannot connect, `failure` returns why."""
        self._bastion, self._stderr = bastion, tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self.socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command(bastion, host, port),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self.socket.close()
            self._stderr.close()
            raise ConfigurationError(
                f"ssh for the bastion {bastion.address} cannot be started ({error.strerror}): install OpenSSH's client"
            ) from error
        finally:
            theirs.close()

    def failure(self) -> SluiceError | None:
        """Returns the error of ssh if ssh failed, otherwise None. Waits up to END_SECONDS_MAX for ssh to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(END_SECONDS_MAX) == SSH_FAILED:
                return failure_of(self._bastion, _text(self._stderr))
        return None

    def close(self) -> None:
        """Closes the tunnel and ends ssh. A second call has no effect."""
        self.socket.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._stderr.close()


@contextlib.contextmanager
def explained(tunnel: Tunnel | None) -> Iterator[None]:
    """After an error in the body of the `with` statement, closes the tunnel. If ssh failed, raises the error of ssh, otherwise the error of
    the body.
    """
    try:
        yield
    except BaseException as error:
        failure = tunnel.failure() if tunnel is not None and isinstance(error, Exception) else None
        if tunnel is not None:
            tunnel.close()
        if failure is not None:
            raise failure from error
        raise


def command(bastion: Bastion, host: str, port: int) -> list[str]:
    """Returns the command line of ssh, with all options, because ssh must read no configuration file. ssh also asks no questions."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",  # Otherwise ssh would add host keys that the bastion offers to known_hosts.
        "ConnectTimeout": str(limits.CONNECT_TIMEOUT_SECONDS),
        "ServerAliveInterval": str(ALIVE_SECONDS),
        "ServerAliveCountMax": str(ALIVE_COUNT_MAX),
        "LogLevel": "ERROR",
    }
    if bastion.key_file is not None:
        options |= {"IdentitiesOnly": "yes", "IdentityFile": _quoted(bastion.key_file)}
    if bastion.known_hosts_file is not None:
        options |= {"UserKnownHostsFile": _quoted(bastion.known_hosts_file), "GlobalKnownHostsFile": "none"}
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    where = ["-p", str(bastion.port), "-l", bastion.user, "--", bastion.host]
    return ["ssh", "-F", "none", "-T", "-W", target, *arguments, *where]


def failure_of(bastion: Bastion, output: str) -> SluiceError:
    """Returns Sluice's error for an ssh process that has failed. `output` is the error output of the process."""
    lines = output.lower()
    if any(each in lines for each in _HOST_KEY):
        where = bastion.known_hosts_file or "~/.ssh/known_hosts"
        return ConfigurationError(
            f"the host key of the bastion {bastion.address} is not in {where}, or differs from the key there: compare "
            "the fingerprint with the fingerprint on the bastion itself, then add or replace the key (`ssh-keyscan -p "
            f"{bastion.port} {bastion.host}`). ssh: {output}"
        )
    if any(each in lines for each in _KEY):
        key = bastion.key_file or "of the agent or the default files"
        return AccessDeniedError(
            f"the bastion {bastion.address} refused the private key ({key}): the key file must be readable "
            "only by its owner and have no passphrase, and authorized_keys of the user must contain the "
            f"public key. ssh: {output}"
        )
    return SourceConnectionError(
        f"the bastion {bastion.address} did not connect: {output or 'ssh ended without a reason'}; check `ssh` of the source in conf/ and "
        "that the bastion reaches the server; Sluice tries again"
    )


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return " ".join(output.read(OUTPUT_CHARS_MAX).decode(errors="replace").split())


def _quoted(path: Path) -> str:
    """Returns a path as ssh's options require it: in quotes, with `%` escaped."""
    return '"' + str(path).replace("%", "%%") + '"'
