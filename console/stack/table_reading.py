"""Reads the lists of the sources' tables at the start of Sluice, while Spark starts. Processes that need these lists start afterwards."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import SluiceError
from sluice.console.source.query import known_path_clashes


class TableReading:
    """A task of the supervisor. In a thread, reads which tables each source has. These tables become assets in Dagster. If a source does
    not answer, the start continues with the tables of the last start.

    `passwords` has the values of environment variables that conf/ names. `log` gets the traceback of an unexpected error.
    """

    name, once = "reading of the sources' tables", True
    after: tuple[str, ...] = ()
    # The task has no time limit, because conf/ may name many sources that do not answer. Each source has a time limit of its own.
    seconds_max = math.inf

    def __init__(
        self, config: SluiceConfig, passwords: Mapping[str, str], log: Path, say: Callable[[str], None]
    ) -> None:
        self.log = log
        self._config, self._passwords, self._say = config, passwords, say
        self._thread: threading.Thread | None = None
        self._sentences: list[str] = []
        self._failed = False

    def begin(self) -> None:
        self._sentences, self._failed = [], False
        self._thread = threading.Thread(target=self._read, name="source-tables", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Forgets the thread, which ends by itself or with this process. No list of tables is left incomplete, because the thread writes
        each list atomically.
        """
        self._thread = None

    def ended(self) -> str:
        """Returns "an unexpected error" if such an error ended the thread, and otherwise "". Other parts return the exit code of their
        process, but this task has no process.
        """
        has_ended = self._thread is not None and not self._thread.is_alive()
        return "an unexpected error" if self._failed and has_ended else ""

    def port_taken(self) -> bool:
        return False

    def answers(self) -> bool:
        """Returns whether all sources have been queried, even if some did not answer. When all have been queried, also prints which sources
        did not answer, and which tables share a path in the lake.
        """
        if self._thread is None or self._thread.is_alive() or self._failed:
            return False
        for sentence in self._sentences:
            self._say(sentence)
        return True

    def _read(self) -> None:
        try:
            self._discover()
        except BaseException:
            # Set before the log is written, because writing the log may raise an error.
            self._failed = True
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text(traceback.format_exc())

    def _discover(self) -> None:
        for name, destination in self._config.destinations.items():
            from sluice.cdc_engine.instance.discovery import discover  # noqa: PLC0415  importing the engine takes seconds

            try:
                discover(self._config, name, self._passwords.get(destination.source.password.removeprefix("$")))
            except SluiceError as error:
                self._sentences.append(
                    f"{name}: Dagster shows the tables of the last start, because the tables could not be read from the source: {error}"
                )
        # Only reports tables whose paths in the lake clash, and does not refuse the start. A run stops such a table instead of creating it,
        # and other tables are not affected.
        self._sentences += known_path_clashes(self._config)
