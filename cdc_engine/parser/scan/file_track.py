"""Tracks the binlog file of a stream, and checks that each file follows the previous one.

A name does not identify a file, because a server that was reset, rebuilt or restored writes other files with the same names. The creation
time in the FORMAT_DESCRIPTION event of a file distinguishes files with the same name.
"""

from __future__ import annotations

from sluice.cdc_engine.errors import FilesRenumberedError, PositionLostError
from sluice.cdc_engine.position import Position, file_number


class FileTrack:
    """The current binlog file of a stream. `file`: the name of the file, or empty until the server sends the name. `created`: the creation
    time of the file in seconds since 1970, or 0 while unknown.
    """

    def __init__(self, start: Position) -> None:
        self.file, self.created = start.file, start.file_created
        # The name of the last file for which `described` was called. Before the first call, the file of the start position.
        self._handed_out = start.file
        self._described = False  # Whether this connection has received a format description.

    def rotate_to(self, file: str) -> None:
        """Handles a ROTATE event, which names the next file or repeats the name of the current file. Raises FilesRenumberedError or
        PositionLostError if `file` has a lower number than the current file, or another name before the number.
        """
        if self.file and file != self.file:
            if _base(file) != _base(self.file) or file_number(file) < file_number(self.file):
                raise self._refuse(f"after {self.file} the server continues with {file}")
            self.created = 0
        self.file = file

    def described(self, created: int) -> bool:
        """Handles a FORMAT_DESCRIPTION event with the creation time `created` (0 if the event has no creation time). Returns True if the
        event begins a new file, and False if it repeats the description of the current file. Raises FilesRenumberedError or
        PositionLostError if the current file has another creation time.
        """
        if self.created and created and created != self.created:
            raise self._refuse(
                f"{self.file} was created at {created} (seconds since 1970), but the engine has read a file of this "
                f"name that was created at {self.created}"
            )
        self._described, self.created = True, created or self.created
        new, self._handed_out = self.file != self._handed_out, self.file
        return new

    def _refuse(self, what: str) -> FilesRenumberedError | PositionLostError:
        """Returns the error for an unexpected file. In the middle of a stream, the error is FilesRenumberedError, after which the parser
        reconnects. At the start of a stream, the error is PositionLostError.
        """
        if self._described:
            return FilesRenumberedError(f"{what}: the server numbers its binlog files from the beginning again")
        return PositionLostError(
            f"{what}: the server numbers its binlog files from the beginning again, because its binlog was reset, or the "
            "server was rebuilt or restored. Re-snapshot the tables and start at the latest position"
        )


def _base(file: str) -> str:
    return file.rpartition(".")[0]
