"""Folds changes of chosen keys: writes one image per key, with the row that the key has at the lake's position in the stream (`up_to`).

A backfill chooses the keys that changed in an interval. A repair chooses keys by value, and has read their rows from the source between two
positions, low and high, which are both before `up_to`.

- If a chosen key changed in the part of the stream that was read, its last change up to `up_to` gives the row. The row from the source is
  older than this change, or includes it.
- If the key did not change, the row from the source is correct.
- A key without a row in the source and without changes has no row, and gets a delete image. But if the source had the row of such a key
  during the comparison, the key is lost (`Decided.lost`): it is unknown what happened to the row, so the key gets no image.

A repair or a backfill never merges a change before the merges of the stream do. A repair or a backfill removes a row only if neither the
source nor the stream has the row.

Only keys are loaded into memory. Rows are copied from file to file in batches.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.batch_manifest.values import ChangesSegment, LakeColumn
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging.fold import DELETE, INSERT, UPDATE_AFTER
from sluice.spark_jobs.small.fold_arrow import Mask, Numbers, is_last, key_codes
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY, ROW

BATCH_ROWS = 1 << 16
OURS = pa.schema(
    [(OPERATION, pa.int8()), (ORDER_KEY, pa.int64()), (COMMIT_TIME, pa.timestamp("us", "UTC")), (ROW, pa.int64())]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """The rows of a table that a repair read from the source.

    - `files` are Parquet files that have only the table's columns.
    - `keys` has the values of the requested keys, by key column.
    - `had` tells for each requested key whether the source had its row during the comparison of source and lake.
    - `doubled` tells for each requested key whether the lake has several rows.
    - `read_at_us` is the time of reading, in µs since 1970.
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
    """Masks that mark what gives each key its row: `none` marks requested keys that have no row, `rows` marks rows that were read from the
    source, and `images` marks images of the stream.

    `lost` marks requested keys whose row is unknown: the source had a row during the comparison, but neither a row nor a change was read.
    There are two possible causes. The row was deleted after the comparison and before the repair began to read, and the merges of the
    stream delete it in the lake. Or the source does not find the row by the text of the row's key.
    """

    none: Mask
    rows: Mask
    images: Mask
    lost: Mask


def decide(
    keys: Sequence[Any], had: Sequence[bool], read: Sequence[Any], images: Sequence[Any], *, seen: Mask, chosen: Mask
) -> Decided:
    """Decides what gives each key its row: a row that was read, an image of the stream, or neither.

    - `keys`, `read` and `images` are the keys of the requested rows, of the rows that were read, and of the images, each as one array per
      key column. NULL counts as a value.
    - `had` tells for each requested key whether the source had its row during the comparison of source and lake.
    - `seen` marks the images up to the lake's position.
    - `chosen` marks the seen images whose keys must be corrected.

    Marks each key that was requested, that was read, or that has an image in `chosen`. Such a key is marked once, in `none`, `rows` or
    `images`. A requested key is marked in `lost` instead if the source had its row during the comparison (`had`), but `read` lacks the key
    and no seen image has it.
    """
    sizes = [len(part[0]) for part in (keys, read, images)]
    joined = [pa.chunked_array([*parts]) for parts in zip(keys, read, images, strict=True)]
    codes = key_codes(joined) if sum(sizes) else np.zeros(0, np.int64)
    of_requested, of_read, of_images = np.split(codes, np.cumsum(sizes)[:-1])
    meant, changed, there = (np.zeros(int(codes.max(initial=-1)) + 1, np.bool_) for _ in range(3))
    meant[of_requested] = meant[of_read] = meant[of_images[chosen]] = True
    changed[of_images[seen]] = True
    there[of_read] = True
    last = np.zeros(len(of_images), np.bool_)
    last[seen] = is_last(of_images[seen])
    unchanged, known = ~(changed | there)[of_requested], np.zeros(len(meant), np.bool_)
    known[of_requested[np.asarray(had, np.bool_)]] = True
    lost = unchanged & known[of_requested]
    return Decided(
        none=unchanged & ~lost & _first(of_requested),
        rows=~changed[of_read] & _first(of_read),
        images=last & meant[of_images],
        lost=lost,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """The result of a fold: a segment with one image per key, or None if there is nothing to merge. `lost` marks the requested keys that
    stay unchanged, because it is unknown what row they have (`Decided.lost`).
    """

    segment: ChangesSegment | None
    lost: Mask


def folded(
    name: str,
    segments: Sequence[ChangesSegment],
    path: Path,
    up_to: int,
    *,
    changed_in: Sequence[tuple[int, int]] = (),
    read: Read | None = None,
) -> Fold:
    """Writes one image per chosen key to a file at `path`, and returns the file as a segment.

    `segments` are the stream's changes in order, at least up to the order key `up_to`.

    - Without `read`, the keys are chosen that changed in one of the intervals `changed_in`, and each image keeps its order key. Each
      interval is a pair of order keys: it begins above the first and ends at the second. The intervals are ascending.
    - With `read`, the keys of `read` are chosen. All images get the order key `up_to`, because they are valid at this position.

    Raises TableError if the columns of the segments differ from each other or from those of `read`, or if row images lack columns. Also
    raises TableError if keys are lost (`Decided.lost`) and no image remains to be written.
    """
    schema = _schema(name, segments, read)
    images = _keys([each.file for each in segments], (*(read or segments[0]).key, ORDER_KEY), schema)
    rows = _keys(read.files, read.key, schema) if read else [keys[:0] for keys in images[:-1]]
    keys = _requested_keys(read, schema) if read else rows
    numbers = np.asarray(images[-1]).astype(np.int64, copy=False)
    seen = numbers <= up_to
    chosen = seen & _within(numbers, changed_in)
    decided = decide(keys, read.had if read else (), rows, images[:-1], seen=seen, chosen=chosen)
    count = sum(int(mask.sum()) for mask in (decided.none, decided.rows, decided.images))
    if decided.lost.any() and not count:
        raise TableError(
            name,
            f"the source did not find {int(decided.lost.sum())} rows by their keys, although it had them during "
            "the comparison, and no change deleted these rows: start the repair again, or re-snapshot the table "
            "with `sluice snapshot start`",
            own=False,
        )
    if not count:
        return Fold(segment=None, lost=decided.lost)
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        writing = _Writing(writer, schema, up_to if read else None)
        writing.images([each.file for each in segments], decided.images)
        if read is not None:
            writing.rows(read.files, decided.rows, read.read_at_us)
            writing.none(dict(zip(read.key, keys, strict=True)), decided.none, read.read_at_us)
    return Fold(segment=_segment(read or segments[0], path, again=read is not None), lost=decided.lost)


def _schema(name: str, segments: Sequence[ChangesSegment], read: Read | None) -> pa.Schema:
    """Returns the schema of the file to write. Raises TableError if the columns of the segments differ from each other or from those of the
    rows that were read, or if row images lack columns.
    """
    if read is not None:
        if any(each.partial or _shape(each) != _shape(read) for each in segments):
            why = (
                "the columns of the table changed while the repair read its rows, or row images lack columns; "
                "start the repair again"
            )
            raise TableError(name, why, own=False)
        return pa.schema([*OURS, *pq.read_schema(read.files[0])])
    first = segments[0]
    if any((each.columns, each.key, each.partial) != (first.columns, first.key, False) for each in segments):
        raise TableError(
            name,
            "the columns of the table changed in the interval that the backfill read, or row images in the "
            "interval lack columns; start the backfill again, which then refuses the table and says what to do instead",
        )
    return pq.read_schema(first.file)


def cleared(read: Read, lost: Mask, path: Path, up_to: int) -> ChangesSegment | None:
    """Returns a segment that deletes all rows of each requested key for which the lake has several rows. The caller merges this segment
    before the segment of `folded`, so that each of these keys has at most one row afterwards. Leaves out the keys that `lost` marks, whose
    rows stay in the lake. Returns None if no key is left.
    """
    doubled = np.asarray(read.doubled, np.bool_) & ~lost
    if not doubled.any():
        return None
    schema = pa.schema([*OURS, *pq.read_schema(read.files[0])])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        keys = dict(zip(read.key, _requested_keys(read, schema), strict=True))
        _Writing(writer, schema, up_to).none(keys, doubled, read.read_at_us)
    return _segment(read, path, again=True)


def _requested_keys(read: Read, schema: pa.Schema) -> list[Any]:
    return [pa.array(read.keys[column], schema.field(column).type) for column in read.key]


def _shape(of: Read | ChangesSegment) -> object:
    return [(each.name, each.type) for each in of.columns], [name.lower() for name in of.key]


def _within(numbers: Numbers, intervals: Sequence[tuple[int, int]]) -> Mask:
    """Returns a mask of the numbers that are within one of the intervals: above its first bound, and up to its second one. The
    intervals are ascending.
    """
    bounds = np.array(intervals, np.int64).reshape(-1, 2)
    at = np.searchsorted(bounds[:, 0], numbers, "left") - 1
    found = at >= 0
    found[found] = numbers[found] <= bounds[at[found], 1]
    return found


def _first(codes: Numbers) -> Mask:
    """Returns a mask that is true for the first element with each code."""
    found = np.zeros(len(codes), np.bool_)
    found[np.unique(codes, return_index=True)[1]] = True
    return found


def _keys(files: Sequence[Path], names: Sequence[str], schema: pa.Schema) -> list[Any]:
    """Reads these columns of all files, and returns one array per column."""
    tables = [pq.read_table(file, columns=list(names)) for file in files]
    if not tables:
        return [pa.array([], schema.field(name).type) for name in names]
    whole: Any = pa.concat_tables(tables)
    return [whole[name].combine_chunks() for name in names]


class _Writing:
    """Writes images to a Parquet file. All images get the order key `order_key`. If it is None, each image keeps its own."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema, order_key: int | None) -> None:
        self._writer, self._schema, self._order_key, self._row = writer, schema, order_key, 0

    def images(self, files: Sequence[Path], kept: Mask) -> None:
        for batch in _batches(files, kept):
            if self._order_key is None:
                self._writer.write_table(batch)
            else:
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
        columns = [*ours, *(rows[name] for name in self._schema.names[len(OURS) :])]
        self._writer.write_table(pa.table(columns, names=self._schema.names).cast(self._schema))


def _batches(files: Sequence[Path], kept: Mask) -> Iterator[pa.Table]:
    """Yields the rows of all files for which the mask `kept` is true."""
    at = 0
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                mask = kept[at : at + batch.num_rows]
                at += batch.num_rows
                if mask.any():
                    yield pa.Table.from_batches([batch.filter(pa.array(mask))])


def _segment(of: Read | ChangesSegment, path: Path, *, again: bool) -> ChangesSegment:
    facts: Any = pq.read_table(path, columns=[OPERATION, ORDER_KEY, COMMIT_TIME])
    operations = np.asarray(facts[OPERATION])
    inserts, updates = (int((operations == kind).sum()) for kind in (INSERT, UPDATE_AFTER))
    order_keys, times = _range(facts[ORDER_KEY]), _range(facts[COMMIT_TIME].cast(pa.int64()))
    keys: Any = pq.read_table(path, columns=list(of.key))
    bounds = [bounds_of(keys[name].combine_chunks()) for name in of.key]
    return ChangesSegment(
        file=path,
        size_bytes=path.stat().st_size,
        rows=facts.num_rows,
        inserts=inserts,
        updates=updates,
        deletes=facts.num_rows - inserts - updates,
        key_changes=0,
        unique_keys=True,
        first_order_key=order_keys[0],
        last_order_key=order_keys[1],
        first_commit_time_us=times[0],
        last_commit_time_us=times[1],
        key=of.key,
        key_min=tuple(low for low, _ in bounds),
        key_max=tuple(high for _, high in bounds),
        columns=of.columns,
        again=again,
    )


def bounds_of(column: Any) -> tuple[Any, Any]:
    """Returns the lowest and the highest value of a key column, as a manifest has them: decimals become integers. Returns (None, None) for
    types other than integers, strings, and decimals without fraction digits.
    """
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)):
        return None, None
    low, high = (int(each) if isinstance(each, decimal.Decimal) else each for each in _range(column))
    return low, high


def _range(column: Any) -> tuple[Any, Any]:
    found: Any = pc.min_max(column)
    least_and_greatest = found.as_py()
    return least_and_greatest["min"], least_and_greatest["max"]
