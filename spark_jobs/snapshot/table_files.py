"""Puts the files of a new table where the table will be: into a folder of this machine, or into an object store. `whole_files` uses this
module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.durable_lake import link, sync
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY
from sluice.spark_jobs.tables.table_in_store import uploaded_name

ROW_GROUP_ROWS = 1 << 16
MARKS = (ORDER_KEY, COMMIT_TIME, OPERATION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFile:
    """A file of a new table. `name` is relative to the table's path. `modified_at_ms` is in milliseconds since 1970."""

    name: str
    size: int
    modified_at_ms: int
    footer: pq.FileMetaData


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadChunk:
    """The file of one chunk. `files` are the files of all chunks."""

    files: StoredFiles
    name: str
    size: int
    footer: pq.FileMetaData


class NewTableFiles(Protocol):
    """The files of one new table. `parallel` is the number of threads that may call the methods at the same time. Every file is
    complete and durable when a method returns.
    """

    parallel: int

    def take(self, chunk: ReadChunk) -> TableFile:
        """Adds the file of a chunk as it is, and returns it as a file of the table."""

    def write(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> TableFile:
        """Writes these rows to a new file, and returns it as a file of the table."""


class FilesInFolder:
    """Implements `NewTableFiles` in a local folder. `take` makes a hard link to the file of a chunk, or copies it."""

    parallel = 1

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()

    def take(self, chunk: ReadChunk) -> TableFile:
        file = self._named()
        if not link(chunk.files.folder / chunk.name, file):
            sync(file)  # A link needs no sync, because the chunk is on disk since it was read.
        return self._table_file(file)

    def write(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> TableFile:
        file = self._named()
        _write_rows(file, schema, tables)
        sync(file)
        return self._table_file(file)

    def _named(self) -> Path:
        """Returns the path of the next file. The file's name has the form that Spark uses."""
        return self._folder / f"part-{next(self._numbers):05d}-{uuid.uuid4()}-c000.zstd.parquet"

    @staticmethod
    def _table_file(file: Path) -> TableFile:
        found = file.stat()
        return TableFile(
            name=file.name,
            size=found.st_size,
            modified_at_ms=round(found.st_mtime * 1000),
            footer=pq.read_metadata(file),
        )


class FilesInStore:
    """Implements `NewTableFiles` in the table's own folder of an object store. `take` uploads the file of a chunk, or copies it within the
    store.

    `scratch` is a local folder for files before their upload. The names of these files begin with a dot, so that the files do not count as
    chunks.
    """

    parallel = 8

    def __init__(self, table: StoreFolder, snapshot_id: str, scratch: Path) -> None:
        self._table, self._scratch = table, scratch
        self._snapshot_id, self._attempt, self._numbers = snapshot_id, uuid.uuid4().hex, itertools.count()
        self._begun: list[str] = []
        self._complete: dict[str, int] = {}
        scratch.mkdir(parents=True, exist_ok=True)

    def take(self, chunk: ReadChunk) -> TableFile:
        name = self._named()
        if chunk.files.url:
            self._table.copy_file(chunk.files.store(), chunk.name, name, chunk.size)
        else:
            self._table.put_file(chunk.files.folder / chunk.name, name)
        return self._table_file(name, chunk.size, chunk.footer)

    def write(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> TableFile:
        name = self._named()
        file = self._scratch / f".{name}"
        try:
            _write_rows(file, schema, tables)
            self._table.put_file(file, name)
            return self._table_file(name, file.stat().st_size, pq.read_metadata(file))
        finally:
            file.unlink(missing_ok=True)

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each complete file, by name."""
        return dict(self._complete)

    def remove(self) -> None:
        """Removes the files of this attempt, as far as the store allows it. Call this only if no commit names these files."""
        with contextlib.suppress(StoreError):
            self._table.remove_files(self._begun)

    def _named(self) -> str:
        name = uploaded_name(self._snapshot_id, self._attempt, next(self._numbers))
        self._begun.append(name)
        return name

    def _table_file(self, name: str, size: int, footer: pq.FileMetaData) -> TableFile:
        self._complete[name] = size
        return TableFile(name=name, size=size, modified_at_ms=round(time.time() * 1000), footer=footer)


def _write_rows(file: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(MARKS),  # type: ignore[arg-type]
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
