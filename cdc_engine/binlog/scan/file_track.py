"""Tracks the stream's current binlog file, and checks that each file is the successor of the one before. Used by `block_maker` and
`control_events`.

A name does not identify a file: a server that is reset, rebuilt or restored writes different files with the same names.
The creation time in a file's FORMAT_DESCRIPTION distinguishes them.
"""

from __future__ import annotations

from sluice.cdc_engine.errors import FilesRenumberedError, PositionLostError
from sluice.cdc_engine.position import Position, file_number


class FileTrack:
    """The current binlog file. `file`: its name; empty until the server sends it. `created`: its creation time in seconds since 1970; 0
    while unknown.
    """

    def __init__(self, start: Position) -> None:
        self.file, self.created = start.file, start.file_created
        # The file of the start position; after a format description, the file that it begins.
        self._handed_out = start.file
        self._described = False  # Whether the server has sent a format description on this connection.

    def rotate_to(self, file: str) -> None:
        """Handles a ROTATE event, which names the next file or the current one. Raises an error of `_refuse` if the file has a lower number
        than the current file, or another base name.
        """
        if self.file and file != self.file:
            if _base(file) != _base(self.file) or file_number(file) < file_number(self.file):
                raise self._refuse(f"after {self.file} the server continues with {file}")
            self.created = 0
        self.file = file

    def described(self, created: int) -> bool:
        """Handles a FORMAT_DESCRIPTION event. Returns whether it begins a new file. `created`: the file's creation time, or 0. Raises an
        error of `_refuse` if the current file has another creation time.
        """
        if self.created and created and created != self.created:
            raise self._refuse(
                f"{self.file} was created at {created}, and the file of this name that was read before was "
                f"created at {self.created} (seconds since 1970)"
            )
        self._described, self.created = True, created or self.created
        new, self._handed_out = self.file != self._handed_out, self.file
        return new

    def _refuse(self, what: str) -> FilesRenumberedError | PositionLostError:
        """Returns the error for an unexpected file: FilesRenumberedError in the middle of a stream, after which the reader reconnects;
        PositionLostError at its start.
        """
        if self._described:
            return FilesRenumberedError(f"{what}: the numbers of the server's binlog files began again")
        return PositionLostError(
            f"{what}: the numbers of the server's binlog files began again (reset, rebuilt or restored). "
            "Re-snapshot the tables and start at the latest position"
        )


def _base(file: str) -> str:
    return file.rpartition(".")[0]
