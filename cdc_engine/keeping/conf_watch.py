"""Polls conf/, and reports when the configuration in use has changed. Processes that run engines or serve Dagster's definitions call this
module.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from sluice.cdc_engine.config.conf_files import ConfFiles, read_conf_files
from sluice.cdc_engine.config.reading import config_of
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.keeping.in_use import VARIABLE, InUse, as_found, choose, keep, read_kept
from sluice.cdc_engine.keeping.remote_conf.pull import pull_at_start

log = structlog.get_logger()


class ConfWatch:
    """Watches conf/ for one process, from one thread. `role`, such as "engine", names the file in which the process records the
    configuration in use (`in_use.kept_file`).
    """

    def __init__(self, directory: Path, role: str) -> None:
        """Reads conf/, and pulls it first if conf/remote.yaml exists. Raises ConfigurationError if conf/ is invalid and no earlier valid
        version is known.
        """
        pull_at_start(directory)
        found, self._path = as_found(directory, [role])
        self._seen: ConfFiles | None = None
        self._decided: ConfFiles | None = None
        self._unwritten = ""
        self.in_use: InUse = found if self._kept(found) else _as_written(self._path) or found
        self._log_refused({})
        os.environ[VARIABLE] = str(self._path)  # Child processes use the same configuration.

    def look(self) -> bool:
        """Reads conf/ once, and returns whether the configuration in use has changed. A change of conf/ takes effect only when two
        successive calls find the same texts, because an editor may be writing a file.
        """
        found = self._read()
        if found is None or found != self._seen:
            self._seen = found or self._seen
            return False
        if found == self._decided:
            return False
        self._decided = found
        try:
            chosen = choose(found, self.in_use.files, main_may_change=False)
        except ConfigurationError as error:
            log.error("conf_refused", file="conf/", reason=str(error))
            return False
        if not self._kept(chosen):
            # Keeps the old configuration in use, because child processes cannot read a configuration that is not recorded. The next `look`
            # tries again.
            self._decided = None
            return False
        before, self.in_use = self.in_use, chosen
        self._log_refused(dict(before.refused))
        return chosen.files != before.files

    def _read(self) -> ConfFiles | None:
        """Returns the texts of conf/. Returns None if conf/ is missing, or if its folder destinations/ has disappeared, for example because
        a volume is not mounted. Engines must not stop in this case.
        """
        try:
            found = read_conf_files(self.in_use.files.directory)
        except ConfigurationError:
            return None
        gone = not found.destinations and not (found.directory / "destinations").is_dir()
        return None if gone and self.in_use.files.destinations else found

    def _log_refused(self, before: dict[str, str]) -> None:
        for file, why in self.in_use.refused.items():
            if before.get(file) != why:
                log.error("conf_refused", file=file, destination=Path(file).stem, reason=why)

    def _kept(self, chosen: InUse) -> bool:
        """Records a configuration for child processes. Returns whether the file was written, and logs why if it was not."""
        try:
            keep(self._path, chosen)
        except OSError as error:
            if (why := str(error.strerror)) != self._unwritten:
                log.error("conf_in_use_not_written", file=str(self._path), reason=why)
            self._unwritten = why
            return False
        self._unwritten = ""
        return True


def _as_written(path: Path) -> InUse | None:
    kept = read_kept(path)
    return InUse(config_of(kept[0]), *kept) if kept else None
