"""Defines the base class that encodes row events of one table version as messages with a schema. Each changed row becomes one message. Each
format, Avro and Protobuf, has a subclass. Called by `brokers.messages`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.column_types import buffer_of
from sluice.cdc_engine.binlog.entries.gtid_marks import name_of
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.rows import ShownRows, TableEntries
from sluice.cdc_engine.binlog.entries.units import Units
from sluice.cdc_engine.binlog.rows_by_schema import kernel
from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind, SchemaIds, TableSchemas, is_key
from sluice.cdc_engine.contracts import Block, Bytes, Int64s
from sluice.cdc_engine.errors import ConsumerStoppedError

MAGIC = b"\0"

REALS = {ColumnKind.FLOAT: (pa.float32(), np.uint32), ColumnKind.DOUBLE: (pa.float64(), np.uint64)}


@dataclasses.dataclass(frozen=True, eq=False)
class SchemaMessages:
    """Encoded messages, back to back in `data`. A message consists of a key and a value. `key_ends`, `ends`: where the key and the value of
    each message end in `data`. `events`, `partitions`: the index of the row event and the partition of each message.
    """

    data: Bytes
    key_ends: Int64s
    ends: Int64s
    events: Int64s
    partitions: Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """The arrays that a format's kernel fills: `out` with the messages, `key_ends` with the ends of the keys in `out`, and `ends` with the
    ends of the values.
    """

    out: Bytes
    key_ends: Int64s
    ends: Int64s


class SchemaTable(abc.ABC):
    """Encodes the rows of one table version. `kinds`, `scales`, `names`: one entry per column. The names are already encoded in the format
    of the messages. Raises ConsumerStoppedError if the messages omit a key column.
    """

    schemas: TableSchemas

    def __init__(
        self, table: TableEntries, kinds: Sequence[ColumnKind], scales: Sequence[int], names: Sequence[bytes]
    ) -> None:
        _refuse_hidden_keys(table)
        reals = [number for number, kind in enumerate(kinds) if kind in REALS]
        bits = np.full(len(kinds), -1, np.int64)
        bits[reals] = np.arange(len(reals))
        self._reals = [(number, kinds[number]) for number in reals]
        keys = np.array(is_key(table.columns, table.key), np.int8)
        self._columns = kernel.RowColumns(
            np.array(kinds, np.int8), np.array(scales, np.int64), keys, bits, byte_pieces(names)
        )

    def messages(self, shown: ShownRows, units: Units, block: Block, ids: SchemaIds, now_ms: int) -> SchemaMessages:
        """Returns one message for each inserted, updated or deleted row (unit). `now_ms`: the value of the messages' field ts_ms, in
        milliseconds since 1970.
        """
        events, facts = units.event, shown.facts
        gtids, marks = self._gtids(block, facts.transactions[events])
        offsets, ms, servers = (np.ascontiguousarray(each[events]) for each in (facts.offsets, facts.ms, facts.servers))
        rows = kernel.RowUnits(units.kind, units.image, offsets, ms, servers, gtids, marks)
        frame = byte_pieces(self.frame(ids, block.file, now_ms))
        room = int(kernel.room_of(rows, self._columns, shown.values, frame))
        written = Written(np.empty(room, np.uint8), *(np.empty(len(events), np.int64) for _ in range(2)))
        values = kernel.SchemaValues(shown.values, self._bits(shown), np.empty(kernel.LIMBS, np.int64))
        self.put(written, rows, values, frame, ids)
        return SchemaMessages(written.out, written.key_ends, written.ends, events, units.partition)

    @abc.abstractmethod
    def frame(self, ids: SchemaIds, file: str, now_ms: int) -> list[bytes]:
        """Returns the encoded parts that are the same in all messages: header of the key, header of the value, binlog file, table,
        ts_ms.
        """

    @abc.abstractmethod
    def gtid(self, name: str) -> bytes:
        """Encodes the field `gtid`. `name`: the GTID, or empty if the transaction has none."""

    @abc.abstractmethod
    def put(
        self, written: Written, units: kernel.RowUnits, values: kernel.SchemaValues, frame: Pieces, ids: SchemaIds
    ) -> None:
        """Calls the format's kernel, which writes the messages to `written`."""

    def _gtids(self, block: Block, transactions: Int64s) -> tuple[Pieces, Int64s]:
        """Returns (encoded GTIDs, for each transaction the index of its GTID in the encoded GTIDs)."""
        each, marks = np.unique(transactions, return_inverse=True)
        names = [name_of(block, transaction) for transaction in each.tolist()]
        return byte_pieces([self.gtid(name) for name in names]), marks.astype(np.int64)

    def _bits(self, shown: ShownRows) -> Int64s:
        """Parses the texts of FLOAT and DOUBLE columns. Returns the bits of the numbers (shape: columns, images)."""
        values, count = shown.values, shown.sizes.shape[1]
        found = np.zeros((len(self._reals), count), np.int64)
        for row, (column, kind) in enumerate(self._reals):
            offsets = np.empty(count + 1, np.int64)
            data = np.empty(int(np.maximum(shown.sizes[column], 0).sum()), np.uint8)
            kernel.gather_shown(values, column, offsets, data)
            empty = pa.array(shown.sizes[column] < 0)
            texts = pa.LargeStringArray.from_buffers(count, buffer_of(offsets), buffer_of(data))
            wanted, bits = REALS[kind]
            numbers = pa.compute.if_else(empty, "0", texts).cast(wanted)
            found[row] = numbers.to_numpy(zero_copy_only=False).view(bits)
        return found


def byte_pieces(pieces: Sequence[bytes]) -> Pieces:
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    return Pieces(np.frombuffer(b"".join(pieces) or b"\0", np.uint8), starts)


def head_of(number: int) -> bytes:
    """Returns the header of a key or value in Confluent's wire format: a zero byte and the schema's id."""
    return MAGIC + number.to_bytes(4, "big")


def _refuse_hidden_keys(table: TableEntries) -> None:
    hidden = sorted({name.lower() for name in table.key} - {column.name.lower() for column in table.columns})
    if hidden:
        raise ConsumerStoppedError(
            f"the key of {table.version.name} has columns that messages of the table leave out: "
            f"{', '.join(hidden)}. Set `key` of the table in conf/ to columns that the messages contain"
        )
