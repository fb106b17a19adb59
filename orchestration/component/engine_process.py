"""Starts the engines and Spark as processes of their own, and calls them, so that `dagster dev` and `dg dev` need no other command.

A tick that finds no engine starts `sluice up --foreground --without-dagster`. That process outlives a reload of the code location and
ends by itself when no tick has come for a while, so it does not stay after Dagster has ended. Ticks say that they
come by touching a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.errors import ConfigurationError, EngineStartingError, SluiceError
from sluice.cdc_engine.file_lock import is_locked
from sluice.orchestration.base.ports import EngineAwayError
from sluice.orchestration.component.conf_texts import INLINE_FOLDER, write_conf

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.config.conf_files import ConfFiles
    from sluice.orchestration.rpc.remote_host import RemoteEngine, RemoteHost

WANTED_FILE, LOCK_FILE = "engine-process.wanted", "engine-process.lock"
SILENCE_SECONDS_MAX = 120.0  # A restart of the daemon takes less, and so do ticks that wait for others.
START_SECONDS_MAX = 300.0  # In this time kernels are compiled, Spark starts and the source is read, on a busy machine.
AGAIN_SECONDS = 30.0  # between two starts
LOG_LINE_MAX = 300


class StartingHost:
    """Implements `ports.EngineHost` with calls to the engines' process. `starts`: starts the process if none answers."""

    def __init__(self, remote: RemoteHost, config: SluiceConfig, files: ConfFiles, *, starts: bool) -> None:
        self.remote = remote
        self._engines = EngineProcess(config.data_dir, files) if starts else None
        self._files, self._written = files, False

    def get_or_start(self, destination: str) -> RemoteEngine:
        """Returns the engine like `RemoteHost`. Raises EngineStartingError while the process starts."""
        if not self._written and self._files.directory.parts[-2:] == INLINE_FOLDER.parts:
            write_conf(self._files)
        self._written = True
        if self._engines is None:
            return self.remote.get_or_start(destination)
        self._engines.want()
        try:
            return self.remote.get_or_start(destination)
        # ConfigurationError means that its token does not exist yet.
        except (EngineAwayError, ConfigurationError) as error:
            self._engines.start_after(error)
            raise

    def conf_troubles(self, destination: str) -> tuple[str, ...]:
        return self.remote.conf_troubles(destination, self._files.digest(destination))


class EngineProcess:
    """The process that keeps the engines, which a code server starts. Another code server may have started the one that runs."""

    def __init__(self, data_dir: Path, files: ConfFiles) -> None:
        self._data_dir, self._files = data_dir, files
        self.log = data_dir / "logs" / "engine-process.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started = -START_SECONDS_MAX
        self._lock = threading.Lock()  # Ticks of several destinations may run at the same time.

    def want(self) -> None:
        """Records that ticks arrive. Without them, the process ends."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        (self._data_dir / WANTED_FILE).touch()

    def start_after(self, error: SluiceError) -> None:
        """Starts the process if none runs. Raises EngineStartingError with the path of its log while it starts. Returns if it runs and is
        not reached, which `error` then explains.
        """
        with self._lock:
            ended = self._process is not None and self._process.poll() is not None
            age = time.monotonic() - self._started
            if ended and age < AGAIN_SECONDS:
                raise EngineStartingError(
                    f"the process of the engines ended: {self._last_line()}; it is started again soon"
                )
            begins = self._process is not None and not ended  # A starting process does not have the lock yet.
            if not begins and not is_locked(self._data_dir / LOCK_FILE):
                self._start()
            elif age > START_SECONDS_MAX and self._process is not None:
                return
        raise EngineStartingError(
            f"the engines and Spark are starting as processes of their own ({error}); log: {self.log}"
        ) from None

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "sluice.console.main", "up", "--foreground", "--without-dagster"]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--while-wanted"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._files.directory.parent,
                env={**os.environ, "SLUICE_CONF": str(self._files.directory)},
                # Ctrl-C in Dagster's terminal must not reach this process, which ends in order when no tick wants it.
                start_new_session=True,
            )
        self._started = time.monotonic()

    def _last_line(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"{lines[-1][:LOG_LINE_MAX] if lines else 'without a word'} (log: {self.log})"


def is_wanted(data_dir: Path, now: float | None = None) -> bool:
    """Returns whether a tick has arrived recently. Called by the process of the engines."""
    try:
        touched = (data_dir / WANTED_FILE).stat().st_mtime
    except OSError:
        return False
    return (time.time() if now is None else now) - touched < SILENCE_SECONDS_MAX
