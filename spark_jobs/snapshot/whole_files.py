"""Creates a Delta table in one commit from the files into which a snapshot read its rows, without reading or writing the rows again.

Called by `publish` for tables that do not exist in the lake yet; `why_not` lists the tables that Spark must write instead. A chunk's file
is linked into the table. If rows in it have keys with buffered changes, the file is rewritten without these rows. The last images of these
keys get a separate file.

All files are written to a folder next to the table's path, which is then renamed to this path. Readers therefore see no table or the whole
table, and no file exists that is in no commit. If a run is killed, the folder remains, and the next publication of the table removes it."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import LakeColumn
from sluice.spark_jobs.durable_lake import link, local_folder, sync
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.snapshot.buffered_keys import BufferedKeys
from sluice.spark_jobs.snapshot.publication import Publication, is_partial
from sluice.spark_jobs.snapshot.publish_sql import READ
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, app_id_of
from sluice.spark_jobs.tables.delta_table import DeltaSnapshot, wanted_columns
from sluice.spark_jobs.tables.file_statistics import statistics
from sluice.spark_jobs.tables.new_table import Contents, make_table
from sluice.spark_jobs.targets.ways import CONFIGURED, PLAIN_NAME, PLAIN_TYPES, UNSAFE_KEYS

# Delta's name of the operation by which Spark creates a table with rows.
OPERATION_OF_COMMIT = "CREATE TABLE AS SELECT"
STATISTICS_PROPERTY = "delta.dataSkippingNumIndexedCols"
BUFFERED_ROWS_MAX = 1_000_000  # The maximum number of buffered images that this process folds without Spark.
BUFFERED_BYTES_MAX = 256 << 20
ROW_GROUP_ROWS = 1 << 16
MARKS = (ORDER_KEY, COMMIT_TIME, OPERATION)


def why_not(given: Publication, before: DeltaSnapshot, defaults: Sequence[str]) -> str:
    """Returns why Spark must create the table; empty if the files can become the table. `defaults`: properties that Spark sets on new
    tables by default.
    """
    if given.target.shard is not None:
        return "it is one of the shards of a table"
    return next(itertools.chain(_obstacles(given, before, defaults), _obstacles_in_files(given)), "")


def _obstacles(given: Publication, before: DeltaSnapshot, defaults: Sequence[str]) -> Iterator[str]:
    target = given.target
    if target.merge == "spark":
        yield CONFIGURED
    if before.exists:
        yield "the table exists already"
    if local_folder(target.path) is None or given.chunks.url:
        yield "the lake, or the rows that were read, are not in a folder of this machine"
    if target.layout:
        yield "conf/ defines its layout"
    if defaults:
        yield f"Spark has settings of its own for new tables: {', '.join(defaults)}"
    if not given.key:
        yield "it has no key"
    if given.soft_deletes:
        yield "deleted rows are only marked (`deletes: soft`)"
    for column in given.columns:
        if not PLAIN_NAME.fullmatch(column.name):
            yield f"the name of column {column.name!r} has more than letters and digits"
        if column.type not in PLAIN_TYPES and not column.type.startswith("decimal("):
            yield f"column {column.name} is a {column.type}"
    if others := set(given.key) - {column.name for column in given.columns}:
        yield f"conf/ spells the key column {min(others)} otherwise than the source"


def _obstacles_in_files(given: Publication) -> Iterator[str]:
    buffered = given.changes.names()
    if buffered and is_partial(given):
        yield "images lack columns"
    for column in given.columns:
        if buffered and column.name in given.key and (column.nullable or column.type in UNSAFE_KEYS):
            yield f"the key column {column.name} may be NULL, or is a {column.type}"
    size = sum((given.changes.folder / name).stat().st_size for name in buffered)
    if given.changes.rows() > BUFFERED_ROWS_MAX or size > BUFFERED_BYTES_MAX:
        yield f"{given.changes.rows():,} changes of it were buffered, {size >> 20} MiB"
    if not all(_has_marks(given, name) for name in given.chunks.names()):
        yield "its rows were read without a position"


def _has_marks(given: Publication, name: str) -> bool:
    """Returns whether the file has Sluice's columns, and whether all their values are those of this publication."""
    footer = pq.read_metadata(given.chunks.folder / name)
    indices = {footer.schema.column(number).path: number for number in range(len(footer.schema))}
    if not set(MARKS) <= indices.keys():
        return False
    for group in map(footer.row_group, range(footer.num_row_groups)):
        said: list[Any] = [group.column(indices[mark]).statistics for mark in MARKS]
        if not group.num_rows:
            continue
        # pyarrow raises an error if a bound is read that does not exist.
        if not all(each and each.has_min_max for each in said):
            return False
        key, time_us, word = said
        if (key.min, key.max, time_us.min_raw, time_us.max_raw) != (*[given.rows_key] * 2, *[given.read_at_us] * 2):
            return False
        if (word.min, word.max) != (READ, READ):
            return False
    return True


def make_of_files(given: Publication, label: int, properties: Mapping[str, str], fence: Fence) -> bool:
    """Creates the table from the files. Returns False if its path is in use, so that Spark must create the table. Raises OSError."""
    folder = local_folder(given.target.path)
    if folder is None:
        return False
    # Removes folders of runs that were killed before.
    for left in folder.parent.glob(f"{glob.escape(_aside(folder, ''))}*"):
        shutil.rmtree(left, ignore_errors=True)
    wanted = wanted_columns(given.columns, soft_deletes=False)

    def fill(folder: Path) -> Contents:
        return _contents(_Filling(given, folder), wanted, int(properties[STATISTICS_PROPERTY]), label)

    aside = _aside(folder, given.snapshot_id)
    return make_table(
        given.target.path, wanted, properties, fill, aside=aside, check=lambda: fence.check(given.owner.table)
    )


def _aside(folder: Path, snapshot_id: str) -> str:
    return f".{folder.name}.snapshot-{snapshot_id}"


def _contents(filling: _Filling, wanted: Sequence[LakeColumn], indexed: int, label: int) -> Contents:
    given, adds = filling.given, list[Mapping[str, Any]]()
    rows = size = 0
    for file in filling.files():
        footer, found = pq.read_metadata(file), file.stat()
        rows, size = rows + footer.num_rows, size + found.st_size
        add = {
            "path": file.name,
            "partitionValues": {},
            "size": found.st_size,
            "modificationTime": round(found.st_mtime * 1000),
            "dataChange": True,
            "stats": statistics(footer, wanted, indexed),
        }
        adds.append({"add": add})
    applied = {"appId": app_id_of(given.owner), "version": label, "lastUpdated": round(time.time() * 1000)}
    return Contents(
        operation=OPERATION_OF_COMMIT,
        actions=({"txn": applied}, *adds),
        metrics={"numFiles": len(adds), "numOutputRows": rows, "numOutputBytes": size},
        user_metadata=given.record(label),
    )


@dataclasses.dataclass
class _Filling:
    """Writes or links the files of a table into `folder`."""

    given: Publication
    folder: Path
    count: int = 0

    def files(self) -> Iterator[Path]:
        """Yields the files one after the other, each one complete and synced to disk. Yields nothing if there are no rows."""
        chunks, buffered = self.given.chunks, None
        if self.given.changes.names():
            schema = chunks.schema(chunks.names()[0])
            buffered = BufferedKeys(self.given.changes, self.given.key, schema)
            if buffered.live.num_rows:
                yield self._written(schema, (buffered.live,))
        for name in chunks.names():
            yield from self._of_chunk(chunks.folder / name, buffered)

    def _of_chunk(self, chunk: Path, buffered: BufferedKeys | None) -> Iterator[Path]:
        with pq.ParquetFile(chunk) as read:
            if not read.metadata.num_rows:
                return
            gone = self._gone(read, buffered) if buffered else {}
            if gone:
                yield from self._rest(read, gone)
                return
        file = self._named()
        link(chunk, file)
        sync(file)
        yield file

    def _gone(self, read: pq.ParquetFile, buffered: BufferedKeys) -> dict[int, Any]:
        """Returns row group → mask of its rows whose keys have buffered changes. Row groups without such rows are omitted."""
        key, footer = list(self.given.key), read.metadata
        index = read.schema_arrow.get_field_index(key[0])
        found = dict[int, Any]()
        for number in range(footer.num_row_groups):
            if buffered.may_be_in(footer.row_group(number), index):
                mask = buffered.among(read.read_row_group(number, columns=key))
                if mask.any():
                    found[number] = mask
        return found

    def _rest(self, read: pq.ParquetFile, gone: Mapping[int, Any]) -> Iterator[Path]:
        """Yields a file with the chunk's rows except those in `gone`. Yields nothing if no row remains."""
        if sum(mask.sum() for mask in gone.values()) == read.metadata.num_rows:
            return

        def groups() -> Iterator[pa.Table]:
            for number in range(read.metadata.num_row_groups):
                rows = read.read_row_group(number)
                yield rows.filter(pa.array(~gone[number])) if number in gone else rows

        yield self._written(read.schema_arrow, groups())

    def _written(self, schema: pa.Schema, tables: Iterator[pa.Table] | Sequence[pa.Table]) -> Path:
        file = self._named()
        with pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=list(MARKS),  # type: ignore[arg-type]
        ) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        sync(file)
        return file

    def _named(self) -> Path:
        """Returns the path of the next file. Its name has the form that Spark uses."""
        number, self.count = self.count, self.count + 1
        return self.folder / f"part-{number:05d}-{uuid.uuid4()}-c000.zstd.parquet"
