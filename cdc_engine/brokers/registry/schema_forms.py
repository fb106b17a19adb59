"""Defines the two formats whose schemas are in a registry, Avro and Protobuf: the rules for a new version of a schema, and the encoder of
rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.cdc_engine.binlog.entries.rows import TableEntries
from sluice.cdc_engine.binlog.rows_by_schema.avro_rows import AvroTable
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_rows import ProtobufTable
from sluice.cdc_engine.binlog.rows_by_schema.table import SchemaTable
from sluice.cdc_engine.brokers.registry.changed_columns import changed_columns
from sluice.cdc_engine.brokers.registry.field_numbers import Followed, unreadable, with_numbers

AVRO_TYPE, PROTOBUF_TYPE = "AVRO", "PROTOBUF"


@dataclasses.dataclass(frozen=True)
class SchemaForm:
    """A format whose schemas are in a registry.

    - `schema_type`: the format's name in registries.
    - `follow`: returns the schema to register, from the latest schema of the subject (or None) and the table's own schema.
    - `table`: makes the encoder of a table's rows.
    - `loss`: the end of the sentence "consumers with the new schema would …", which says what happens if a column gets another type.
    """

    schema_type: str
    follow: Callable[[str | None, str], Followed]
    table: Callable[[TableEntries], SchemaTable]
    loss: str


def follow_in_avro(latest: str | None, own: str) -> Followed:
    """Returns the table's schema `own` unchanged, together with the columns whose types differ from the subject's latest schema."""
    try:
        return Followed(own, tuple(changed_columns(latest, own)) if latest is not None else ())
    except ValueError as error:
        return Followed(own, other=unreadable(error))


AVRO = SchemaForm(AVRO_TYPE, follow_in_avro, AvroTable, "misread earlier messages")
PROTOBUF = SchemaForm(
    PROTOBUF_TYPE,
    with_numbers,
    ProtobufTable,
    "not see these columns in earlier messages, because they get new field numbers",
)
