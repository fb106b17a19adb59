"""Defines the records of the schema history, and stores them in the file `schema.jsonl`.

The file has one JSON record per line. Records are appended; only compaction replaces the file. A record is on disk before `append` returns.
A crash can damage only the last line: a line without a newline is ignored, and the next `load` removes it. If the stream returns to an
earlier position, a REWIND record invalidates the records after that position. `shared_repository` stores the same records in a record store
that several hosts can reach.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from sluice.cdc_engine.durable_files import make_folder, replace_file, sync
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.position import Position

FORMAT = 1
WITHOUT_IT = "the engine reads the schemas from the source again and stops each table whose earlier columns are unknown"


class RecordKind(enum.Enum):
    """What a record of the schema history says."""

    SERVER = "server"  # Flavour, default charset and other facts about the server, stored with SNAPSHOT records.
    DATABASE = "database"  # The default charset of a database.
    SNAPSHOT = "snapshot"  # The schema of a table as read from information_schema.
    UNKNOWN = "unknown"  # From the record's position on, the table may exist, but its schema is unknown.
    DDL = "ddl"  # The schema of a table after a DDL statement.
    TABLE_MAP = "table_map"  # The schema of a table, from a table map with full metadata.
    STOPPED = "stopped"  # The table is stopped from the record's position on.
    # The table was dropped. The record has the table's last schema, or no content if the schema is unknown.
    DROPPED = "dropped"
    # Whether the OBJECT records have all triggers and views. Before the first OBJECTS record, it is unknown which triggers and views exist.
    OBJECTS = "objects"
    OBJECT = "object"  # The definition of a trigger or view. Without a definition, the record says that it was dropped.
    REWIND = "rewind"  # Invalidates all earlier records whose positions are after the position of the REWIND record.


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """A record of the schema history. `content` depends on `kind`. `database` and `table` name a table, trigger or view. For a database,
    `table` is empty.
    """

    kind: RecordKind
    position: Position
    database: str = ""
    table: str = ""
    content: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_line(self) -> bytes:
        record = {
            "kind": self.kind.value,
            "position": self.position.to_json(),
            "database": self.database,
            "table": self.table,
            "content": self.content,
        }
        return json.dumps(record, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> HistoryRecord:
        """Parses a line of `to_line`. Raises ValueError, KeyError or TypeError if the line has another structure."""
        record = json.loads(line)
        return cls(
            kind=RecordKind(record["kind"]),
            position=Position.from_json(record["position"]),
            database=record["database"],
            table=record["table"],
            content=record["content"],
        )


class Repository(Protocol):
    """Where the records are stored, in the order in which they are written: a file or a record store. All methods raise MetaError if the
    file or the record store fails.
    """

    def load(self) -> list[HistoryRecord]:
        """Returns all valid records, without REWIND records and without the records that a REWIND record invalidated."""

    def look(self) -> list[HistoryRecord]:
        """Returns the same records as `load`, but repairs nothing, so that it can be called while another process writes."""

    def append(self, records: Iterable[HistoryRecord]) -> None:
        """Adds either all of the records or none. The records are durable when this method returns."""

    def replace(self, records: Iterable[HistoryRecord]) -> None:
        """Atomically replaces all records."""


class RecordsInMemory:
    """Records in memory, for a history that is not stored. `append` and `replace` store nothing."""

    def __init__(self, records: list[HistoryRecord]) -> None:
        self._records = records

    def load(self) -> list[HistoryRecord]:
        return self._records

    def look(self) -> list[HistoryRecord]:
        return self._records

    def append(self, records: Iterable[HistoryRecord]) -> None:
        """Stores nothing, because `TableHistory` has the records in memory."""

    def replace(self, records: Iterable[HistoryRecord]) -> None:
        """Stores nothing, because `TableHistory` has the records in memory."""


_HEADER = json.dumps({"format": FORMAT, "what": "schema history"}).encode() + b"\n"


class SchemaRepository:
    """The file with the schema history of a destination. The destination's lease ensures that only one process writes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[HistoryRecord]:
        """Returns all valid records, in the order in which they were written. Removes an incomplete last line.

        Raises MetaError if the file is not a schema history, has another format, or is damaged before its last line.
        """
        content, whole = self._read()
        if len(whole) < len(content):
            self._truncate(len(whole))
        return self._holding(whole)

    def look(self) -> list[HistoryRecord]:
        return self._holding(self._read()[1])

    def _read(self) -> tuple[bytes, bytes]:
        """Returns the content of the file, and the same content up to the end of the last complete line."""
        content = self._path.read_bytes() if self._path.exists() else b""
        return content, content[: content.rfind(b"\n") + 1]

    def _holding(self, whole: bytes) -> list[HistoryRecord]:
        lines = whole.splitlines(keepends=True)
        if not lines:
            return []
        if lines[0] != _HEADER:
            raise MetaError(
                f"{self._path} is not a schema history of format {FORMAT}; move this file away: {WITHOUT_IT}"
            )
        return holding(self._record(line, number) for number, line in enumerate(lines[1:], start=2))

    def append(self, records: Iterable[HistoryRecord]) -> None:
        """Appends records. The records are on disk when this method returns. Raises MetaError if the records cannot be written."""
        lines = b"".join(record.to_line() for record in records)
        try:
            make_folder(self._path.parent)
            new = not self._path.exists() or self._path.stat().st_size == 0
            with self._path.open("ab", buffering=0) as file:
                _write_or_take_back(file.fileno(), _HEADER + lines if new else lines)
            if new:
                sync(self._path.parent)
        except OSError as error:
            raise MetaError(
                f"the schema history {self._path} cannot be written ({error.strerror}): free space on its "
                "disk, or permit writing to its folder"
            ) from error

    def replace(self, records: Iterable[HistoryRecord]) -> None:
        """Writes a new file, syncs it, and renames it to replace the old file. So a crash leaves either the complete old file or the
        complete new file.
        """
        try:
            replace_file(self._path, _HEADER + b"".join(record.to_line() for record in records))
        except OSError as error:
            raise MetaError(
                f"the schema history {self._path} cannot be written ({error.strerror}): free space on its "
                "disk, or permit writing to its folder"
            ) from error

    def __str__(self) -> str:
        return str(self._path)

    def _record(self, line: bytes, number: int) -> HistoryRecord:
        try:
            return HistoryRecord.from_line(line)
        except (ValueError, KeyError, TypeError) as error:
            raise MetaError(
                f"line {number} of the schema history {self._path} is damaged; restore the file, or move the "
                f"file away: {WITHOUT_IT}"
            ) from error

    def _truncate(self, size_bytes: int) -> None:
        with self._path.open("rb+") as file:
            file.truncate(size_bytes)
            os.fsync(file.fileno())


def holding(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Returns the records that no later REWIND invalidated."""
    valid: list[HistoryRecord] = []
    for record in records:
        if record.kind is RecordKind.REWIND:
            key = record.position.order_key
            valid = [earlier for earlier in valid if earlier.position.order_key <= key]
        else:
            valid.append(record)
    return valid


def _write_or_take_back(descriptor: int, content: bytes) -> None:
    """Appends the content to a file. If the write fails, for example on a full disk, removes the part that was written, so that the next
    write begins a new line.
    """
    size_before = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size_before)
        raise
