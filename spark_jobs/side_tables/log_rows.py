"""Converts staged row images to rows of a change log: one row per change, with the row before and after the change. Pure functions.
`change_log` writes the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.spark_jobs.merging.fold import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from sluice.spark_jobs.side_tables.columns import SOURCE
from sluice.spark_jobs.staged_batch import COMMIT_TIME, GROUP_COLUMNS, OPERATION, ORDER_KEY, PRESENT

NAMES = {INSERT: "insert", UPDATE_AFTER: "update", DELETE: "delete"}
COMMIT_TIME_TYPE = pa.timestamp("us", "UTC")
HEAD = (
    pa.field("operation", pa.string()),
    pa.field("order_key", pa.int64()),
    pa.field("row", pa.int64()),
    pa.field("commit_time", COMMIT_TIME_TYPE),
)
TAIL = (
    pa.field("before_present", pa.list_(pa.string())),
    pa.field("after_present", pa.list_(pa.string())),
    pa.field("origin", pa.string()),
    pa.field("detail", pa.string()),
)
IMAGES = ("before", "after")  # The names of the structs with the row before and after a change.
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def log_schema(fields: Sequence[pa.Field[Any]]) -> pa.Schema:
    """Returns the schema of a change log whose row images have these fields."""
    images: list[pa.Field[Any]] = [pa.field(name, pa.struct(fields)) for name in IMAGES]
    every: list[pa.Field[Any]] = [*HEAD, *images, *TAIL]
    return pa.schema(every)


@dataclasses.dataclass
class LogRows:
    """Converts row images in stream order to rows of a change log.

    `names` maps each column of the source to the name of its field in the log's structs `before` and `after`. `types` maps each column of
    the source to its Arrow type. `sources` has the column of the source for each field with another name that does not record it yet.
    Images up to the order key `after` are left out, because the log has them. `origin` is empty for images of row events. For other images,
    it names their cause, such as a foreign key.
    """

    names: Mapping[str, str]
    types: Mapping[str, Any]
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: int = -1
    origin: str = ""

    @property
    def schema(self) -> pa.Schema:
        return log_schema(self._fields)

    @property
    def _fields(self) -> list[pa.Field[Any]]:
        recorded = {ours: {SOURCE: name} for ours, name in self.sources.items()}
        return [pa.field(ours, self.types[name], metadata=recorded.get(ours)) for name, ours in self.names.items()]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields batches with one row per change. In `batches`, the before image of an update immediately precedes its after image, but may
        be at the end of the previous batch.
        """
        waits: pa.Table | None = None
        last_key, last_row = -1, 0
        for batch in batches:
            images = pa.Table.from_batches([batch])
            images = images if waits is None else pa.concat_tables([waits, images])
            operations = np.asarray(images[OPERATION])
            ends_open = len(operations) and operations[-1] == UPDATE_BEFORE
            waits = images.slice(images.num_rows - 1) if ends_open else None
            images = images.slice(0, images.num_rows - 1) if ends_open else images
            if not images.num_rows:
                continue
            changes = np.flatnonzero(np.asarray(images[OPERATION]) != UPDATE_BEFORE)
            keys = np.asarray(images[ORDER_KEY])[changes]
            numbers = numbered(keys, last_key, last_row)
            last_key, last_row = int(keys[-1]), int(numbers[-1])
            fresh = keys > self.after
            if fresh.any():
                yield self._batch(images, changes[fresh], numbers[fresh])

    def read(self, batch: pa.RecordBatch, operation: str, order_key: int, commit_time_us: int) -> pa.RecordBatch:
        """Returns log rows for rows that a snapshot read. These rows are not changes, so they have only an `after` image and no row number.
        The rows include all changes up to `order_key`.
        """
        rows = pa.Table.from_batches([batch])
        count = rows.num_rows
        every = np.arange(count, dtype=np.int64)
        nothing: Any = pa.array(np.zeros(count, np.int64))
        columns: list[Any] = [
            pa.array([operation]).take(nothing),
            pa.array([order_key], pa.int64()).take(nothing),
            pa.nulls(count, pa.int64()),
            pa.array([commit_time_us]).cast(COMMIT_TIME_TYPE).take(nothing),
            self._image(rows, np.full(count, -1)),
            self._image(rows, every),
            *(pa.nulls(count, field.type) for field in TAIL),
        ]
        return pa.RecordBatch.from_arrays([_flat(each) for each in columns], schema=self.schema)

    def _batch(self, images: pa.Table, changes: Numbers, numbers: Numbers) -> pa.RecordBatch:
        operations = np.asarray(images[OPERATION]).astype(np.int64)
        kinds = operations[changes]
        has_preimage = (changes > 0) & (operations[np.maximum(changes - 1, 0)] == UPDATE_BEFORE)
        # Staging keeps the before image of each update that changes a captured column. So without a before image, the row before the update
        # equals the row after it. An update by a foreign key never has a before image: the row before it is unknown.
        without = np.full(len(changes), -1) if self.origin else changes
        of_update = np.where(has_preimage, changes - 1, without)
        before = np.where(kinds == INSERT, -1, np.where(kinds == UPDATE_AFTER, of_update, changes))
        after = np.where(kinds == DELETE, -1, changes)
        names = pa.array([NAMES.get(number) for number in range(max(NAMES) + 1)], pa.string())
        at: Any = pa.array(changes)
        numbers_of_kinds: Any = pa.array(kinds)
        nothing: Any = pa.array(np.zeros(len(changes), np.int64))
        columns: list[Any] = [
            names.take(numbers_of_kinds),
            images[ORDER_KEY].take(at),
            pa.nulls(len(changes), pa.int64()) if self.origin else pa.array(numbers),
            images[COMMIT_TIME].take(at).cast(COMMIT_TIME_TYPE),
            self._image(images, before),
            self._image(images, after),
            self._present(images, before),
            self._present(images, after),
            pa.array([self.origin or None], pa.string()).take(nothing),
            pa.nulls(len(changes), pa.string()),
        ]
        return pa.RecordBatch.from_arrays([_flat(each) for each in columns], schema=self.schema)

    def _image(self, images: pa.Table, indices: Numbers) -> Any:
        at: Any = pa.array(indices, mask=indices < 0)
        values = [_flat(images[name].take(at)) for name in self.names]
        return pa.StructArray.from_arrays(values, fields=self._fields, mask=pa.array(indices < 0))

    def _present(self, images: pa.Table, indices: Numbers) -> Any:
        """Returns, for each change, the names of the columns that its before image has, or those that its after image has. `indices` has
        the index of this image in `images`, or -1 if the change has no such image. The result is NULL for an image with all columns, and if
        there is no image.
        """
        groups = [name for name in images.column_names if name.startswith(PRESENT)]
        if not groups:
            return pa.nulls(len(indices), pa.list_(pa.string()))
        bits = np.stack([np.asarray(images[name]) for name in groups], axis=1)
        kinds, of_image = np.unique(bits, axis=0, return_inverse=True)
        lists: Any = pa.array([self._named(kind.tolist()) for kind in kinds], pa.list_(pa.string()))
        found = of_image.reshape(-1)[np.maximum(indices, 0)]
        return lists.take(pa.array(found, mask=indices < 0))

    def _named(self, groups: Sequence[int]) -> list[str] | None:
        names = list(self.names)
        there = [name for at, name in enumerate(names) if groups[at // GROUP_COLUMNS] >> (at % GROUP_COLUMNS) & 1]
        return None if len(there) == len(names) else [self.names[name] for name in there]


def event_row(schema: pa.Schema, operation: str, order_key: int, commit_time_us: int, detail: str) -> pa.Table:
    """Returns a row about an event of the whole table, such as a TRUNCATE."""
    values: dict[str, Any] = {
        "operation": pa.array([operation]),
        "order_key": pa.array([order_key]),
        "row": pa.array([0]),
        "commit_time": pa.array([commit_time_us]).cast(COMMIT_TIME_TYPE),
        "detail": pa.array([detail or None], pa.string()),
    }
    columns = [values[field.name] if field.name in values else pa.nulls(1, field.type) for field in schema]
    return pa.table(columns, schema=schema)


def numbered(keys: Numbers, last_key: int, last_row: int) -> Numbers:
    """Numbers the changes of each transaction, beginning with 1. `last_key` and `last_row` are the order key and the number of the change
    before the first one in `keys`. If the first changes belong to the same transaction, their numbers continue after `last_row`.
    """
    begins = np.r_[True, keys[1:] != keys[:-1]]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
    numbers = np.arange(len(keys)) - first + 1
    goes_on = keys == last_key
    return np.asarray(numbers + np.where(goes_on, last_row, 0), np.int64)


def _flat(values: Any) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
