"""Creates a Delta table in one commit from the files into which a snapshot read its rows, without reading or writing the rows again.

`publish` calls this module for tables that do not exist in the lake yet. `why_not` finds the tables that Spark must write instead. On a
disk, the file of a chunk is linked into the table. In an object store, the file is uploaded or copied. If a chunk has rows whose keys have
buffered changes, its file is rewritten without these rows. The last images of these keys get a separate file.

On a disk, all files are written to a folder next to the table's path, which is then renamed to this path. In an object store, they are
written to the table's path, and the first commit makes them a table (`table_in_store`). So readers see no table or the whole table. If a
run is killed, its files remain, and the next publication of the table removes them.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import LakeColumn
from sluice.object_stores.files import is_in_store
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.durable_lake import LOG, local_folder
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.snapshot.buffered_keys import BufferedKeys
from sluice.spark_jobs.snapshot.publication import Publication, is_partial
from sluice.spark_jobs.snapshot.publish_sql import READ
from sluice.spark_jobs.snapshot.table_files import (
    MARKS,
    FilesInFolder,
    FilesInStore,
    NewTableFiles,
    ReadChunk,
    TableFile,
)
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot, wanted_columns
from sluice.spark_jobs.tables.file_statistics import statistics
from sluice.spark_jobs.tables.new_table import FIRST_COMMIT, Contents, first_commit, make_table
from sluice.spark_jobs.tables.table_in_store import TableInStore, clear_path
from sluice.spark_jobs.targets.ways import CONFIGURED, PLAIN_NAME, PLAIN_TYPES, UNSAFE_KEYS

# The operation that the commit of this module has in the Delta log. A commit with which Spark creates a table with rows has the same one.
OPERATION_OF_COMMIT = "CREATE TABLE AS SELECT"
STATISTICS_PROPERTY = "delta.dataSkippingNumIndexedCols"
# Limits for the buffered images of a table. Up to both limits, this process loads and folds the images without Spark. Above one of them,
# Spark creates the table.
BUFFERED_ROWS_MAX = 1_000_000
BUFFERED_BYTES_MAX = 256 << 20


def why_not(given: Publication, before: DeltaSnapshot, defaults: Callable[[], Sequence[str]]) -> str:
    """Returns why Spark must create the table. Returns "" if the files of the chunks can become the table's files. `defaults` returns
    properties that Spark sets on new tables by default.
    """
    if given.target.shard is not None:
        return "the table is one of several shards in a Delta table"
    found = itertools.chain(_obstacles(given, before), _obstacles_in_files(given), _default_properties(defaults))
    return next(found, "")


def _obstacles(given: Publication, before: DeltaSnapshot) -> Iterator[str]:
    target = given.target
    if target.merge == "spark":
        yield CONFIGURED
    if before.exists:
        yield "the table exists already"
    if why := _path_refused(target.path, given.chunks.url):
        yield why
    if target.layout:
        yield "conf/ defines the layout of the table"
    if not given.key:
        yield "the table has no key"
    if given.soft_deletes:
        yield "deleted rows are only marked (`deletes: soft`)"
    for column in given.columns:
        if not PLAIN_NAME.fullmatch(column.name):
            yield f"the name of column {column.name!r} has characters other than letters, digits and underscores"
        if column.type not in PLAIN_TYPES and not column.type.startswith("decimal("):
            yield f"column {column.name} is a {column.type}"
    if others := set(given.key) - {column.name for column in given.columns}:
        yield f"conf/ spells the key column {min(others)} differently from the source"


def _default_properties(defaults: Callable[[], Sequence[str]]) -> Iterator[str]:
    if found := defaults():
        yield f"the Spark session has default properties for new tables: {', '.join(found)}"


def _path_refused(path: str, chunks_url: str) -> str:
    """Returns why files of chunks cannot be put at a table's path. Returns "" if they can. `chunks_url` is empty if the chunks are
    local.
    """
    if local_folder(path) is not None:
        return "the chunks are in a store, and the lake is in a folder" if chunks_url else ""
    return (
        ""
        if is_in_store(path)
        else "the lake is neither in a folder of this machine nor in S3, Azure or Google Cloud Storage"
    )


def _obstacles_in_files(given: Publication) -> Iterator[str]:
    buffered = given.changes.names()
    if buffered and is_partial(given):
        yield "images lack columns"
    for column in given.columns:
        if buffered and column.name in given.key and (column.nullable or column.type in UNSAFE_KEYS):
            yield f"the key column {column.name} may be NULL, or is a {column.type}"
    rows, size = given.changes.rows(), sum(given.changes.sizes().values())
    if rows > BUFFERED_ROWS_MAX or size > BUFFERED_BYTES_MAX:
        yield f"{rows:,} changes of the table were buffered ({size >> 20} MiB), which are too many for the run's own process"
    if not all(_has_marks(given, footer) for footer in given.chunks.footers().values()):
        yield "the files of the rows that were read lack the order key and the time of reading that this publication needs"


def _has_marks(given: Publication, footer: pq.FileMetaData) -> bool:
    """Returns whether a chunk's file has Sluice's columns, and whether all values in these columns are those of this publication."""
    indices = {footer.schema.column(number).path: number for number in range(len(footer.schema))}
    if not set(MARKS) <= indices.keys():
        return False
    for group in map(footer.row_group, range(footer.num_row_groups)):
        said: list[Any] = [group.column(indices[mark]).statistics for mark in MARKS]
        if not group.num_rows:
            continue
        # If the file has no minimum or maximum, pyarrow raises an error when they are read, so the code first checks whether they exist.
        if not all(each and each.has_min_max for each in said):
            return False
        key, time_us, operation = said
        if (key.min, key.max, time_us.min_raw, time_us.max_raw) != (*[given.rows_key] * 2, *[given.read_at_us] * 2):
            return False
        if (operation.min, operation.max) != (READ, READ):
            return False
    return True


def why_no_commit(given: Publication, storage_options: Mapping[str, str]) -> str:
    """Returns why this process cannot make the first commit of a table in an object store. Returns "" if it can, or if the table is in a
    folder.
    """
    if not is_in_store(given.target.path):
        return ""
    why = StoreFolder(given.target.path, storage_options).why_no_put_new(f"{LOG}/{FIRST_COMMIT}")
    return f"the run has no access of its own to the store ({why})" if why else ""


def make_of_files(
    given: Publication,
    label: int,
    properties: Mapping[str, str],
    fence: Fence,
    storage_options: Mapping[str, str],
) -> bool:
    """Creates the table from the files of the chunks. Returns False if the table's path is a folder that is not empty, so that Spark must
    create the table. Raises OSError or StoreError if a file cannot be read or written. Raises TableError if the run may no longer write, or
    if another program meanwhile created the table in the object store or removed its files there.
    """
    wanted, indexed = wanted_columns(given.columns, soft_deletes=False), int(properties[STATISTICS_PROPERTY])

    def contents(files: NewTableFiles) -> Contents:
        return _contents(given, label, _Filling(given, files).files(), wanted, indexed)

    folder = local_folder(given.target.path)
    if folder is not None:
        return make_table(
            given.target.path,
            wanted,
            properties,
            lambda made: contents(FilesInFolder(made)),
            aside=_temporary_name(folder, given.snapshot_id),
            check=lambda: fence.check(given.owner.table),
        )
    store = StoreFolder(given.target.path, storage_options)
    files = FilesInStore(store, given.snapshot_id, given.chunks.folder)
    TableInStore(given.owner.table, store, fence).make(files, lambda: first_commit(wanted, properties, contents(files)))
    return True


def clear(given: Publication, fence: Fence, storage_options: Mapping[str, str]) -> bool:
    """Removes the files that publications of the table left when their runs were killed. Call this only if the table does not exist.
    Returns False if the table's path is in an object store and has files of other programs.
    """
    folder = local_folder(given.target.path)
    if folder is not None:
        for left in folder.parent.glob(f"{glob.escape(_temporary_name(folder, ''))}*"):
            shutil.rmtree(left, ignore_errors=True)
        return True
    return clear_path(given.owner.table, given.target.path, storage_options, fence)


def _temporary_name(folder: Path, snapshot_id: str) -> str:
    return f".{folder.name}.snapshot-{snapshot_id}"


def _contents(
    given: Publication, label: int, files: Sequence[TableFile], wanted: Sequence[LakeColumn], indexed: int
) -> Contents:
    adds: list[Mapping[str, Any]] = [
        {
            "add": {
                "path": file.name,
                "partitionValues": {},
                "size": file.size,
                "modificationTime": file.modified_at_ms,
                "dataChange": True,
                "stats": statistics(file.footer, wanted, indexed),
            }
        }
        for file in files
    ]
    applied = {"appId": app_id_of(given.owner), "version": label, "lastUpdated": round(time.time() * 1000)}
    return Contents(
        operation=OPERATION_OF_COMMIT,
        actions=({"txn": applied}, *adds),
        metrics={
            "numFiles": len(files),
            "numOutputRows": sum(file.footer.num_rows for file in files),
            "numOutputBytes": sum(file.size for file in files),
        },
        user_metadata=given.record(label),
    )


@dataclasses.dataclass(frozen=True)
class _Filling:
    """Puts the files of a table into `new_files`."""

    given: Publication
    new_files: NewTableFiles

    def files(self) -> list[TableFile]:
        """Returns the files, each one complete and durable. Returns [] if there are no rows."""
        chunks, buffered, found = self.given.chunks, None, list[TableFile]()
        if self.given.changes.names():
            schema = chunks.schema(chunks.names()[0])
            buffered = BufferedKeys(self.given.changes, self.given.key, schema)
            if buffered.live.num_rows:
                found.append(self.new_files.write(schema, (buffered.live,)))
        sizes = chunks.sizes()

        def of_chunk(name: str) -> TableFile | None:
            return self._of_chunk(name, sizes[name], buffered=buffered)

        if self.new_files.parallel == 1 or len(sizes) == 1:
            return [*found, *filter(None, map(of_chunk, sizes))]
        with ThreadPoolExecutor(self.new_files.parallel, thread_name_prefix="table-files") as pool:
            return [*found, *filter(None, pool.map(of_chunk, sizes))]

    def _of_chunk(self, name: str, size: int, *, buffered: BufferedKeys | None) -> TableFile | None:
        """Puts the chunk's rows into the new table, except rows whose keys have buffered changes. Returns the file with these rows, or None
        if no row remains.
        """
        chunks = self.given.chunks
        with pq.ParquetFile(chunks.opened(name)) as read:
            footer = read.metadata
            if not footer.num_rows:
                return None
            gone = self._gone(read, buffered) if buffered else {}
            if gone:
                return self._rest(read, gone)
        return self.new_files.take(ReadChunk(files=chunks, name=name, size=size, footer=footer))

    def _gone(self, read: pq.ParquetFile, buffered: BufferedKeys) -> dict[int, Any]:
        """Returns, for each row group, a mask of its rows whose keys have buffered changes. Row groups without such rows are omitted."""
        key, footer = list(self.given.key), read.metadata
        index = read.schema_arrow.get_field_index(key[0])
        found = dict[int, Any]()
        for number in range(footer.num_row_groups):
            if buffered.may_be_in(footer.row_group(number), index):
                mask = buffered.among(read.read_row_group(number, columns=key))
                if mask.any():
                    found[number] = mask
        return found

    def _rest(self, read: pq.ParquetFile, gone: Mapping[int, Any]) -> TableFile | None:
        """Writes the chunk's rows, except those in `gone`, to a file of the table. Returns the file, or None if no row remains."""
        if sum(mask.sum() for mask in gone.values()) == read.metadata.num_rows:
            return None

        def groups() -> Iterator[pa.Table]:
            for number in range(read.metadata.num_row_groups):
                rows = read.read_row_group(number)
                yield rows.filter(pa.array(~gone[number])) if number in gone else rows

        return self.new_files.write(read.schema_arrow, groups())
