"""Runs the command in conf/ that fetches a binlog file if neither the source nor the archive has the file."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.secret_values.process_group import end_group

POLL_SECONDS = 0.2
# Placeholders in the arguments: the name of the file, and the path at which to write it.
FILE, PATH = "{file}", "{path}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchiveFetch:
    """The command that fetches a binlog file: a program and its arguments. The program runs without a shell."""

    command: tuple[str, ...]

    def run(self, file: str, path: Path, given_up: Callable[[], bool]) -> None:
        """Runs the command, which must write the file to `path`. Ends the command with all its children after
        ARCHIVE_FETCH_SECONDS_MAX, or when `given_up` returns True.

        Raises SourceConnectionError if the command fails. The message contains neither arguments nor output of the command, because they
        may contain secrets. Raises InterruptedError if `given_up` returned True.
        """
        what = f"archive_fetch: the command {self.command[0]} for {file}"
        arguments = [self.command[0], *(each.replace(FILE, file).replace(PATH, str(path)) for each in self.command[1:])]
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "the arguments are not valid"
            raise SourceConnectionError(f"{what} cannot be started: {why}; correct `archive_fetch` in conf/") from None
        try:
            status = self._waited(process, what, given_up)
        finally:
            if process.returncode is None:
                end_group(process)
        if status:
            raise SourceConnectionError(f"{what} failed with status {status}; run the command by hand to see why")
        if not path.is_file():
            raise SourceConnectionError(
                f"{what} ended without error and wrote no file: the command must write the file to the path that replaces {PATH} in its "
                "arguments"
            )

    def _waited(self, process: subprocess.Popen[bytes], what: str, given_up: Callable[[], bool]) -> int:
        """Waits for the command and returns its exit status. Raises InterruptedError if `given_up` returned True, and SourceConnectionError
        after ARCHIVE_FETCH_SECONDS_MAX. The caller then ends the command.
        """
        until = time.monotonic() + limits.ARCHIVE_FETCH_SECONDS_MAX
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_SECONDS)
            if given_up():
                raise InterruptedError(f"{what} is no longer needed")
            if time.monotonic() >= until:
                raise SourceConnectionError(
                    f"{what} did not end within {limits.ARCHIVE_FETCH_SECONDS_MAX} s and was ended: run the command by hand to see why"
                )
