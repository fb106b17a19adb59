"""Which binlog file a stream is in, and that its files come one after the other. Pure; used by `block_maker` and `control_events`.

A name does not make a file: a server that was reset, rebuilt or restored writes other files under the names that were read. Two files of
one name are told apart by when they were created, which the header of their first event, the FORMAT_DESCRIPTION, says.
"""

from __future__ import annotations

from cdc_engine.errors import FilesRenumberedError, PositionLostError
from cdc_engine.position import Position, file_number


class FileTrack:
    """`file` is empty until the server names the first one. `created`: seconds since 1970, 0 while not known."""

    def __init__(self, start: Position) -> None:
        self.file, self.created = start.file, start.file_created
        self._told = start.file  # the file of the last place that was given out
        self._described = False  # whether the server described a file on this connection

    def turn_to(self, file: str) -> None:
        """A ROTATE names the file that follows, or the one in hand. Raises as `_refuse` does when it lies before that, or is no kin."""
        if self.file and file != self.file:
            if _base(file) != _base(self.file) or file_number(file) < file_number(self.file):
                raise self._refuse(f"after {self.file} the server goes on with {file}")
            self.created = 0
        self.file = file

    def described(self, created: int) -> bool:
        """The file's FORMAT_DESCRIPTION; whether the file is a new one, at whose beginning the stream now stands."""
        if self.created and created and created != self.created:
            raise self._refuse(f"{self.file} was created at {created}, the one that was read at {self.created}")
        self._described, self.created = True, created or self.created
        new, self._told = self.file != self._told, self.file
        return new

    def _refuse(self, what: str) -> FilesRenumberedError | PositionLostError:
        """Amid a stream the next connection decides anew; of one that begins it was decided, and this is not what was asked for."""
        if self._described:
            return FilesRenumberedError(f"{what}: its binlog was numbered anew")
        return PositionLostError(
            f"{what}: its binlog was numbered anew (reset, rebuilt or restored). Take the tables' rows anew and start at the latest "
            "position"
        )


def _base(file: str) -> str:
    return file.rpartition(".")[0]
