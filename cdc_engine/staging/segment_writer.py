"""Writes one segment of a table: collects record batches, and makes one Parquet file and the manifest's entry about it. Called by
`staging`.

Rows stay in memory until they fill a row group, and the file is opened for the first row group. So a batch with many small tables keeps no
files open, and a batch with a huge table has at most one row group in memory.
"""

from __future__ import annotations

import contextlib
import decimal
import itertools
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.batch_manifest.values import Bound, ChangesSegment
from sluice.cdc_engine.binlog.rows.decoder import COMMIT_TIME, OPERATION, ORDER_KEY, RowDecoder
from sluice.cdc_engine.binlog.rows.partial import with_presence
from sluice.cdc_engine.contracts import Int64s, Operation
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.parquet_files import ROW_GROUP_BYTES, ROW_GROUP_ROWS, WRITE_BATCH_ROWS, parquet_writer
from sluice.cdc_engine.staging.background_writer import BackgroundWriter
from sluice.cdc_engine.staging.moves import Moves, lacks_columns
from sluice.cdc_engine.staging.staged_columns import staged_columns

# The column with the number of an image among the table's images in the batch, beginning with 1. The number orders the images of a
# transaction.
ROW = "_sluice_row"
# The maximum number of keys that are kept in memory to find out whether all keys of a segment are different. If a segment has more keys,
# the keys are not compared, and the merge folds the segment.
UNIQUE_KEYS_MAX = 1 << 20


class _KeyFacts:
    """The minimum and the maximum of each key column in a segment, for integers, decimals and texts. For a key of one integer column, also
    whether all values of the key are different.
    """

    def __init__(self, decoder: RowDecoder) -> None:
        names = {name.lower(): index + 3 for index, name in enumerate(column.name for column in decoder.columns)}
        self.columns = [names[name.lower()] for name in decoder.key]
        self.bounds: list[tuple[Any, Any]] = [(None, None)] * len(self.columns)
        types = [decoder.schema.field(column).type for column in self.columns]
        self.bounded = [
            pa.types.is_integer(each) or pa.types.is_decimal(each) or pa.types.is_string(each) for each in types
        ]
        self.seen: list[Int64s] | None = [] if len(types) == 1 and pa.types.is_integer(types[0]) else None
        self.seen_count = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for index, column in enumerate(self.columns):
            if self.bounded[index]:
                self.bounds[index] = _wider(self.bounds[index], _range(batch.column(column)))
        if self.seen is not None:
            self._remember(batch.column(self.columns[0]))

    def _remember(self, keys: Any) -> None:
        self.seen_count += len(keys)
        if self.seen is None or keys.null_count or self.seen_count > UNIQUE_KEYS_MAX:
            self.seen = None
        else:
            self.seen.append(keys.to_numpy().astype(np.int64))

    def unique(self) -> bool:
        if not self.seen:
            return False
        keys = np.sort(np.concatenate(self.seen))  # Sorting is several times faster than np.unique, which hashes.
        return bool((np.diff(keys) != 0).all())


def _range(column: Any) -> dict[str, Any]:
    if pa.types.is_integer(column.type) and not column.null_count:
        values = column.to_numpy()
        return {"min": int(values.min()), "max": int(values.max())}
    found: Any = pc.min_max(column)
    return cast("dict[str, Any]", found.as_py())


def _wider(bounds: tuple[Any, Any], found: dict[str, Any]) -> tuple[Any, Any]:
    low, high = bounds
    if found["min"] is None:
        return bounds
    return (found["min"], found["max"]) if low is None else (min(low, found["min"]), max(high, found["max"]))


def _bound(value: Any) -> Bound:
    """Converts the minimum or maximum of a key column to the form that it has in the manifest. A decimal without decimal places (an
    unsigned bigint) becomes an integer. Returns None, which means no bound, for other decimals.
    """
    if isinstance(value, decimal.Decimal):
        return int(value) if value.as_tuple().exponent == 0 else None
    return value if isinstance(value, int | str) else None


class _NoMoves:
    """Replaces `Moves` in change logs, which need no columns that identify the row of each image. Returns record batches unchanged."""

    moves = 0

    def with_identity(self, batch: pa.RecordBatch, _first_row: int) -> pa.RecordBatch:
        return batch


class SegmentWriter:
    """Writes the rows of one decoder to `path`, as a segment. Call `add` in stream order, then `finish` or `discard`. `first_row` is the
    number of the segment's first row among the table's rows in the batch.

    With the first row that lacks columns, the segment becomes partial. With `follows_moves`, a partial segment has columns that identify
    the row of each image; a change log does not need them. `background` writes full row groups while the next rows are added, and the
    caller's thread writes the last row group. Without `background`, the caller's thread writes all row groups.
    """

    def __init__(
        self,
        path: Path,
        decoder: RowDecoder,
        first_row: int = 1,
        *,
        follows_moves: bool = True,
        background: BackgroundWriter | None = None,
    ) -> None:
        self.path, self.decoder, self.first_row = path, decoder, first_row
        self._background = background
        self._writes: list[Future[None]] = []  # Writes that are not finished, in the order of the file.
        self._follows_moves = follows_moves
        self._moves: Moves | _NoMoves | None = None  # None while the segment is not partial.
        self.pending_bytes = 0
        self.rows = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._counts = np.zeros(max(Operation) + 1, np.int64)
        self._order_keys: tuple[int, int] = (-1, -1)
        self._commit_times: tuple[int, int] = (np.iinfo(np.int64).max, 0)
        self._key = _KeyFacts(decoder)

    @property
    def next_row(self) -> int:
        """The number that the next added row gets."""
        return self.first_row + self.rows

    @property
    def last_order_key(self) -> int:
        """The order key of the last row that was added, or -1 if no row was added."""
        return self._order_keys[1]

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the next rows. Raises BinlogFormatError if the rows are not in the order of the binlog, because the merge relies on this
        order.
        """
        if self._moves is None and lacks_columns(batch):
            self._become_partial()
        order_keys = batch.column(ORDER_KEY).to_numpy()
        if order_keys[0] < self._order_keys[1] or (np.diff(order_keys) < 0).any():
            raise BinlogFormatError(
                f"rows of table {self.decoder.version.name} are not in the order of the binlog, which is a "
                "defect of Sluice: report it"
            )
        self._order_keys = (self._order_keys[0] if self.rows else int(order_keys[0]), int(order_keys[-1]))
        times = batch.column(COMMIT_TIME).view(pa.int64()).to_numpy()
        self._commit_times = (
            min(self._commit_times[0], int(times.min())),
            max(self._commit_times[1], int(times.max())),
        )
        self._counts += np.bincount(batch.column(OPERATION).to_numpy(), minlength=len(self._counts))
        self._key.add(batch)
        self._take(self._numbered(batch, self.next_row))
        self.rows += batch.num_rows
        if self._pending_rows >= ROW_GROUP_ROWS or self.pending_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def _numbered(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Returns a record batch with an added column that numbers its rows from `first_row` on. In a partial segment, also adds the
        columns that show which values are present, and the columns that identify the row of each image (`Moves`).
        """
        if self._moves is not None:
            batch = self._moves.with_identity(batch if lacks_columns(batch) else with_presence(batch), first_row)
        numbers = pa.array(np.arange(first_row, first_row + batch.num_rows, dtype=np.int64))
        return batch.append_column(pa.field(ROW, pa.int64(), False), numbers)

    def _take(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.pending_bytes += batch.nbytes

    def _become_partial(self) -> None:
        """Converts the rows that were added so far, which have all columns, to the format of a partial segment. So the segment can continue
        with rows that lack columns.
        """
        key = self.decoder.key
        self._moves = Moves(self.decoder.partial_schema, key) if self._follows_moves else _NoMoves()
        pending, self._pending, self._pending_rows, self.pending_bytes = self._pending, [], 0, 0
        row = self.first_row
        for batch in itertools.chain(self._written(), pending):
            self._take(self._numbered(batch.drop_columns([ROW]), row))
            row += batch.num_rows
            if self._pending_rows >= ROW_GROUP_ROWS or self.pending_bytes >= ROW_GROUP_BYTES:
                self.flush()

    def _written(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that were already written to the file, and removes the file."""
        self._await_writes()
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        given_up = self.path.rename(self.path.with_suffix(".whole"))
        with pq.ParquetFile(given_up) as file:
            yield from file.iter_batches(WRITE_BATCH_ROWS)
        given_up.unlink()

    def flush(self) -> None:
        """Writes the rows in memory as a row group. Raises OSError if this row group or an earlier one could not be written."""
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0
        if self._background is None:
            self._write(rows)
            return
        while self._writes and self._writes[0].done():
            self._writes.pop(0).result()
        self._writes.append(self._background.submit(partial(self._write, rows)))

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = parquet_writer(self.path, rows.schema, bounds=(ORDER_KEY,))
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def _await_writes(self) -> None:
        """Waits until all submitted row groups are written. Raises OSError if a write failed."""
        while self._writes:
            self._writes.pop(0).result()

    def _write_rest(self) -> None:
        """Writes the remaining rows in the caller's thread, because passing a few rows to another thread would take longer than writing
        them.
        """
        self._await_writes()
        self._background = None
        self.flush()

    def finish(self) -> ChangesSegment:
        """Writes the remaining rows and closes the file. Returns the segment's entry for the manifest."""
        self._write_rest()
        if self._writer is None:
            raise ValueError("a segment without rows has no file")
        self._writer.close()
        counts = {operation: int(self._counts[operation]) for operation in Operation}
        version = self.decoder.version
        return ChangesSegment(
            file=Path(self.path.name),
            size_bytes=self.path.stat().st_size,
            version=version.version,
            rows=self.rows,
            inserts=counts[Operation.INSERT],
            updates=counts[Operation.UPDATE_AFTER],
            deletes=counts[Operation.DELETE],
            key_changes=counts[Operation.UPDATE_BEFORE] if version.key else 0,
            unique_keys=self._key.unique(),
            first_order_key=self._order_keys[0],
            last_order_key=self._order_keys[1],
            first_commit_time_us=self._commit_times[0],
            last_commit_time_us=self._commit_times[1],
            key=self.decoder.key,
            key_min=tuple(_bound(low) for low, _ in self._key.bounds),
            key_max=tuple(_bound(high) for _, high in self._key.bounds),
            columns=staged_columns(self.decoder),
            partial=self._moves is not None,
            moves=self._moves.moves if self._moves is not None else 0,
        )

    def discard(self) -> None:
        """Drops the segment's rows in memory, and removes its file, which may be incomplete."""
        self._pending, self.pending_bytes = [], 0
        wait(self._writes)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self.path.unlink(missing_ok=True)
