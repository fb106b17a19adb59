"""Folds a repair: returns one image per chosen key, with the row that the key has at the lake's position. `merge` calls it.

Rows were read from the source between two positions of the stream, low and high, and the lake has all changes up to `up_to`, which is
after both. If a key changed after low, its last change up to `up_to` determines the row: either it was made after the row was read, or
the row already shows it. For any other key the row that was read is correct. A key without a row and without later changes has no row. So
a row that was deleted after it was read does not come back, and a row is removed only if neither the source nor the stream has it.

Only keys are held in memory; rows are copied from file to file in batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.batch_manifest.values import ChangesSegment, LakeColumn
from sluice.spark_jobs.backfill.fold import bounds_of
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.fold import DELETE, INSERT
from sluice.spark_jobs.small.fold_arrow import Mask, Numbers, is_last, key_codes
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW

BATCH_ROWS = 1 << 16
OURS = pa.schema(
    [(OPERATION, pa.int8()), (ORDER_KEY, pa.int64()), (COMMIT_TIME, pa.timestamp("us", "UTC")), (ROW, pa.int64())]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """The rows of a table that a repair read. `files`: Parquet files with the table's columns only. `keys`: column → values of the
    requested keys. `had`: for which keys the source had a row when they were found. `doubled`: for which keys the lake has several rows.
    `read_at_us`: in µs since 1970.
    """

    key: tuple[str, ...]
    columns: tuple[LakeColumn, ...]
    files: tuple[Path, ...]
    keys: dict[str, list[Any]]
    had: Sequence[bool]
    doubled: Sequence[bool]
    read_at_us: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided:
    """For each of three lists, a mask of the elements that determine their key's row: the requested keys (they have no row), the rows that
    were read, the images of the stream.

    `lost`: requested keys that had a row, for which nothing was read and no deletion is known. Either they were deleted between the
    comparison and the low position, which the lake learns from the stream, or the source does not find them by the text of their key.
    """

    none: Mask
    rows: Mask
    images: Mask
    lost: Mask


def decide(keys: Sequence[Any], had: Sequence[bool], read: Sequence[Any], images: Sequence[Any], seen: Mask) -> Decided:
    """Chooses the element that determines each key's row. `keys`, `read`, `images`: the keys of each list by column (arrays of one type per
    column). `seen`: which images the lake's position includes.

    Exactly one element is chosen for each key that was requested or read, except lost keys; none for other keys.
    """
    sizes = [len(part[0]) for part in (keys, read, images)]
    joined = [pa.chunked_array([*parts]) for parts in zip(keys, read, images, strict=True)]
    codes = key_codes(joined) if sum(sizes) else np.zeros(0, np.int64)
    of_asked, of_read, of_images = np.split(codes, np.cumsum(sizes)[:-1])
    meant, changed, there = (np.zeros(int(codes.max(initial=-1)) + 1, np.bool_) for _ in range(3))
    meant[of_asked] = meant[of_read] = True
    changed[of_images[seen]] = True
    there[of_read] = True
    last = np.zeros(len(of_images), np.bool_)
    last[seen] = is_last(of_images[seen])
    unspoken, known = ~(changed | there)[of_asked], np.zeros(len(meant), np.bool_)
    known[of_asked[np.asarray(had, np.bool_)]] = True
    lost = unspoken & known[of_asked]
    return Decided(
        none=unspoken & ~lost & _first(of_asked),
        rows=~changed[of_read] & _first(of_read),
        images=last & meant[of_images],
        lost=lost,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """The result of the fold. `segment`: one image per key; None if there is nothing to merge. `lost`: a mask of the requested keys that
    stay unchanged.
    """

    segment: ChangesSegment | None
    lost: Mask


def repaired(name: str, read: Read, segments: Sequence[ChangesSegment], path: Path, up_to: int) -> Fold:
    """Writes one image per key to a file at `path` and returns it as a segment.

    `segments`: the stream's changes from the low position on, at least up to `up_to`. Raises TableError if their columns differ from
    those that were read, or if all keys are lost.
    """
    schema = pq.read_schema(read.files[0])
    if any(each.partial or _shape(each) != _shape(read) for each in segments):
        raise TableError(name, "its columns changed while its rows were read; start the repair again", own=False)
    keys = _asked(read, schema)
    rows = _keys(read.files, read.key, schema)
    images = _keys([each.file for each in segments], (*read.key, ORDER_KEY), schema)
    decided = decide(keys, read.had, rows, images[:-1], np.asarray(images[-1]) <= up_to)
    counts = [int(mask.sum()) for mask in (decided.none, decided.rows, decided.images)]
    if decided.lost.any() and not sum(counts):
        raise TableError(
            name,
            f"{int(decided.lost.sum())} rows that the source had when it was compared are not found by their keys, and no "
            "change deleted them: start the repair again, or re-snapshot the table with `sluice snapshot start`",
            own=False,
        )
    if not sum(counts):
        return Fold(segment=None, lost=decided.lost)
    with pq.ParquetWriter(path, pa.schema([*OURS, *schema]), compression="none") as writer:
        writing = _Writing(writer, schema, up_to)
        writing.images([each.file for each in segments], decided.images)
        writing.rows(read.files, decided.rows, read.read_at_us)
        writing.none(dict(zip(read.key, keys, strict=True)), decided.none, read.read_at_us)
    return Fold(segment=_segment(read, path, sum(counts), up_to), lost=decided.lost)


def cleared(read: Read, lost: Mask, path: Path, up_to: int) -> ChangesSegment | None:
    """Returns a segment that deletes the keys for which the lake has several rows, except lost keys; None if there are none."""
    doubled = np.asarray(read.doubled, np.bool_) & ~lost
    if not doubled.any():
        return None
    schema = pq.read_schema(read.files[0])
    with pq.ParquetWriter(path, pa.schema([*OURS, *schema]), compression="none") as writer:
        keys = dict(zip(read.key, _asked(read, schema), strict=True))
        _Writing(writer, schema, up_to).none(keys, doubled, read.read_at_us)
    return _segment(read, path, int(doubled.sum()), up_to)


def _asked(read: Read, schema: pa.Schema) -> list[Any]:
    return [pa.array(read.keys[column], schema.field(column).type) for column in read.key]


def _shape(of: Read | ChangesSegment) -> object:
    return [(each.name, each.type) for each in of.columns], [name.lower() for name in of.key]


def _first(codes: Numbers) -> Mask:
    """Returns a mask of the elements that are the first with their code."""
    found = np.zeros(len(codes), np.bool_)
    found[np.unique(codes, return_index=True)[1]] = True
    return found


def _keys(files: Sequence[Path], names: Sequence[str], schema: pa.Schema) -> list[Any]:
    """Returns the key columns of all files, each as one array."""
    tables = [pq.read_table(file, columns=list(names)) for file in files]
    if not tables:
        types = [schema.field(name).type if name != ORDER_KEY else pa.int64() for name in names]
        return [pa.array([], kind) for kind in types]
    whole: Any = pa.concat_tables(tables)
    return [whole[name].combine_chunks() for name in names]


class _Writing:
    """Appends images to the file. All of them get the order key of the lake's position, at which they are valid."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema, order_key: int) -> None:
        self._writer, self._schema, self._order_key, self._row = writer, schema, order_key, 0

    def images(self, files: Sequence[Path], kept: Mask) -> None:
        for batch in _batches(files, kept):
            self._write(batch, batch[OPERATION], batch[COMMIT_TIME])

    def rows(self, files: Sequence[Path], kept: Mask, time_us: int) -> None:
        for batch in _batches(files, kept):
            self._write(batch, *self._of(batch.num_rows, INSERT, time_us))

    def none(self, keys: dict[str, Any], kept: Mask, time_us: int) -> None:
        count = int(kept.sum())
        if count:
            columns = {field.name: pa.nulls(count, field.type) for field in self._schema}
            columns |= {name: values.filter(pa.array(kept)) for name, values in keys.items()}
            self._write(pa.table(columns), *self._of(count, DELETE, time_us))

    def _of(self, count: int, operation: int, time_us: int) -> tuple[Any, Any]:
        return pa.array([operation] * count, pa.int8()), pa.array([time_us] * count, OURS.field(COMMIT_TIME).type)

    def _write(self, rows: pa.Table, operation: Any, time: Any) -> None:
        count = rows.num_rows
        numbers = pa.array(np.arange(self._row + 1, self._row + count + 1))
        self._row += count
        ours = [operation, pa.array(np.full(count, self._order_key)), time, numbers]
        columns = [*ours, *(rows[name] for name in self._schema.names)]
        schema = pa.schema([*OURS, *self._schema])
        self._writer.write_table(pa.table(columns, names=schema.names).cast(schema))


def _batches(files: Sequence[Path], kept: Mask) -> Iterator[pa.Table]:
    """Yields the rows of all files that the mask selects."""
    at = 0
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                mask = kept[at : at + batch.num_rows]
                at += batch.num_rows
                if mask.any():
                    yield pa.Table.from_batches([batch.filter(pa.array(mask))])


def _segment(read: Read, path: Path, rows: int, up_to: int) -> ChangesSegment:
    facts: Any = pq.read_table(path, columns=[OPERATION, COMMIT_TIME])
    operations = np.asarray(facts[OPERATION])
    times = np.asarray(facts[COMMIT_TIME].cast(pa.int64()))
    deletes = int((operations == DELETE).sum())
    keys: Any = pq.read_table(path, columns=list(read.key))
    bounds = [bounds_of(keys[name].combine_chunks()) for name in read.key]
    return ChangesSegment(
        file=path,
        size_bytes=path.stat().st_size,
        rows=rows,
        inserts=rows - deletes,
        updates=0,
        deletes=deletes,
        key_changes=0,
        unique_keys=True,
        first_order_key=up_to,
        last_order_key=up_to,
        first_commit_time_us=int(times.min()),
        last_commit_time_us=int(times.max()),
        key=read.key,
        key_min=tuple(low for low, _ in bounds),
        key_max=tuple(high for _, high in bounds),
        columns=read.columns,
        again=True,
    )
