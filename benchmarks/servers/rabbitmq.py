"""Runs a RabbitMQ of one node for the tests. Debian's packages of RabbitMQ are unpacked and not installed."""

import os
import stat
from pathlib import Path
from typing import Self

from sluice.console.toolchain.cache import locked, open_cache
from sluice.console.toolchain.debian import unpacked
from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import LOOPBACK, free_port
from sluice.console.toolchain.process import ChildProcess, last_lines, wait_until_listening

RABBITMQ = "rabbitmq-server"
PACKAGES = (
    RABBITMQ,
    *(
        f"erlang-{name}"
        for name in (
            *("asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
            *("runtime-tools", "ssl", "syntax-tools", "tools", "xmerl"),
        )
    ),
)
START_SECONDS_MAX = 90.0
MESSAGE_BYTES_MAX = 2 << 20
# With these options, Erlang uses one scheduler thread, which does not spin while it waits. Erlang then also opens no port outside the
# loopback address.
ERLANG_WORDS = (
    "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none +A 4 -kernel inet_dist_use_interface {127,0,0,1} "
    "-kernel prevent_overlapping_partitions false"
)
# This script replaces Debian's `erl`. Debian's script looks for Erlang where it is normally installed.
ERL = """#!/bin/sh
export EMU=beam PROGNAME=erl ROOTDIR={root} BINDIR={programs}
exec {programs}/erlexec "$@"
"""


class RabbitServer:
    """Runs RabbitMQ with one node on 127.0.0.1. If `certificate` is given, the server also has a port with TLS. `certificate` contains the
    paths of two PEM files: the certificate and its key.
    """

    user = password = "guest"  # noqa: S105  RabbitMQ's own, which it takes on the loopback alone

    def __init__(self, folder: Path, certificate: tuple[Path, Path] | None = None) -> None:
        self.folder = folder.absolute()
        self.port, self.tls_port, self._inner, self._names = (free_port() for _ in range(4))
        self._certificate = certificate
        self._processes: list[ChildProcess] = []

    @property
    def servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def tls_servers(self) -> str:
        return f"{LOOPBACK}:{self.tls_port}"

    @property
    def log(self) -> Path:
        return self.folder / "rabbitmq.log"

    def start(self) -> Self:
        """Starts the server on its ports, with the data in its directory. Returns when it answers."""
        root = _packages()
        self.folder.mkdir(parents=True, exist_ok=True)
        (erlang,) = root.glob("usr/lib/erlang/erts-*/bin")
        erl = self.folder / "erl"
        erl.write_text(ERL.format(root=root / "usr/lib/erlang", programs=erlang))
        erl.chmod(erl.stat().st_mode | stat.S_IXUSR)
        self._write_settings()
        environment = self._environment()
        (program,) = root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
        names = [str(erlang / "epmd"), "-address", LOOPBACK, "-port", str(self._names)]
        self._processes = [ChildProcess(names, self.folder / "epmd.log")]
        _require_answers(self._names, self._processes, self.folder / "epmd.log")
        self._processes.append(ChildProcess([str(program)], self.log, environment=environment, folder=self.folder))
        _require_answers(self.port, self._processes, self.log)
        return self

    def stop(self) -> None:
        """Shuts the server down."""
        for process in reversed(self._processes):
            process.stop(20)

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would."""
        for process in reversed(self._processes):
            process.kill()

    def stall(self) -> None:
        """Makes the server hang, until it is killed."""
        self._processes[-1].stall()

    def _write_settings(self) -> None:
        lines = [
            f"listeners.tcp.1 = {LOOPBACK}:{self.port}",
            f"max_message_size = {MESSAGE_BYTES_MAX}",
            "vm_memory_high_watermark.absolute = 256MB",
            "disk_free_limit.absolute = 10MB",
            "log.console = true",
            "log.file = false",
        ]
        if self._certificate:
            certificate, key = self._certificate
            lines += [
                f"listeners.ssl.1 = {LOOPBACK}:{self.tls_port}",
                f"ssl_options.certfile = {certificate}",
                f"ssl_options.keyfile = {key}",
                f"ssl_options.cacertfile = {certificate}",
                "ssl_options.verify = verify_none",
            ]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "plugins").write_text("[].\n")

    def _environment(self) -> dict[str, str]:
        folder = str(self.folder)
        own = {
            "NODENAME": "sluice@localhost",
            "DIST_PORT": str(self._inner),
            "MNESIA_BASE": f"{folder}/data",
            "LOG_BASE": f"{folder}/logs",
            "CONFIG_FILE": f"{folder}/rabbitmq",
            "CONF_ENV_FILE": f"{folder}/none",
            "ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "SERVER_ADDITIONAL_ERL_ARGS": ERLANG_WORDS,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
        return {
            **kept,
            **{f"RABBITMQ_{name}": value for name, value in own.items()},
            "HOME": folder,  # The home folder contains Erlang's cookie.
            "PATH": f"{folder}:{os.environ.get('PATH', '')}",
            "ERL_EPMD_PORT": str(self._names),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP_SECONDS": "0",
        }


def _packages() -> Path:
    cache = open_cache()
    with locked(cache):
        return unpacked(cache, RABBITMQ, PACKAGES)


def _require_answers(port: int, processes: list[ChildProcess], log: Path) -> None:
    if not wait_until_listening(port, processes, START_SECONDS_MAX):
        raise ServerError(f"RabbitMQ did not start; its log {log} ends: {last_lines(log)}")
