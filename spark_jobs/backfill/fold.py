"""Folds the changes of a backfill: returns one image per key that changed in the interval, the last image that the table has seen.

The lake has a table as of some position of the stream, `up_to`. If a key changed in the interval, its last change up to that position is
the key's row there; later changes arrive through the stream as usual. So a row that was deleted after the interval stays deleted,
although the lake keeps no trace of the deletion, and nothing is merged that the stream has not merged itself.

Only keys are held in memory; rows are copied from file to file in batches."""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.batch_manifest.values import ChangesSegment
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.merging import fold
from sluice.spark_jobs.small.fold_arrow import Mask, is_last, key_codes
from sluice.spark_jobs.staged_batch import COMMIT_TIME, OPERATION, ORDER_KEY

BATCH_ROWS = 1 << 16


def last_of_keys(keys: Sequence[Any], order_keys: Any, changed_up_to: int, up_to: int) -> Mask:
    """Returns a mask of the images (in stream order) that determine their keys' rows. `keys`: the key's columns; NULL counts as a value.

    These are, of the keys with a change at or before the order key `changed_up_to`, the last images at or before `up_to`.
    """
    numbers = np.asarray(order_keys).astype(np.int64, copy=False)
    seen = numbers <= up_to
    kept = np.zeros(len(numbers), np.bool_)
    if not seen.any():
        return kept
    found = key_codes([pa.chunked_array([column]).filter(pa.array(seen)) for column in keys])
    wanted = np.zeros(int(found.max()) + 1, np.bool_)
    wanted[found[numbers[seen] <= changed_up_to]] = True
    kept[seen] = is_last(found) & wanted[found]
    return kept


def folded(
    name: str, segments: Sequence[ChangesSegment], path: Path, changed_up_to: int, up_to: int
) -> ChangesSegment | None:
    """Writes one image per key of consecutive segments to a file at `path` and returns it as a segment; None if there is nothing to merge.

    Raises TableError if the segments differ in columns or key, or if images lack columns.
    """
    first = segments[0]
    if any((each.columns, each.key, each.partial) != (first.columns, first.key, False) for each in segments):
        raise TableError(
            name, "its columns changed while it was read, or its images lack some; start the backfill again"
        )
    wanted = [*first.key, ORDER_KEY]
    images: Any = pa.concat_tables([pq.read_table(each.file, columns=wanted) for each in segments])
    columns = [images[column].combine_chunks() for column in first.key]
    kept = last_of_keys(columns, images[ORDER_KEY], changed_up_to, up_to)
    if not kept.any():
        return None
    _write(segments, kept, path)
    return _segment(first, path, [column.filter(pa.array(kept)) for column in columns])


def _write(segments: Sequence[ChangesSegment], kept: Mask, path: Path) -> None:
    at = 0
    with pq.ParquetWriter(path, pq.read_schema(segments[0].file), compression="none") as writer:
        for segment in segments:
            with pq.ParquetFile(segment.file) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    mask = kept[at : at + batch.num_rows]
                    at += batch.num_rows
                    if mask.any():
                        writer.write_batch(batch.filter(pa.array(mask)))


def _segment(first: ChangesSegment, path: Path, keys: Sequence[Any]) -> ChangesSegment:
    facts: Any = pq.read_table(path, columns=[OPERATION, ORDER_KEY, COMMIT_TIME])
    operations = np.asarray(facts[OPERATION])
    counts = {kind: int((operations == kind).sum()) for kind in (fold.INSERT, fold.UPDATE_AFTER)}
    order_keys, times = _range(facts[ORDER_KEY]), _range(facts[COMMIT_TIME].cast(pa.int64()))
    bounds = [bounds_of(column) for column in keys]
    return dataclasses.replace(
        first,
        file=path,
        size_bytes=path.stat().st_size,
        rows=facts.num_rows,
        inserts=counts[fold.INSERT],
        updates=counts[fold.UPDATE_AFTER],
        deletes=facts.num_rows - sum(counts.values()),
        key_changes=0,
        unique_keys=True,
        first_order_key=order_keys[0],
        last_order_key=order_keys[1],
        first_commit_time_us=times[0],
        last_commit_time_us=times[1],
        key_min=tuple(low for low, _ in bounds),
        key_max=tuple(high for _, high in bounds),
    )


def bounds_of(column: Any) -> tuple[Any, Any]:
    """Returns minimum and maximum in the manifest's form, for integers and strings; (None, None) for other types."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)):
        return None, None
    low, high = (int(each) if isinstance(each, decimal.Decimal) else each for each in _range(column))
    return low, high


def _range(column: Any) -> tuple[Any, Any]:
    found: Any = pc.min_max(column)
    least_and_greatest = found.as_py()
    return least_and_greatest["min"], least_and_greatest["max"]
