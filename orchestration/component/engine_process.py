"""Starts the engines and Spark in processes of their own, and calls the engines there, so that `dagster dev` and `dg dev` need no other
command.

A tick that finds no engine starts `sluice up --foreground --without-dagster`. That process continues when the code location reloads. Each
tick touches a file. When no tick has touched the file for SILENCE_SECONDS_MAX, for example because Dagster has ended, the process ends.
"""

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
# The engine process ends after this time without a tick. A restart of the daemon, and ticks that wait for each other, cause shorter gaps
# between ticks.
SILENCE_SECONDS_MAX = 120.0
# If the process does not answer within this time after its start, the tick fails with the reason. The time is enough to compile kernels,
# start Spark and read the source on a busy machine.
START_SECONDS_MAX = 300.0
AGAIN_SECONDS = 30.0  # After the process has ended, it is started again at the earliest this long after its last start.
LOG_LINE_MAX = 300


class StartingHost:
    """Implements `ports.EngineHost` by calls to the engine process. If `starts` and no engine process answers, starts one."""

    def __init__(self, remote: RemoteHost, config: SluiceConfig, files: ConfFiles, *, starts: bool) -> None:
        self.remote = remote
        self._engines = EngineProcess(config.data_dir, files) if starts else None
        self._files, self._written = files, False

    def get_or_start(self, destination: str) -> RemoteEngine:
        """Returns the engine in the engine process. If the settings are inline in a Dagster component, the first call writes them to files,
        which the engine process reads. Raises EngineStartingError while the engine process starts.
        """
        if not self._written and self._files.directory.parts[-2:] == INLINE_FOLDER.parts:
            write_conf(self._files)
        self._written = True
        if self._engines is None:
            return self.remote.get_or_start(destination)
        self._engines.want()
        try:
            engine = self.remote.get_or_start(destination)
        # Until the engine process has created its token, the call raises ConfigurationError.
        except (EngineAwayError, ConfigurationError) as error:
            self._engines.start_after(error)
            raise
        except SluiceError:  # The process answers that its engine has not started, or is stopped or on standby.
            self._engines.answered()
            raise
        self._engines.answered()
        return engine

    def conf_troubles(self, destination: str) -> tuple[str, ...]:
        return self.remote.conf_troubles(destination, self._files.digest(destination))


class EngineProcess:
    """Starts the engine process for a data directory, unless one runs. Each engine process holds a lock in the data directory. So a process
    that another code server has started is found too.
    """

    def __init__(self, data_dir: Path, files: ConfFiles) -> None:
        self._data_dir, self._files = data_dir, files
        self.log = data_dir / "logs" / "engine-process.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started = -START_SECONDS_MAX
        # The time (`time.monotonic`) since which an engine process of another code server has not answered, or None if it answers.
        self._silent_since: float | None = None
        self._lock = threading.Lock()  # Ticks of several destinations may run at the same time.

    def want(self) -> None:
        """Records that a tick has arrived. The engine process ends if no tick is recorded for SILENCE_SECONDS_MAX.

        Records nothing if an engine process that another code server started has not answered for START_SECONDS_MAX, for example because
        it has the token or the address of earlier settings. That process then ends, and a later tick starts another one.
        """
        if self._silent_for() > START_SECONDS_MAX:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        (self._data_dir / WANTED_FILE).touch()

    def answered(self) -> None:
        """Records that the engine process has answered a tick."""
        self._silent_since = None

    def _silent_for(self) -> float:
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    def start_after(self, error: SluiceError) -> None:
        """Called if a call of the engine process has failed with `error`. Starts the engine process if none runs, and raises
        EngineStartingError with the path of its log.

        Returns only if the process has not answered for more than START_SECONDS_MAX. This time begins when this object starts the process.
        If another code server started it, the time begins at the first call of this method. The caller then raises `error`.
        """
        with self._lock:
            ended = self._process is not None and self._process.poll() is not None
            age = time.monotonic() - self._started
            if ended and age < AGAIN_SECONDS:
                raise EngineStartingError(
                    f"the process of the engines ended: {self._last_line()}; Sluice starts the process again soon"
                )
            # A process that has just started does not hold the lock yet.
            begins = self._process is not None and not ended
            if not begins and not is_locked(self._data_dir / LOCK_FILE):
                self._start()
            elif self._process is None:
                self._silent_since = time.monotonic() if self._silent_since is None else self._silent_since
                if self._silent_for() > START_SECONDS_MAX:
                    return
            elif age > START_SECONDS_MAX:
                return
        raise EngineStartingError(
            f"the engines and Spark are starting as processes of their own ({error}); log: {self.log}"
        ) from None

    def _start(self) -> None:
        self._silent_since = None
        self.want()
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
                # In a session of its own, this process does not get Ctrl-C of Dagster's terminal. The process ends by itself when no tick
                # arrives for SILENCE_SECONDS_MAX.
                start_new_session=True,
            )
        self._started = time.monotonic()

    def _last_line(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"{lines[-1][:LOG_LINE_MAX] if lines else 'the log has no line'} (log: {self.log})"


def is_wanted(data_dir: Path, now: float | None = None) -> bool:
    """Returns whether a tick has arrived within the last SILENCE_SECONDS_MAX. The engine process ends if this is False."""
    try:
        touched = (data_dir / WANTED_FILE).stat().st_mtime
    except OSError:
        return False
    return (time.time() if now is None else now) - touched < SILENCE_SECONDS_MAX
