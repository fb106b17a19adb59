"""Where the schema history is kept: its records, what a repository promises, and the file `schema.jsonl`. Driven by `history` alone.

The file is appended to, one JSON record a line; only compaction replaces it, as a whole. `sql_repository` keeps the same in a database.
A record is on disk before `append` returns. A crash can tear only the last line: without its newline it never happened, and the next
`load` cuts it off. Going back in the stream is a record too (`rewind`): reading the file from its start makes void what it takes back.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from cdc_engine.durable_files import make_folder, replace_file, sync
from cdc_engine.errors import MetaError
from cdc_engine.position import Position

FORMAT = 1


class RecordKind(enum.Enum):
    """What a line of the file tells."""

    SERVER = "server"  #: flavour, default charset: with the snapshot
    DATABASE = "database"  #: a database's default charset
    SNAPSHOT = "snapshot"  #: a table's schema, read from information_schema
    DDL = "ddl"  #: a table's schema after a statement
    TABLE_MAP = "table_map"  #: a table's schema, told by a table map with full metadata
    STOPPED = "stopped"  #: a table cannot be followed from here on
    DROPPED = "dropped"  #: a table is gone; its last schema
    REWIND = "rewind"  #: all records above this position are void


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """`content` depends on `kind`; a record about a table names it, one about a database has no table."""

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
    def from_line(cls, line: bytes) -> Record:
        """Inverse of `to_line`; raises ValueError, KeyError or TypeError on anything else."""
        record = json.loads(line)
        return cls(
            kind=RecordKind(record["kind"]),
            position=Position.from_json(record["position"]),
            database=record["database"],
            table=record["table"],
            content=record["content"],
        )


class Repository(Protocol):
    """Keeps records in the order in which they were written. All methods raise MetaError when that is not possible."""

    def load(self) -> list[Record]:
        """All records that hold: those that a REWIND took back are left out, and so is the REWIND."""

    def append(self, records: Iterable[Record]) -> None:
        """All or none of them is kept, for good when this returns."""

    def replace(self, records: Iterable[Record]) -> None:
        """These instead of all before, at once."""


class RecordsInMemory:
    """A repository beside a destination's, for a history that nothing outlives: what is added is nobody's but that history's."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def load(self) -> list[Record]:
        return self._records

    def append(self, records: Iterable[Record]) -> None:
        """The history has them."""

    def replace(self, records: Iterable[Record]) -> None:
        """As `append`."""


_HEADER = json.dumps({"format": FORMAT, "what": "schema history"}).encode() + b"\n"


class SchemaRepository:
    """One file of one destination; its lease keeps other writers away."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Record]:
        """All records that hold, in the order they were written. Cuts off a torn last line.

        Raises MetaError when the file is not a schema history, is of another format, or is damaged before its last line.
        """
        content, whole = self._read()
        if len(whole) < len(content):
            self._truncate(len(whole))
        return self._holding(whole)

    def look(self) -> list[Record]:
        """As `load`, of a file that another process may be writing to: nothing is changed. Raises MetaError as that."""
        return self._holding(self._read()[1])

    def _read(self) -> tuple[bytes, bytes]:
        """All that is there, and of it the whole lines."""
        content = self._path.read_bytes() if self._path.exists() else b""
        return content, content[: content.rfind(b"\n") + 1]

    def _holding(self, whole: bytes) -> list[Record]:
        lines = whole.splitlines(keepends=True)
        if not lines:
            return []
        if lines[0] != _HEADER:
            raise MetaError(f"{self._path} is not a schema history of format {FORMAT}; move it away and start again")
        return holding(self._record(line, number) for number, line in enumerate(lines[1:], start=2))

    def append(self, records: Iterable[Record]) -> None:
        """Writes records; they are on disk when this returns. Raises MetaError when they cannot be written."""
        lines = b"".join(record.to_line() for record in records)
        try:
            make_folder(self._path.parent)
            new = not self._path.exists() or self._path.stat().st_size == 0
            with self._path.open("ab", buffering=0) as file:
                _write_or_take_back(file.fileno(), _HEADER + lines if new else lines)
            if new:
                sync(self._path.parent)
        except OSError as error:
            raise MetaError(f"the schema history {self._path} cannot be written: {error.strerror}") from error

    def replace(self, records: Iterable[Record]) -> None:
        """Written beside, synced, renamed: a crash leaves the old file or the new one."""
        try:
            replace_file(self._path, _HEADER + b"".join(record.to_line() for record in records))
        except OSError as error:
            raise MetaError(f"the schema history {self._path} cannot be written: {error.strerror}") from error

    def __str__(self) -> str:
        return str(self._path)

    def _record(self, line: bytes, number: int) -> Record:
        try:
            return Record.from_line(line)
        except (ValueError, KeyError, TypeError) as error:
            raise MetaError(
                f"line {number} of {self._path} is damaged; restore the file or start a new epoch"
            ) from error

    def _truncate(self, size_bytes: int) -> None:
        with self._path.open("rb+") as file:
            file.truncate(size_bytes)
            os.fsync(file.fileno())


def has_records(kept: Path | Repository) -> bool:
    """Whether anything was ever kept there. Raises MetaError where it cannot be read."""
    if isinstance(kept, Path):
        return bool(SchemaRepository(kept).load())
    return bool(kept.load())


def look_at(kept: Path | Repository) -> list[Record]:
    """All records that hold, read beside whoever writes them. Raises MetaError where they cannot be read."""
    return SchemaRepository(kept).look() if isinstance(kept, Path) else kept.load()


def forget_history(kept: Path | Repository) -> None:
    """Nothing is known any more: whoever starts next asks the server. Raises MetaError."""
    if not isinstance(kept, Path):
        kept.replace([])
    elif kept.exists():
        SchemaRepository(kept).replace([])


def holding(records: Iterable[Record]) -> list[Record]:
    """The records that none after them took back."""
    held: list[Record] = []
    for record in records:
        if record.kind is RecordKind.REWIND:
            key = record.position.order_key
            held = [earlier for earlier in held if earlier.position.order_key <= key]
        else:
            held.append(record)
    return held


def _write_or_take_back(descriptor: int, content: bytes) -> None:
    """A write that the full disk cuts short is taken back, so that the next one does not go on in the middle of a line."""
    size_before = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size_before)
        raise
