"""Starts a server and its proxy as two processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess, last_lines, wait_until_listening

START_SECONDS_MAX = 60.0


class ServerBehindProxy:
    """A server on 127.0.0.1 with a proxy that adds what the server lacks. `name` is the server's name in errors and in the name of its log.
    `proxy` is the module of the proxy. `port` is the port of the proxy, by default a free port.
    """

    name: ClassVar[str]
    proxy: ClassVar[str]

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder, self.port, self.own_port = folder.absolute(), port or free_port(), free_port()
        self._processes: list[ChildProcess] = []

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def run(self, command: list[str]) -> None:
        """Starts the server, which must listen on `own_port`, and then the proxy. Raises ServerError if one of them does not listen in
        time.
        """
        proxy = [sys.executable, "-m", self.proxy, str(self.port), str(self.own_port)]
        for port, words in ((self.own_port, command), (self.port, proxy)):
            self._processes.append(ChildProcess(words, self.log, folder=self.folder))
            if not wait_until_listening(port, self._processes, START_SECONDS_MAX):
                raise ServerError(f"{self.name} did not start; its log {self.log} ends: {last_lines(self.log)}")

    def kill(self) -> None:
        """Ends the server and the proxy with SIGKILL, as a crash would."""
        for process in self._processes:
            process.kill()

    def stall(self) -> None:
        """Suspends the server and the proxy. Requests wait until `resume`."""
        for process in self._processes:
            process.stall()

    def resume(self) -> None:
        """Continues the suspended server and proxy."""
        for process in self._processes:
            process.resume()
