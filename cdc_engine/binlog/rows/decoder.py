"""Decodes the row events of one table version into Arrow record batches. Called by `staging`, and by `entries.shown_rules` for row filters.

`RowDecoder` prepares the kernels' arguments for a table version. `RowDecoder.chunks` divides the rows of a block into chunks, and decodes
each chunk into one record batch. Chunks are small, so that the offsets and sizes of a chunk's values stay in the processor's caches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.cdc_engine import position
from sluice.cdc_engine.binlog.column_types import (
    ColumnType,
    TypeUnsupportedError,
    ValueRefusedError,
    Values,
    buffer_of,
    type_of,
)
from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN, current_rows, row_end
from sluice.cdc_engine.binlog.row_rules.rules import BoundRules
from sluice.cdc_engine.binlog.rows import diffs as rows_diffs
from sluice.cdc_engine.binlog.rows import locate as rows_locate
from sluice.cdc_engine.binlog.rows import locate_diffs as rows_locate_diffs
from sluice.cdc_engine.binlog.rows import locate_partial as rows_locate_partial
from sluice.cdc_engine.binlog.rows import partial as rows_partial
from sluice.cdc_engine.binlog.rows.kernel_arguments import ChunkMemory, ImageColumns, RowEvents, TableLayout
from sluice.cdc_engine.binlog.rows.refused_values import (
    DEFAULT_POLICY,
    QUARANTINE,
    REFUSED_VALUES_MAX,
    RefusedValue,
    ValuePolicy,
    refusals,
)
from sluice.cdc_engine.contracts import Block, Column, Int32s, Int64s, Operation, TableVersion
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from sluice.cdc_engine.states import TableState

OPERATION, ORDER_KEY, COMMIT_TIME = "_sluice_operation", "_sluice_order_key", "_sluice_commit_time"
COMMIT_TIME_TYPE = pa.timestamp("us", "UTC")
CHUNK_CELLS_MAX = 1 << 19  # A chunk has at most this many values. Their offsets and sizes take 8 MiB.
# A chunk has at most this many rows. A larger chunk would not fit into the processor's caches.
CHUNK_ROWS_MAX = 1 << 14
CHUNK_BYTES_MAX = 32 << 20  # A chunk ends with the image that reaches this number of bytes. So one image may be larger.


@dataclasses.dataclass(frozen=True, eq=False)
class _Events:
    """The row events of a block that are to be decoded, as contiguous arrays of the types that the kernels require."""

    block: Block
    located: RowEvents
    position: Int64s
    time_us: Int64s
    order_key: Int64s

    @classmethod
    def of(cls, block: Block, chosen: Int64s) -> _Events:
        return cls(
            block,
            row_events(block, chosen),
            np.ascontiguousarray(block.event_position[chosen], np.int64),
            np.ascontiguousarray(block.event_time_us[chosen], np.int64),
            position.order_keys(block.epoch, position.file_number(block.file), block.event_transaction_offset[chosen]),
        )


def row_events(block: Block, chosen: Int64s) -> RowEvents:
    """Returns the row events of a block with the indices `chosen`, as an argument for kernels."""
    return RowEvents(
        block.buffer,
        np.ascontiguousarray(block.event_offset[chosen], np.int64),
        np.ascontiguousarray(block.event_length[chosen], np.int64),
        np.ascontiguousarray(block.event_kind[chosen], np.int8),
        np.ascontiguousarray(block.event_version[chosen], np.int8),
    )


class ValueLocations:
    """Memory for the offsets and sizes of the values of one chunk. The next chunk reuses the memory, and decoders that never run at the
    same time can share it.
    """

    def __init__(self) -> None:
        self.starts, self.sizes = np.empty(CHUNK_CELLS_MAX, np.int64), np.empty(CHUNK_CELLS_MAX, np.int64)
        self.operation, self.image_event = np.empty(CHUNK_ROWS_MAX, np.int8), np.empty(CHUNK_ROWS_MAX, np.int32)

    def rows(self, columns: int) -> int:
        """Returns how many rows with `columns` columns fit into the memory."""
        return min(CHUNK_ROWS_MAX, CHUNK_CELLS_MAX // max(1, columns))

    def cells(self, columns: int) -> tuple[Int64s, Int64s]:
        """Returns (starts, sizes): two arrays of shape (columns, rows)."""
        rows = self.rows(columns)
        return self.starts[: columns * rows].reshape(columns, rows), self.sizes[: columns * rows].reshape(columns, rows)

    def memory(self, columns: int, differences: Int64s) -> ChunkMemory:
        """Returns this memory, as an argument for kernels that locate a chunk with `columns` columns. `differences`: the array for JSON
        differences.
        """
        rows, before = self.rows(columns), (np.empty((columns, 1), np.int64) for _ in range(2))
        values = LocatedValues(*self.cells(columns))
        return ChunkMemory(values, LocatedValues(*before), self.operation[:rows], self.image_event[:rows], differences)


class RowDecoder:
    """Decodes the row events of one table version.

    - `kept` (int32, ascending): indices of the columns to decode; None means all.
    - `nulls_in_key`: whether NULL is allowed in the key columns. True for a key that does not identify rows, such as the columns that a
      foreign key references.
    - `every_preimage`: whether the before image of an update becomes a row of its own if the update changes any column in `kept`.
    - `columns`, `types`, `schema`, `key`: the columns of the decoded rows, their types, the Arrow schema and the key. They include the
      effects of the policy's masks and transform, and the shard column.

    Without `every_preimage`, the before image of an update becomes a row only if the update changes the bytes of a key column. In a table
    without a key, every before image becomes a row. Raises TableStoppedError with the state TYPE_UNSUPPORTED if a column in `kept` cannot
    be decoded, and with SCHEMA_MISMATCH if a key column is not in `kept`.
    """

    def __init__(
        self,
        version: TableVersion,
        kept: Int32s | None = None,
        locations: ValueLocations | None = None,
        policy: ValuePolicy = DEFAULT_POLICY,
        *,
        nulls_in_key: bool = False,
        every_preimage: bool = False,
    ) -> None:
        self.version, self.policy, self._nulls_in_key = version, policy, nulls_in_key
        self._refused: list[RefusedValue] = []
        self._decoded = 0  # Number of rows decoded so far.
        # The values of the current chunk that cannot be decoded: slot, row, bytes and reason.
        self._found: list[tuple[int, int, bytes, str]] = []
        indices = list(range(len(version.columns))) if kept is None else kept.tolist()
        indices = [index for index in indices if version.columns[index].generated not in HIDDEN]
        corrected, wanted = tuple(policy.corrected(column) for column in version.columns), set(indices)
        self._columns = tuple(corrected[index] for index in indices)
        every = [self._type(column, index in wanted) for index, column in enumerate(corrected)]
        self._types = tuple(every[index] for index in indices)
        prefix = np.array([each.prefix_bytes for each in every], np.int8)
        width = np.array([each.width for each in every], np.int32)
        slot = np.full(len(every), -1, np.int32)
        slot[indices] = np.arange(len(self._columns), dtype=np.int32)
        ends = row_end(version.columns)
        if ends >= 0 and slot[ends] < 0:  # ROW END is not captured, but `current_rows` needs its values.
            slot[ends] = len(self._columns)
        self._ends = int(slot[ends]) if ends >= 0 else -1
        self._located = max(len(self._columns), self._ends + 1)
        self._key = self._compared = self._key_slots()
        # The kernels return the before image of an update if a column in `_compared` changes.
        if every_preimage and version.key:
            self._compared = np.arange(len(self._columns), dtype=np.int32)
        self._rules = BoundRules(policy.rules, version, self._columns, self._types) if policy.rules else None
        filters = self._rules is not None and self._rules.filters
        # The row filter needs every before image. The kernels return every before image if `paired` is empty.
        paired = self._compared[:0] if filters else self._compared
        self._layout = TableLayout(prefix, width, slot, paired)
        self._locations = locations or ValueLocations()
        self._starts, self._sizes = self._locations.cells(self._located)
        # True after the first event whose images omit columns. From then on, the slower kernel `locate_partial` locates the values.
        self._leaves_out = False
        scratch = (np.zeros(len(every), np.int8) for _ in range(3))
        self._images = ImageColumns(rows_partial.facts_of(corrected, version.key, slot), *scratch)
        self._differences = rows_diffs.room(self._located)
        self._memory = self._locations.memory(self._located, self._differences)
        self._schema = _schema(self._columns, self._types)
        self.columns, self.types, self.schema = self._columns, self._types, self._schema
        if self._rules is not None:
            self.columns, self.types = self._rules.shown_columns, self._rules.shown_types
            self.schema = _schema(self.columns, self.types)
        self._shown = self.schema
        self._shown_partial = rows_partial.partial_schema(self._shown)
        self.key = version.key
        if (shard := policy.shard) is not None:
            shard.refuse_taken(version, self.columns)
            self.columns, self.types = (*self.columns, shard.declared()), (*self.types, shard.type())
            self.schema, self.key = _schema(self.columns, self.types), shard.key(version.key)
        self.partial_schema = rows_partial.partial_schema(self.schema)

    def chunks(self, block: Block, chosen: Int64s) -> Iterator[pa.RecordBatch]:
        """Yields the rows of row events as record batches, in stream order. `chosen` (int64, ascending): indices of row events in `block`,
        all of this table version. A batch has `self.schema`, or `self.partial_schema` if a row omits columns whose values only the lake
        has.

        Raises BinlogFormatError for bytes that are not row images. Raises TableStoppedError for rows that cannot be decoded. The state of
        the error is SCHEMA_MISMATCH for a column count that differs from the schema's, IMAGE_NOT_FULL for omitted columns that cannot be
        filled, KEY_NULL for NULL in a key column, and TYPE_UNSUPPORTED for a value that cannot be decoded.
        """
        if not len(chosen):
            return
        events = _Events.of(block, chosen)
        cursor, status = np.zeros(5, np.int64), rows_locate.FULL
        while status == rows_locate.FULL:
            status = self._locate_any(events, cursor)
            if status not in (rows_locate.DONE, rows_locate.FULL):
                raise self._refusal(events, cursor, status)
            rows = int(cursor[2])
            if rows and self._ends >= 0:
                rows = self._keep_current_rows(events, rows)
            if rows:
                batch = self._batch(events, rows, self._differences[:, : cursor[4]])
                if self._rules is not None:
                    batch = self._ruled(batch, events, self._rules)
                if batch.num_rows:
                    shard = self.policy.shard
                    yield batch if shard is None else shard.inserted_into(batch, len(self._shown))

    def events_of(self, rows: int) -> Int32s:
        """Returns, for each row of the last batch that `chunks` yielded, the index of its row event in the argument `chosen` of `chunks`.
        `rows`: the number of rows of the batch.
        """
        return self._locations.image_event[:rows].copy()

    def take_refused(self) -> list[RefusedValue]:
        """Returns the values that the policy "quarantine" replaced by NULL since the last call."""
        taken, self._refused = self._refused, []
        return taken

    def shown_fill(self, column: str, text: str | None) -> str | None:
        """Applies `charsets` and the column's mask to the default value that existing rows got when the column was added to the table.
        `text` and the result have the form of `contracts.Column.default`. Raises ValueError if `text` does not fit the charset.
        """
        if text is not None:
            declared = next(each for each in self.version.columns if each.name == column)
            text = self.policy.corrected_text(declared, text)
        mask = self._rules.mask_of(column) if self._rules is not None else None
        if mask is None or text is None:
            return text
        read = next(each for each, known in zip(self._types, self._columns, strict=True) if known.name == column)
        return mask.shown_bytes(text) if pa.types.is_binary(read.arrow) else mask.shown_text(text)

    def _type(self, column: Column, wanted: bool) -> ColumnType:
        """Returns the type of a column. `wanted`: whether the column's values are decoded. If `wanted` is False, only the layout of the
        values is used, so an unsupported charset or unknown labels are no error.
        """
        try:
            stepped_over = column if wanted else dataclasses.replace(column, charset="", labels=("",))
            return type_of(stepped_over, self.policy.zero_dates)
        except TypeUnsupportedError as error:
            raise TableStoppedError(
                self.version.database, self.version.table, TableState.TYPE_UNSUPPORTED, str(error)
            ) from None

    def _key_slots(self) -> Int32s:
        names = [column.name.lower() for column in self._columns]
        missing = [name for name in self.version.key if name.lower() not in names]
        if missing:
            reason = f"the key column {missing[0]} is not among the captured columns of the table; correct the key or the column filter"
            raise TableStoppedError(self.version.database, self.version.table, TableState.SCHEMA_MISMATCH, reason)
        return np.array([names.index(name.lower()) for name in self.version.key], np.int32)

    def _locate_any(self, events: _Events, cursor: Int64s) -> int:
        """Locates the values of the next chunk. Uses the fast kernel until the images of an event omit columns. From that chunk on, uses
        the slower kernel.
        """
        begun = cursor.copy()
        status = rows_locate.IMAGE_NOT_FULL if self._leaves_out else self._locate(events, cursor)
        if status == rows_locate.IMAGE_NOT_FULL:
            self._leaves_out = True
            cursor[:] = begun
            status = self._locate_partial(events, cursor)
        return status

    def _locate_partial(self, events: _Events, cursor: Int64s) -> int:
        status: int = rows_locate_partial.locate_partial(
            events.located, self._layout, self._images, cursor, CHUNK_BYTES_MAX, self._memory
        )
        return status

    def _locate(self, events: _Events, cursor: Int64s) -> int:
        status: int = rows_locate.locate(events.located, self._layout, cursor, CHUNK_BYTES_MAX, self._memory)
        return status

    def _batch(self, events: _Events, rows: int, differences: Int64s) -> pa.RecordBatch:
        locations = self._locations
        event, operation = locations.image_event[:rows], locations.operation[:rows].copy()
        offset = events.position[event]
        absent = rows_partial.absences(self._starts[: len(self._columns), :rows]) if self._leaves_out else None
        arrays: list[AnyArray] = [
            pa.array(operation),
            pa.array(events.order_key[event]),
            pa.Array.from_buffers(COMMIT_TIME_TYPE, rows, [None, buffer_of(events.time_us[event])]),
            *(self._column(slot, events, offset, differences) for slot in range(len(self._columns))),
        ]
        if self._found:
            self._refused += self._described(events, offset, arrays)
            if len(self._refused) > REFUSED_VALUES_MAX:
                raise self._too_many_refused()
        self._decoded += rows
        inserted = np.zeros((0, rows), bool) if absent is None else absent & (operation == Operation.INSERT)
        for slot in np.flatnonzero(inserted.any(axis=1)).tolist():
            arrays[slot + 3] = self._with_default(slot, arrays[slot + 3], inserted[slot])
        if not self._nulls_in_key:
            self._refuse_null_keys(events, offset, arrays)
        if absent is None:
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        batch, left_out = pa.RecordBatch.from_arrays(arrays, schema=self._schema), absent & ~inserted
        return rows_partial.with_presence(batch, left_out) if left_out.any() else batch

    def _ruled(self, batch: pa.RecordBatch, events: _Events, rules: BoundRules) -> pa.RecordBatch:
        """Applies the row filter, the masks and the transform to a record batch. Returns the rows that remain, and moves the entries of
        these rows to the beginning of `ValueLocations.image_event`, from which `events_of` reads.
        """
        ours, arrays = len(self._columns), batch.columns
        if rules.needs_whole and batch.num_columns > len(self._schema):
            raise self._not_whole(f"{events.block.file}:{int(events.position[self._locations.image_event[0]])}")
        left, now, shown = rules.streamed(batch.column(0).to_numpy(), arrays[3 : 3 + ours], self._compared.tolist())
        marks = arrays[:3]
        if left is not None:
            self._locations.image_event[: int(left.sum())] = self._locations.image_event[: len(left)][left]
            marks = [each.filter(pa.array(left)) for each in (pa.array(now), *arrays[1:3])]
        schema = self._shown if len(arrays) == 3 + ours else self._shown_partial
        return pa.RecordBatch.from_arrays([*marks, *shown, *arrays[3 + ours :]], schema=schema)

    def _not_whole(self, where: str) -> TableStoppedError:
        how = (
            "filters the rows of the table (`rows`)"
            if self.policy.rules.condition
            else "transforms the rows of the table"
        )
        reason = (
            f"the row event at {where} leaves columns out, but conf/ {how}, and this needs all columns of each row; "
            "set binlog_row_image=FULL on the source"
        )
        return TableStoppedError(self.version.database, self.version.table, TableState.IMAGE_NOT_FULL, reason)

    def _keep_current_rows(self, events: _Events, rows: int) -> int:
        """Drops the located rows that are historical rows of a system-versioned table, before their values are decoded. Returns the number
        of rows that remain.
        """
        locations = self._locations
        starts = self._starts[self._ends, :rows]
        now = current_rows(locations.operation[:rows], events.block.buffer, starts, keyed=bool(self.version.key))
        kept = int(now.sum())
        for each in (self._starts, self._sizes):
            each[:, :kept] = each[:, :rows][:, now]
        for of_rows in (locations.operation, locations.image_event):
            of_rows[:kept] = of_rows[:rows][now]
        return kept

    def _refuse_null_keys(self, events: _Events, offset: Int64s, arrays: list[AnyArray]) -> None:
        """Raises TableStoppedError if a key column is NULL in a decoded row, because several rows of the source can have NULL in this
        column, and would become one row of the lake.
        """
        for slot in self._key.tolist():
            nulls = arrays[slot + 3]
            if not nulls.null_count:
                continue
            row = int(np.flatnonzero(nulls.is_null().to_numpy(zero_copy_only=False))[0])
            raise TableStoppedError(
                self.version.database,
                self.version.table,
                TableState.KEY_NULL,
                rows_partial.key_null(
                    self._columns[slot],
                    f"{events.block.file}:{offset[row]}",
                    in_source=self._starts[slot, row] < 0,
                ),
            )

    def _column(self, slot: int, events: _Events, offset: Int64s, differences: Int64s) -> AnyArray:
        rows = len(offset)
        values = Values(events.block.buffer, self._starts[slot, :rows], self._sizes[slot, :rows])
        own = rows_diffs.of_column(differences, slot)
        if own.shape[1]:
            return self._changed_documents(slot, values, own, events, offset)
        return self._finished(slot, values, events, offset)

    def _changed_documents(
        self, slot: int, values: Values, differences: Int64s, events: _Events, offset: Int64s
    ) -> AnyArray:
        """Decodes a JSON column in which some values are logged as differences from the document in the before image. If a difference
        cannot be applied, the new document is unknown, and the table stops.
        """
        try:
            texts = rows_diffs.documents(values, differences)
        except ValueRefusedError as error:
            raise self._type_unsupported(slot, events, int(offset[error.row]), error.reason) from None
        others = self._finished(slot, rows_diffs.without(values, differences), events, offset)
        return rows_diffs.joined(others, differences, texts)

    def _finished(self, slot: int, values: Values, events: _Events, offset: Int64s) -> AnyArray:
        try:
            return self._types[slot].finish(values)
        except ValueRefusedError as error:
            if self.policy.undecodable == QUARANTINE and slot not in self._key:
                return self._without_refused(slot, values)
            raise self._type_unsupported(slot, events, int(offset[error.row]), error.reason) from None

    def _type_unsupported(self, slot: int, events: _Events, offset: int, why: str) -> TableStoppedError:
        column = self._columns[slot]
        why = self.policy.rules.shown_reason(column.name, why)
        reason = f"the value of column {column.name} ({column.mysql_type}) in a row of the event at {events.block.file}:{offset} {why}"
        return TableStoppedError(self.version.database, self.version.table, TableState.TYPE_UNSUPPORTED, reason)

    def _without_refused(self, slot: int, values: Values) -> AnyArray:
        """Decodes a column with NULL in place of each value that cannot be decoded. Adds these values to `_found`, from which `_described`
        makes RefusedValue objects.
        """
        finish = self._types[slot].finish
        found = refusals(values, finish)
        self._found += [(slot, *each) for each in found]
        starts, sizes = values.starts.copy(), values.sizes.copy()
        rows = [row for row, _, _ in found]
        starts[rows], sizes[rows] = -1, 0
        return finish(Values(values.buffer, starts, sizes))

    def _described(self, events: _Events, offset: Int64s, arrays: list[AnyArray]) -> list[RefusedValue]:
        found, self._found = self._found, []
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema).take(pa.array([row for _, row, _, _ in found]))
        described = zip(found, rows.select(self._schema.names[:3]).to_pylist(), self._keys(rows), strict=True)
        return [
            RefusedValue(
                column=self._columns[slot],
                raw=raw,
                reason=reason,
                file=events.block.file,
                offset=int(offset[row]),
                order_key=meta[ORDER_KEY],
                image=self._decoded + row,
                operation=meta[OPERATION],
                commit_time=meta[COMMIT_TIME],
                key=key,
            )
            for (slot, row, raw, reason), meta, key in described
        ]

    def _keys(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        slots = self._key.tolist() or range(len(self._columns))
        return rows.select([self._columns[slot].name for slot in slots]).to_pylist()

    def _too_many_refused(self) -> TableStoppedError:
        last = self._refused[-1]
        reason = (
            f"more than {REFUSED_VALUES_MAX} values of a batch cannot be decoded, the last at "
            f"{last.file}:{last.offset} in column {last.column.name}: the value {last.reason}; correct the "
            "charset of the column in `charsets` of the table"
        )
        return TableStoppedError(self.version.database, self.version.table, TableState.TYPE_UNSUPPORTED, reason)

    def _with_default(self, slot: int, array: AnyArray, chosen: rows_partial.Mask) -> AnyArray:
        column, each = self._columns[slot], self._types[slot]
        try:
            return rows_partial.with_default(array, chosen, column.default[0], each)
        except ValueError:
            reason = (
                f"a row image omits column {column.name}, and the default {column.default[0]!r} of the column cannot be read "
                f"as {each.spark}; set binlog_row_image=FULL on the source"
            )
            raise TableStoppedError(
                self.version.database, self.version.table, TableState.IMAGE_NOT_FULL, reason
            ) from None

    def _refusal(self, events: _Events, cursor: Int64s, status: int) -> BinlogFormatError | TableStoppedError:
        file, offset = events.block.file, int(events.position[cursor[0]])
        if status == rows_locate.WRONG_COLUMN_COUNT:
            reason = f"the row event at {file}:{offset} does not have the {len(self.version.columns)} columns of the schema history"
            return TableStoppedError(self.version.database, self.version.table, TableState.SCHEMA_MISMATCH, reason)
        if status >= rows_locate_partial.KEY_ABSENT and self._rules is not None and self._rules.needs_whole:
            return self._not_whole(f"{file}:{offset}")
        if status >= rows_locate_partial.KEY_ABSENT:
            reason = rows_partial.refusal(status, self.version.columns[cursor[3]], f"{file}:{offset}")
            return TableStoppedError(self.version.database, self.version.table, TableState.IMAGE_NOT_FULL, reason)
        if status == rows_locate_diffs.OPTIONS_UNKNOWN:
            what = f"a row of table {self.version.name} has value options that Sluice does not know"
            return BinlogFormatError(f"{what}: SET GLOBAL binlog_row_value_options = '' on the source", file, offset)
        return BinlogFormatError(f"a row event of table {self.version.name} ends within a value", file, offset)


def _schema(columns: tuple[Column, ...], types: tuple[ColumnType, ...]) -> pa.Schema:
    """Returns the schema of decoded rows: Sluice's columns OPERATION, ORDER_KEY and COMMIT_TIME, then the table's columns."""
    meta = [
        pa.field(OPERATION, pa.int8(), False),
        pa.field(ORDER_KEY, pa.int64(), False),
        pa.field(COMMIT_TIME, COMMIT_TIME_TYPE, False),
    ]
    fields = [pa.field(column.name, each.arrow) for column, each in zip(columns, types, strict=True)]
    return pa.schema([*meta, *fields])
