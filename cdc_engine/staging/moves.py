"""Identifies rows whose keys changed within a segment (one staged file of a table) and whose images lack columns, so that a run can add
the missing columns from the lake. Called by `segment_writer`, for segments with partial images.

The lake has the missing columns under the key that the row had before the segment. Within the segment, the key may change several times,
and another row may get the old key. So the key of an image does not always identify the image's row. The following columns identify the
row:

- `_sluice_birth` (int64): where the missing columns are. NULL: in the lake, under the key of the image. 0: in the lake, under the key in
  `_sluice_origin_<k>`. Any other number: in the image with this number (`_sluice_row`), which is the row's last insert or after image with
  all columns.
- `_sluice_origin_<k>` (type of the key column): the value of key column k that the row had before the segment, or in the image to which
  `_sluice_birth` refers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.rows import lives
from sluice.cdc_engine.binlog.rows.fingerprints import fingerprints
from sluice.cdc_engine.binlog.rows.partial import MOVED, ORIGIN, PRESENT, key_fields
from sluice.cdc_engine.contracts import Int64s

BIRTH = "_sluice_birth"


def lacks_columns(batch: pa.RecordBatch) -> bool:
    """Returns whether a record batch is partial: whether it has the columns that show which values are missing."""
    return batch.schema.get_field_index(MOVED) >= 0


class Moves:
    """Adds columns to the record batches of a segment. The columns identify the row of each image, even if the row's key has changed.
    `moves` is the number of images so far that changed the key of their row and lack columns.
    """

    def __init__(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._names = [field.name for field in key_fields(schema, key)]
        self._types = [field.type for field in key_fields(schema, key)]
        self._whole = {name: int(np.int64(bits)) for name, bits in _all_bits(schema).items()}
        self._slots = lives.free_slots(lives.SLOTS_FIRST)
        self._counts = np.zeros(2, np.int64)
        self._origins = [_Values() for _ in key]
        self._births = _Values()
        self.moves = 0

    def with_identity(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Returns the segment's next record batch with the columns that identify rows. `first_row` is the number of the record batch's
        first row among the table's rows in the staged batch.
        """
        moved = batch.column(MOVED).to_numpy(zero_copy_only=False)
        self.moves += int(moved.sum())
        life = self._followed(batch, moved, first_row) if self.moves else np.full(len(moved), lives.AT_HOME, np.int64)
        named = zip(
            [BIRTH, *(f"{ORIGIN}{index}" for index in range(len(self._names)))],
            [pa.int64(), *self._types],
            [self._births, *self._origins],
            strict=True,
        )
        for name, of_type, values in named:
            batch = batch.append_column(pa.field(name, of_type), values.of(life, of_type))
        return batch

    def _followed(self, batch: pa.RecordBatch, moved: Any, first_row: int) -> Int64s:
        rows, columns = batch.num_rows, [batch.column(name) for name in self._names]
        whole = np.ones(rows, bool)
        for name, bits in self._whole.items():
            whole &= batch.column(name).to_numpy() == bits
        self._make_room(rows)
        life, births, origins = (np.empty(rows, np.int64) for _ in range(3))
        begun = int(self._counts[lives.LIVES])
        images = lives.KeyedImages(fingerprints(columns), batch.column(0).to_numpy(), moved, whole)
        lives.follow(images, first_row, self._slots, self._counts, lives.BegunLives(births, origins), life)
        new = int(self._counts[lives.LIVES]) - begun
        if new:
            self._births.add(pa.array(births[:new]))
            first_images: Any = pa.array(origins[:new])
            for values, column in zip(self._origins, columns, strict=True):
                values.add(column.take(first_images))
        return life

    def _make_room(self, rows: int) -> None:
        size = self._slots.shape[1]
        while size < 2 * (int(self._counts[lives.KEYS]) + rows):
            size *= 2
        if size > self._slots.shape[1]:
            larger = lives.free_slots(size)
            lives.move_slots(self._slots, larger)
            self._slots = larger


def _all_bits(schema: pa.Schema) -> dict[str, int]:
    """Returns, for each column of presence bits, the value in which all bits are set. A presence bit says whether an image has one column
    of the table. `schema` has three columns of Sluice, then the table's columns, then the columns of presence bits.
    """
    names = [field.name for field in schema if field.name.startswith(PRESENT)]
    columns = schema.get_field_index(names[0]) - 3
    return {name: (1 << min(63, columns - 63 * group)) - 1 for group, name in enumerate(names)}


class _Values:
    """Stores values in several arrays, numbered from 0 in the order in which the values are added. Each array is at least twice as long as
    the next array, so adding n values copies each value only about log(n) times.
    """

    def __init__(self) -> None:
        self._heaps: list[Any] = []

    def add(self, values: Any) -> None:
        self._heaps.append(values)
        while len(self._heaps) > 1 and len(self._heaps[-2]) < 2 * len(self._heaps[-1]):
            self._heaps[-2:] = [pa.concat_arrays(self._heaps[-2:])]

    def of(self, numbers: Int64s, of_type: pa.DataType) -> Any:
        """Returns an array of the values with these numbers. A negative number gives NULL."""
        parts: list[Any] = []
        indices = np.full(len(numbers), -1, np.int64)
        begin = found = 0
        for heap in self._heaps:
            rows = np.flatnonzero((numbers >= begin) & (numbers < begin + len(heap)))
            parts.append(heap.take(pa.array(numbers[rows] - begin)))
            indices[rows] = found + np.arange(len(rows))
            begin, found = begin + len(heap), found + len(rows)
        values: Any = pa.concat_arrays(parts) if parts else pa.array([], of_type)
        return values.take(pa.array(indices, mask=indices < 0))
