"""Encodes the rows of one table version as Protobuf messages."""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.rows import TableEntries
from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, encoded_varint, number_field
from sluice.cdc_engine.binlog.rows_by_schema import kernel, protobuf_kernel
from sluice.cdc_engine.binlog.rows_by_schema.columns import SchemaIds, column_type, schema_name
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_kernel import RowFields
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_schema import protobuf_schemas, rows_of
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import parsed
from sluice.cdc_engine.binlog.rows_by_schema.table import SchemaTable, Written, byte_pieces, head_of

FIRST_MESSAGE = b"\0"  # The message index of Confluent's wire format: 0 means the first message type of the schema.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
WIRE_TYPES = {
    "int64": VARINT,
    "uint64": VARINT,
    "sint32": VARINT,
    "sint64": VARINT,
    "sfixed64": FIXED64,
    "fixed64": FIXED64,
    "double": FIXED64,
    "float": FIXED32,
    "string": LENGTH,
    "bytes": LENGTH,
}


class ProtobufTable(SchemaTable):
    """Encodes the rows of one table version as Protobuf messages, with the field numbers of the registered schemas."""

    def __init__(self, table: TableEntries) -> None:
        version = table.version
        types = [column_type(column, texts) for column, texts in zip(table.columns, table.texts, strict=True)]
        kinds = [each.kind for each in types]
        self._names = [schema_name(column.name) for column in table.columns]
        names = [encoded_varint(len(name)) + name.encode() for name in self._names]
        super().__init__(table, kinds, [each.scale for each in types], names)
        self.schemas = protobuf_schemas(version.database, version.table, table.columns, kinds, table.key)
        self._table = bytes_field(6, version.database.encode()) + bytes_field(7, version.table.encode())
        self._texts, self._fields = ("", ""), (self._of(""), self._of(""))

    def frame(self, ids: SchemaIds, file: str, now_ms: int) -> list[bytes]:
        heads = [b"" if ids.key is None else head_of(ids.key) + FIRST_MESSAGE, head_of(ids.value) + FIRST_MESSAGE]
        return [*heads, bytes_field(1, file.encode()), self._table, number_field(5, now_ms)]

    def gtid(self, name: str) -> bytes:
        return bytes_field(3, name.encode())

    def put(
        self, written: Written, units: kernel.RowUnits, values: kernel.SchemaValues, frame: Pieces, ids: SchemaIds
    ) -> None:
        texts = (ids.key_text, ids.value_text)
        if texts != self._texts:
            self._texts, self._fields = texts, (self._of(ids.key_text), self._of(ids.value_text))
        ends = (written.key_ends, written.ends)
        protobuf_kernel.put_messages(written.out, units, self._columns, self._fields, values, frame, ends)

    def _of(self, schema: str) -> RowFields:
        """Returns the fields of the columns in a schema. Columns without a field in the schema are not encoded. `schema`: the text of the
        schema, or empty if no column is to be encoded.
        """
        fields = {field.name: field for field in rows_of(parsed(schema)).fields} if schema else {}
        own = [fields.get(name) for name in self._names]
        keys = [encoded_varint(each.number << 3 | WIRE_TYPES[each.type]) if each else b"" for each in own]
        order = sorted((each.number, column) for column, each in enumerate(own) if each)
        return RowFields(np.array([column for _, column in order], np.int64), byte_pieces(keys))
