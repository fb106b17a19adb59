"""Turns row events of one table version into Avro messages, one per row, with Confluent's header. Called by the broker senders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sluice.cdc_engine.binlog.avro import kernel
from sluice.cdc_engine.binlog.avro.schema import AvroKind, avro_name, avro_type, table_schemas
from sluice.cdc_engine.binlog.column_types import buffer_of
from sluice.cdc_engine.binlog.entries.gtid_marks import name_of
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.rows import ShownRows, TableEntries
from sluice.cdc_engine.binlog.entries.units import Units
from sluice.cdc_engine.contracts import Block, Bytes, Int64s
from sluice.cdc_engine.errors import ConsumerStoppedError

MAGIC = b"\0"
REALS = {AvroKind.FLOAT: (pa.float32(), np.uint32), AvroKind.DOUBLE: (pa.float64(), np.uint64)}


@dataclasses.dataclass(frozen=True)
class SchemaIds:
    """The numbers that the registry gave to the schemas of a table. `key`: None for a table without a key."""

    value: int
    key: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class AvroMessages:
    """Messages in `data`: each has its key, up to `key_ends`, and its value, up to `ends`. `events`, `partitions`: those of each."""

    data: Bytes
    key_ends: Int64s
    ends: Int64s
    events: Int64s
    partitions: Int64s


class AvroTable:
    """Encodes the rows of one table version. Raises ConsumerStoppedError if a column of its key is not visible."""

    def __init__(self, table: TableEntries) -> None:
        version = table.version
        types = [avro_type(column, texts) for column, texts in zip(table.columns, table.texts, strict=True)]
        self.schemas = table_schemas(version.database, version.table, table.columns, types, table.key)
        keys = {name.lower() for name in table.key}
        hidden = sorted(keys - {column.name.lower() for column in table.columns})
        if hidden:
            raise ConsumerStoppedError(
                f"the key of {version.name} has columns that its messages do not have: {', '.join(hidden)}. Set `key` of the table "
                "in conf/ to visible columns"
            )
        reals = [number for number, each in enumerate(types) if each.kind in REALS]
        bits = np.full(len(types), -1, np.int64)
        bits[reals] = np.arange(len(reals))
        self._reals = [(number, types[number].kind) for number in reals]
        self._columns = kernel.AvroColumns(
            np.array([each.kind for each in types], np.int8),
            np.array([each.scale for each in types], np.int64),
            np.array([column.name.lower() in keys for column in table.columns], np.int8),
            bits,
            byte_pieces([encoded_text(avro_name(column.name)) for column in table.columns]),
        )
        self._table = encoded_text(version.database) + encoded_text(version.table)

    def messages(self, shown: ShownRows, units: Units, block: Block, ids: SchemaIds, now_ms: int) -> AvroMessages:
        """Returns one message per unit. `now_ms`: the field ts_ms."""
        events, facts = units.event, shown.facts
        gtids, marks = _gtids(block, facts.transactions[events])
        offsets, ms, servers = (np.ascontiguousarray(each[events]) for each in (facts.offsets, facts.ms, facts.servers))
        rows = kernel.AvroUnits(units.kind, units.image, offsets, ms, servers, gtids, marks)
        heads = [b"" if ids.key is None else _head(ids.key), _head(ids.value)]
        frame = byte_pieces([*heads, encoded_text(block.file), self._table, encoded_long(now_ms)])
        out, limbs = (
            np.empty(int(kernel.room_of(rows, self._columns, shown.values, frame)), np.uint8),
            np.empty(kernel.LIMBS, np.int64),
        )
        key_ends, ends = np.empty(len(events), np.int64), np.empty(len(events), np.int64)
        values = kernel.AvroValues(shown.values, self._bits(shown), limbs)
        kernel.put_messages(out, rows, self._columns, values, frame, key_ends, ends)
        return AvroMessages(out, key_ends, ends, events, units.partition)

    def _bits(self, shown: ShownRows) -> Int64s:
        """Returns the bits of FLOAT and DOUBLE values: such columns by images."""
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


def _gtids(block: Block, transactions: Int64s) -> tuple[Pieces, Int64s]:
    """Returns the encoded GTIDs of transactions, and the index of each transaction's GTID."""
    each, marks = np.unique(transactions, return_inverse=True)
    names = [name_of(block, transaction) for transaction in each.tolist()]
    return byte_pieces([b"\2" + encoded_text(name) if name else b"\0" for name in names]), marks.astype(np.int64)


def byte_pieces(pieces: Sequence[bytes]) -> Pieces:
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    return Pieces(np.frombuffer(b"".join(pieces) or b"\0", np.uint8), starts)


def _head(number: int) -> bytes:
    """Returns Confluent's header of a message."""
    return MAGIC + number.to_bytes(4, "big")


def encoded_text(text: str) -> bytes:
    data = text.encode()
    return encoded_long(len(data)) + data


def encoded_long(value: int) -> bytes:
    out = np.empty(10, np.uint8)
    return out[: int(_put_long(out, value))].tobytes()


def _put_long(out: Bytes, value: int) -> int:
    return int(kernel.put_long(out, 0, np.int64(value)))
