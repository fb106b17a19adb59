"""Defines the formats that have schemas in a registry: how a schema follows the latest one of its subject, and what encodes the rows. Used
by `subjects` and `brokers.messages`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.cdc_engine.binlog.entries.rows import TableEntries
from sluice.cdc_engine.binlog.rows_by_schema.avro_rows import AvroTable
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_rows import ProtobufTable
from sluice.cdc_engine.binlog.rows_by_schema.table import SchemaTable
from sluice.cdc_engine.brokers.registry.changed_columns import changed_columns
from sluice.cdc_engine.brokers.registry.field_numbers import Followed, with_numbers

AVRO_TYPE, PROTOBUF_TYPE = "AVRO", "PROTOBUF"


@dataclasses.dataclass(frozen=True)
class SchemaForm:
    """A format. `schema_type`: its name in registries. `follow`: from the latest schema of a subject, if there is one, and a table's own
    schema. `loss`: what a column with another type means for consumers.
    """

    schema_type: str
    follow: Callable[[str | None, str], Followed]
    table: Callable[[TableEntries], SchemaTable]
    loss: str


def follow_in_avro(latest: str | None, own: str) -> Followed:
    """Returns the table's own schema, and the columns whose types differ from the latest one."""
    return Followed(own, tuple(changed_columns(latest, own)) if latest is not None else ())


AVRO = SchemaForm(AVRO_TYPE, follow_in_avro, AvroTable, "misread earlier messages")
PROTOBUF = SchemaForm(
    PROTOBUF_TYPE,
    with_numbers,
    ProtobufTable,
    "not see these columns in earlier messages, because they get new field numbers",
)
