"""Implements a schema registry in memory, for tests and for `instance.rehearsal`, which compiles the kernels before the first batch. The
registry passes the same tests as real registries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import ProtobufSchema, parsed
from sluice.cdc_engine.brokers.registry.client import AVRO_TYPE, VERSIONS_MAX, incompatible
from sluice.cdc_engine.errors import PublishError

WHERE = "the schema registry in memory"
PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


class MemoryRegistry:
    """A schema registry in memory (implements `SchemaRegistry`). While `away` is set, the registry does not answer. `requests` is the
    number of requests so far. `unchecked` are the subjects with compatibility NONE.

    The registry checks the compatibility BACKWARD in the respects in which Sluice's schemas can differ: names of records, added fields, and
    types of fields. Like real registries, it ignores logical types of Avro. Like Apicurio, it requires that a new Protobuf schema has all
    fields of the subject's latest schema.
    """

    def __init__(self, schema_type: str = AVRO_TYPE) -> None:
        self.where, self.unchecked = WHERE, set[str]()
        self._reads = _reads_avro if schema_type == AVRO_TYPE else _reads_protobuf
        self.versions: dict[str, list[str]] = {}
        self.away, self.requests = False, 0
        self.ids: dict[str, int] = {}

    def known(self, subject: str, schema: str) -> int | None:
        return self.ids[schema] if schema in self._versions(subject) else None

    def latest(self, subject: str) -> str | None:
        known = self._versions(subject)
        return known[-1] if known else None

    def earlier(self, subject: str) -> Iterator[str]:
        return iter(self._versions(subject)[-2 : -2 - VERSIONS_MAX : -1])

    def register(self, subject: str, schema: str) -> int:
        known = self._versions(subject)
        if schema not in known:
            if known and subject not in self.unchecked and not self._reads(schema, known[-1]):
                raise incompatible(WHERE, subject, "")
            self.versions.setdefault(subject, []).append(schema)
        return self.ids.setdefault(schema, len(self.ids) + 1)

    def _versions(self, subject: str) -> list[str]:
        self.requests += 1
        if self.away:
            raise PublishError(f"{WHERE} does not answer: Sluice sends no message until the registry answers")
        return self.versions.get(subject, [])


def _reads_avro(reader: str, writer: str) -> bool:
    return _reads(json.loads(reader), json.loads(writer))


def _reads_protobuf(reader: str, writer: str) -> bool:
    """Returns whether the schema `reader` has all messages and fields of `writer`."""
    return _fields(parsed(reader)) >= _fields(parsed(writer))


def _fields(schema: ProtobufSchema) -> set[tuple[str, str, int, str]]:
    return {(each.name, field.name, field.number, field.type) for each in schema.messages for field in each.fields}


def _reads(reader: Any, writer: Any) -> bool:
    """Returns whether data of the Avro schema `writer` can be read with the Avro schema `reader`."""
    if isinstance(reader, list) and isinstance(writer, list):
        return all(any(_reads(each, other) for each in reader) for other in writer)
    kinds = tuple(each["type"] if isinstance(each, dict) else each for each in (writer, reader))
    if kinds != ("record", "record"):
        return kinds[0] == kinds[1] or kinds in PROMOTIONS
    if any(reader.get(each) != writer.get(each) for each in ("name", "namespace")):
        return False
    fields = {field["name"]: field for field in writer.get("fields", ())}
    return all(
        _reads(field["type"], fields[field["name"]]["type"]) if field["name"] in fields else "default" in field
        for field in reader.get("fields", ())
    )
