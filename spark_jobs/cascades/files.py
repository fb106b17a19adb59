"""Writes new staged files for tables in which foreign keys changed rows. The binlog has no row images of these changes, so `derive` derives
the images from the staged images and the lake's rows, and calls this module. The new files have the staged and the derived images in the
order of the stream.

A staged table consists of segments. A segment is a file with row images of one schema version, or a TRUNCATE, or a schema change.

The files are in a separate folder next to the staged files, with a manifest that is written last. A run that repeats the batch reads these
files. It must not derive the images again, because the lake may have changed since the first attempt.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.batch_manifest.file import from_record, to_record
from sluice.batch_manifest.values import ChangesSegment, LakeColumn, Segment, StagedTable
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.cascades.play import Derived
from sluice.spark_jobs.cascades.rows import positions_of
from sluice.spark_jobs.durable_lake import sync
from sluice.spark_jobs.errors import SparkJobError, StagedBatchError, TableError
from sluice.spark_jobs.merging.fold import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from sluice.spark_jobs.staged_batch import COMMIT_TIME, GROUP_COLUMNS, OPERATION, ORDER_KEY, PRESENT, StagedBatch
from sluice.spark_jobs.tables.delta_table import DeltaTable

FOLDER, MANIFEST = "derived", "derived.json"
FORMAT = 2
ROW = "_sluice_row"
# The column that is true for a derived image (of a row that a foreign key changed) and false for a staged image. Only the code that writes
# change logs reads this column.
DERIVED = "_sluice_derived"
ARROW_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A segment to write: the rows of a staged segment, and the derived images (of rows that foreign keys changed) that are added to them.

    `segment` is None for a segment with derived images only. `indices` are the sequence numbers of the staged rows in the batch.
    """

    segment: Segment | None
    indices: list[int]
    derived: list[Derived]


def with_derived(batch: StagedBatch, table: StagedTable, lake: DeltaTable, derived: Sequence[Derived]) -> StagedTable:
    """Adds derived images, which are images of rows that foreign keys changed, to the segments of a table. Writes a new file for each
    segment that gets images, and returns the table with the new segments. If an image fits into no staged segment, the new segment may get
    its columns from `lake`, the table's Delta table.

    Raises TableError if a derived image belongs to a segment in which updates changed keys and row images lack columns. Also raises
    TableError if an image fits into no staged segment, and the Delta table lacks a column of the image.
    """
    pieces = _pieces(table, derived)
    folder = batch.directory / FOLDER
    folder.mkdir(exist_ok=True)
    number, segments, rows_before = 0, [], 0
    for piece in pieces:
        segment = piece.segment
        if piece.derived:
            path = folder / f"{_file_part(table)}.{number}.parquet"
            number += 1
            stored = f"{batch.stored}/{FOLDER}/{path.name}" if batch.stored else ""
            segment = dataclasses.replace(_written(path, table, lake, piece, rows_before), stored=stored)
        if segment is None:
            continue
        rows_before += segment.rows if isinstance(segment, ChangesSegment) else 0
        segments.append(segment)
    return dataclasses.replace(table, segments=tuple(segments), positions=None)


def _file_part(table: StagedTable) -> str:
    return "".join(
        each if each.isascii() and (each.isalnum() or each == "_") else f"_{ord(each):x}_" for each in table.name
    )


def _pieces(table: StagedTable, derived: Sequence[Derived]) -> list[_Piece]:
    """Assigns each derived image (of a row that a foreign key changed) to a segment with row images, and keeps the order of the stream.
    Tries the first segment that ends at or after the image's transaction, and then the segment before it. If neither has row images,
    inserts a new segment for the image.
    """
    indices, begin = positions_of(table), 0
    pieces: list[_Piece] = []
    for segment in table.segments:
        rows = segment.rows if isinstance(segment, ChangesSegment) else 0
        pieces.append(_Piece(segment, indices[begin : begin + rows], []))
        begin += rows
    for image in derived:
        index = next((i for i, each in enumerate(pieces) if _end(each) >= image.at.order_key), len(pieces))
        if index < len(pieces) and _takes(pieces[index]):
            pieces[index].derived.append(image)
        elif index and _takes(pieces[index - 1]):
            pieces[index - 1].derived.append(image)
        else:
            pieces.insert(index, _Piece(None, [], [image]))
    return pieces


def _end(piece: _Piece) -> int:
    """Returns the highest order key in a piece: of its staged images, of its TRUNCATE or schema change, and of its derived images."""
    segment = piece.segment
    own = -1
    if isinstance(segment, ChangesSegment):
        own = segment.last_order_key
    elif segment is not None:
        own = segment.order_key
    return max([own, *(image.at.order_key for image in piece.derived)])


def _takes(piece: _Piece) -> bool:
    return piece.segment is None or isinstance(piece.segment, ChangesSegment)


def _written(path: Path, table: StagedTable, lake: DeltaTable, piece: _Piece, rows_before: int) -> ChangesSegment:
    staged = piece.segment if isinstance(piece.segment, ChangesSegment) else None
    if staged is not None and staged.moves:
        raise TableError(
            table.name,
            "in one batch, foreign keys changed rows of the table, and updates changed keys. The row images of these updates lack "
            "columns (binlog_row_image is not FULL); set binlog_row_image=FULL on the source and re-snapshot the table with "
            "`sluice snapshot start`",
        )
    columns = staged.columns if staged else _columns_of(table, lake, piece)
    schema = pq.read_schema(staged.file) if staged else _schema(columns)
    own = pq.read_table(staged.file) if staged else schema.empty_table()
    partial = bool(staged and staged.partial)
    added = pa.Table.from_pylist(
        [_record(image, columns, partial=partial) for image in piece.derived], schema=_loose(schema)
    )
    rows = pa.concat_tables([own.cast(_loose(schema)), added])
    order_keys = pa.array([image.at.order_key for image in piece.derived], pa.int64())
    order = pa.table(
        {
            "key": pa.concat_arrays([own[ORDER_KEY].combine_chunks(), order_keys]),
            "sequence_number": pa.array([*piece.indices, *(image.at.index for image in piece.derived)], pa.int64()),
            "derived": pa.array([0] * own.num_rows + [1] * len(piece.derived)),
            "row": pa.array(range(rows.num_rows)),
        }
    )
    names = ("key", "sequence_number", "derived", "row")
    rows = rows.append_column(DERIVED, order["derived"].cast(pa.bool_()))
    rows = rows.take(pc.sort_indices(order, sort_keys=[(name, "ascending") for name in names]))
    if ROW in schema.names:
        numbers = pa.array(range(rows_before + 1, rows_before + 1 + rows.num_rows), pa.int64())
        rows = rows.set_column(schema.get_field_index(ROW), ROW, numbers)
    pq.write_table(rows, path, compression="none")
    sync(path)
    return _segment_of(path, rows, columns, piece)


def _segment_of(path: Path, rows: pa.Table, columns: tuple[LakeColumn, ...], piece: _Piece) -> ChangesSegment:
    staged = piece.segment if isinstance(piece.segment, ChangesSegment) else None
    key = staged.key if staged else _key_of(columns, piece)
    operations: Any = rows[OPERATION].to_pylist()
    order_keys: Any = rows[ORDER_KEY].to_pylist()
    times = [_us(image.at.commit_time) for image in piece.derived]
    bounds = [_bounds(staged, index, name, piece) for index, name in enumerate(key)]
    return ChangesSegment(
        file=path,
        size_bytes=path.stat().st_size,
        rows=rows.num_rows,
        inserts=operations.count(INSERT),
        updates=operations.count(UPDATE_AFTER),
        deletes=operations.count(DELETE),
        key_changes=operations.count(UPDATE_BEFORE) if key else 0,
        unique_keys=False,
        first_order_key=order_keys[0],
        last_order_key=order_keys[-1],
        first_commit_time_us=min([*times, *([staged.first_commit_time_us] if staged else [])]),
        last_commit_time_us=max([*times, staged.last_commit_time_us if staged else 0]),
        key=key,
        key_min=tuple(low for low, _ in bounds),
        key_max=tuple(high for _, high in bounds),
        columns=columns,
        partial=bool(staged and staged.partial),
        moves=0,
        log=f"../{staged.log}" if staged and staged.log else "",
        log_rows=staged.log_rows if staged else 0,
        derived=True,
    )


def _bounds(staged: ChangesSegment | None, index: int, name: str, piece: _Piece) -> tuple[Any, Any]:
    """Returns the lowest and the highest value of a key column in the staged and the derived images. Returns (None, None) if the values are
    neither all integers nor all strings, or if the manifest lacks the bounds of the staged images.
    """
    values = [image.values[name.lower()] for image in piece.derived]
    if staged is not None:
        values += [staged.key_min[index], staged.key_max[index]] if index < len(staged.key_min) else [None]
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if whole or all(isinstance(value, str) for value in values):
        return min(values), max(values)
    return None, None


def _columns_of(table: StagedTable, lake: DeltaTable, piece: _Piece) -> tuple[LakeColumn, ...]:
    """Returns the columns, with their types, of a new segment that has only derived images (of rows that foreign keys changed). If another
    segment of the table has the same columns as the images, returns the columns of that segment. Otherwise, returns the columns of the
    lake. Raises TableError if the lake lacks a column of the images.
    """
    known = set(piece.derived[0].values)
    for segment in table.changes:
        if {column.name.lower() for column in segment.columns} == known:
            return segment.columns
    columns = [
        LakeColumn(name=name, type=of_type)
        for lowered, (name, of_type) in lake.snapshot.columns.items()
        if lowered in known
    ]
    if len(columns) < len(known):
        raise TableError(
            table.name,
            "foreign keys changed rows, and the Delta table lacks columns of these rows; re-snapshot the table with "
            "`sluice snapshot start`",
        )
    return tuple(columns)


def _key_of(columns: tuple[LakeColumn, ...], piece: _Piece) -> tuple[str, ...]:
    spelled = {column.name.lower(): column.name for column in columns}
    return tuple(spelled[name] for name in piece.derived[0].key)


def _record(image: Derived, columns: tuple[LakeColumn, ...], *, partial: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        OPERATION: image.operation,
        ORDER_KEY: image.at.order_key,
        COMMIT_TIME: image.at.commit_time,
    }
    for index, column in enumerate(columns):
        known = column.name.lower() in image.values
        record[column.name] = image.values.get(column.name.lower())
        if partial:
            group = f"{PRESENT}{index // GROUP_COLUMNS}"
            record[group] = record.get(group, 0) | (int(known) << index % GROUP_COLUMNS)
    return {**record, "_sluice_moved": False} if partial else record


def _schema(columns: tuple[LakeColumn, ...]) -> pa.Schema:
    fields: list[pa.Field[Any]] = [
        pa.field(OPERATION, pa.int8()),
        pa.field(ORDER_KEY, pa.int64()),
        pa.field(COMMIT_TIME, pa.timestamp("us", "UTC")),
        pa.field(ROW, pa.int64()),
        *(pa.field(column.name, _arrow(column.type)) for column in columns),
    ]
    return pa.schema(fields)


def _arrow(type_name: str) -> Any:
    if type_name.startswith("decimal("):
        precision, scale = type_name[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return ARROW_TYPES[type_name]


def _loose(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with all fields nullable, because a derived image (of a row that a foreign key changed) may lack values."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _us(commit_time: Any) -> int:
    return int(pa.scalar(commit_time, pa.timestamp("us", "UTC")).value or 0)


# ── files for a run that repeats the batch ──


def keep(
    batch: StagedBatch,
    changed: Sequence[StagedTable],
    refused: dict[str, str],
    storage_options: Mapping[str, str],
) -> None:
    """Writes the manifest of the files that `with_derived` wrote, so that a run that repeats the batch reads them. If the batch is in an
    object store, uploads the files and the manifest.

    `changed` are the tables that `with_derived` returned. `refused` has the reason for each table whose changes by foreign keys cannot be
    derived. Raises SparkJobError if the upload fails.
    """
    folder = batch.directory / FOLDER
    folder.mkdir(exist_ok=True)
    kept = {table.name: [_kept(batch, table, segment) for segment in table.segments] for table in changed}
    temporary = folder / f"{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps({"format": FORMAT, "tables": kept, "refused": refused}))
    sync(temporary)
    temporary.replace(folder / MANIFEST)
    sync(folder)
    sync(batch.directory)
    if batch.stored:
        _put(batch, folder, storage_options)


def _put(batch: StagedBatch, folder: Path, storage_options: Mapping[str, str]) -> None:
    """Uploads the folder to the batch's object store, where Spark and runs on other hosts read it. Raises SparkJobError if the store does
    not answer.
    """
    try:
        StoreFolder(batch.stored, storage_options).put(folder, last=MANIFEST, below=f"{FOLDER}/")
    except StoreError as error:
        raise SparkJobError(
            f"the rows that foreign keys changed could not be uploaded to the object store: {error}; Sluice tries again"
        ) from None


def _kept(batch: StagedBatch, table: StagedTable, segment: Segment) -> Any:
    staged = next(each for each in batch.tables if each.name == table.name)
    if segment in staged.segments:
        return staged.segments.index(segment)
    return to_record(segment)


def kept(batch: StagedBatch) -> tuple[dict[str, StagedTable], dict[str, str]] | None:
    """Reads the manifest that `keep` wrote. Returns, by name, the tables with derived images (of rows that foreign keys changed). Also
    returns the reason for each table whose changes by foreign keys cannot be derived. Returns None if there is no manifest. Raises
    StagedBatchError if the manifest or its files cannot be read.
    """
    path = batch.directory / FOLDER / MANIFEST
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}")
        tables = {
            table.name: dataclasses.replace(
                table,
                segments=tuple(_read(batch, table, item) for item in record["tables"][table.name]),
                positions=None,
            )
            for table in batch.tables
            if table.name in record["tables"]
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StagedBatchError(f"{path} cannot be read ({error}); Sluice stages the batch again") from error
    return tables, dict(record["refused"])


def _read(batch: StagedBatch, table: StagedTable, item: Any) -> Segment:
    if isinstance(item, int):
        return table.segments[item]
    segment = from_record(ChangesSegment, item, batch.directory / FOLDER)
    if not segment.file.is_file() or segment.file.stat().st_size != segment.size_bytes:
        raise ValueError(f"{segment.file} is missing or differs from the file that an earlier run wrote")
    stored = f"{batch.stored}/{FOLDER}/{segment.file.name}" if batch.stored else ""
    return dataclasses.replace(segment, stored=stored)
