"""Where a table's segment must end because a row without all its columns moved to another key. Pure; called by `staging`.

Such a row takes what it lacks from the lake, where it lies under its old key as it was before the segment. So the old key must not have
been met earlier in the segment; where it was (1 to 2 and on to 3, keys that swap), a new segment begins at the preimage.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdc_engine.binlog.rows.partial import MOVED, key_fields
from cdc_engine.contracts import Int64s


def lacks_columns(batch: pa.RecordBatch) -> bool:
    """Whether the batch says which columns its rows have."""
    return batch.schema.get_field_index(MOVED) >= 0


def parts(batch: pa.RecordBatch, key: tuple[str, ...], *, begun: bool) -> Iterator[tuple[bool, pa.RecordBatch]]:
    """(whether a new segment begins with it, rows), all rows in order. `begun`: the segment has rows, which may have met any key."""
    cuts = _cuts(batch, key, begun=begun) if lacks_columns(batch) else []
    for first, last in zip([0, *cuts], [*cuts, batch.num_rows], strict=True):
        if last > first:
            yield first in cuts, batch.slice(first, last - first)


def _cuts(batch: pa.RecordBatch, key: tuple[str, ...], *, begun: bool) -> list[int]:
    """Rows before which a segment ends."""
    moved = np.flatnonzero(batch.column(MOVED).to_numpy(zero_copy_only=False)) - 1  # the preimage stands before
    if not len(moved):
        return []
    cuts = [int(moved[0])] if begun else []
    met_before = _met_before(_key_numbers(batch, key))
    for row in moved[met_before[moved] >= 0]:
        if met_before[row] >= (cuts[-1] if cuts else 0):
            cuts.append(int(row))
    return cuts


def _key_numbers(batch: pa.RecordBatch, key: tuple[str, ...]) -> Int64s:
    """A number a row; equal ones where the keys are equal."""
    columns = [batch.column(field.name) for field in key_fields(batch.schema, key)]
    encoded = [column.dictionary_encode(null_encoding="encode").indices.to_numpy() for column in columns]
    _, numbers = np.unique(np.stack(encoded), axis=1, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)


def _met_before(numbers: Int64s) -> Int64s:
    """For each row the last one before it with the same number, -1 if there is none."""
    order = np.argsort(numbers, kind="stable")
    met = np.full(len(numbers), -1, np.int64)
    same = numbers[order[1:]] == numbers[order[:-1]]
    met[order[1:][same]] = order[:-1][same]
    return met
