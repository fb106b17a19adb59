"""Encodes the rows of one table version as Avro messages."""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.rows import TableEntries
from sluice.cdc_engine.binlog.rows_by_schema import avro_kernel, kernel
from sluice.cdc_engine.binlog.rows_by_schema.avro_schema import avro_type, table_schemas
from sluice.cdc_engine.binlog.rows_by_schema.columns import SchemaIds, schema_name
from sluice.cdc_engine.binlog.rows_by_schema.table import SchemaTable, Written, head_of
from sluice.cdc_engine.contracts import Bytes


class AvroTable(SchemaTable):
    """Encodes the rows of one table version as Avro messages."""

    def __init__(self, table: TableEntries) -> None:
        version = table.version
        types = [avro_type(column, texts) for column, texts in zip(table.columns, table.texts, strict=True)]
        names = [encoded_text(schema_name(column.name)) for column in table.columns]
        super().__init__(table, [each.kind for each in types], [each.scale for each in types], names)
        self.schemas = table_schemas(version.database, version.table, table.columns, types, table.key)
        self._table = encoded_text(version.database) + encoded_text(version.table)

    def frame(self, ids: SchemaIds, file: str, now_ms: int) -> list[bytes]:
        heads = [b"" if ids.key is None else head_of(ids.key), head_of(ids.value)]
        return [*heads, encoded_text(file), self._table, encoded_long(now_ms)]

    def gtid(self, name: str) -> bytes:
        return b"\2" + encoded_text(name) if name else b"\0"

    def put(
        self, written: Written, units: kernel.RowUnits, values: kernel.SchemaValues, frame: Pieces, ids: SchemaIds
    ) -> None:
        del ids
        avro_kernel.put_messages(written.out, units, self._columns, values, frame, written.key_ends, written.ends)


def encoded_text(text: str) -> bytes:
    data = text.encode()
    return encoded_long(len(data)) + data


def encoded_long(value: int) -> bytes:
    out = np.empty(10, np.uint8)
    return out[: int(_put_long(out, value))].tobytes()


def _put_long(out: Bytes, value: int) -> int:
    return int(kernel.put_long(out, 0, np.int64(value)))
