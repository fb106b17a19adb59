"""Tests rows as Protobuf messages. Google's library, which shares no code with the kernels, parses the messages, and the values are
compared with those of the same rows in flat messages.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor

from sluice.cdc_engine.binlog.entries.kernel_arguments import ShownValues
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.protobuf_fields import encoded_varint
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.rows_by_schema import kernel, protobuf_kernel
from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_rows import WIRE_TYPES
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import ProtobufField, ProtobufMessage, ProtobufSchema
from sluice.cdc_engine.binlog.rows_by_schema.table import byte_pieces
from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.brokers.registry.memory import MemoryRegistry
from sluice.cdc_engine.brokers.registry.schema_forms import PROTOBUF
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.brokers.routing import Routing
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.instance.consumers.statements import described
from tests.brokers.avro.test_avro_messages import BY_TABLE, NOW_MS, flat
from tests.brokers.fix_recorded import recorded
from tests.brokers.protobuf_rows.compiled_schema import message_class

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  of a DATETIME, which has no time zone
MICROSECOND = dt.timedelta(microseconds=1)
TYPES = {
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_SFIXED64,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
}


def made(
    registry: MemoryRegistry,
    policies: Mapping[str, ValuePolicy] | None = None,
    keys: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Message]:
    maker = MessageMaker(
        Routing(BY_TABLE),
        Subjects(registry, PROTOBUF, by_record=True),
        display=Display(labels=True),
        describe=described,
        policies=policies,
        keys=keys,
        now_ms=lambda: NOW_MS,
    )
    return maker.messages(recorded(), 1)


def new_registry() -> MemoryRegistry:
    return MemoryRegistry(PROTOBUF.schema_type)


class Reader:
    """Reads messages as a consumer does: the number in the header names the schema."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._classes = {number: message_class(text) for text, number in registry.ids.items()}

    def read(self, data: bytes) -> Any:
        """Returns the parsed message. Requires that google's library would write the same bytes."""
        assert (data[0], data[5]) == (0, 0)
        kind = self._classes[int.from_bytes(data[1:5], "big")]
        found = kind.FromString(data[6:])
        assert found.SerializeToString(deterministic=True) == data[6:]
        return found


def values_of(message: Any) -> dict[str, tuple[int, Any]]:
    """Returns the type and the value of each column by the column's name, with None if the message lacks the value. A field whose name
    could not be the column's name has the column's name as its name in JSON.
    """
    return {
        field.json_name if not field.name.isascii() or "_u00" in field.name else field.name: (
            field.type,
            getattr(message, field.name) if message.HasField(field.name) else None,
        )
        for field in message.DESCRIPTOR.fields
    }


def text_of(kind: int, value: Any, like: str) -> str:
    """Returns a value as flat messages show it. `like` is the expected text. The result has the same form, for example as many digits."""
    if kind == FieldDescriptor.TYPE_BYTES:
        return str(value.decode("latin-1"))
    if kind == FieldDescriptor.TYPE_SINT32:
        return f"{EPOCH.date() + dt.timedelta(days=value)}"
    if kind in {FieldDescriptor.TYPE_SFIXED64, FieldDescriptor.TYPE_FIXED64}:
        return str((EPOCH + value * MICROSECOND).isoformat(" ", "microseconds")[: len(like)])
    if kind == FieldDescriptor.TYPE_SINT64:
        seconds, micros = divmod(abs(value), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
        return ("-" if value < 0 else "") + clock[: len(like.removeprefix("-"))]
    if kind in {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}:
        wanted = np.float32(like) if kind == FieldDescriptor.TYPE_FLOAT else float(like)
        return like if value == float(wanted) else repr(value)
    return str(value)


def test_protobuf_rows_have_the_values_of_flat_messages_and_the_bytes_of_googles_library() -> None:
    registry = new_registry()
    messages, rows = made(registry), flat()
    reader = Reader(registry)
    assert len(messages) == len(rows)
    kinds, seen = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}, set()
    ordered = sorted(rows, key=lambda row: int(row[2].rpartition(":")[2]))
    found = sorted(messages, key=lambda each: int(each.origin.position.rpartition(":")[2]))
    for message, (kind, row, position) in zip(found, ordered, strict=True):
        envelope = reader.read(message.body)
        source = envelope.source
        assert (kinds[envelope.op], envelope.ts_ms) == (kind, NOW_MS)
        assert f"{source.file}:{source.pos}" == position
        assert (source.db, source.table, source.ts_ms) == (row["database"], row["table"], row["es"])
        assert source.gtid == message.origin.gtid
        assert source.HasField("gtid") == bool(source.gtid)
        assert (envelope.HasField("before"), envelope.HasField("after")) == (kind != "INSERT", kind != "DELETE")
        image = values_of(envelope.after if kind != "DELETE" else envelope.before)
        images = [(image, {name: row[name] for name in row["mysqlType"]}, envelope.omitted)]
        if kind == "UPDATE":
            images.append((values_of(envelope.before), {**images[0][1], **row["old"]}, envelope.omitted_before))
        for values, texts, omitted in images:
            assert set(values) >= set(texts)
            for name, text in texts.items():
                type_code, value = values[name]
                if text is None or name in omitted or text.startswith("0000-00-00"):
                    assert value is None, name
                else:
                    seen.add(type_code)
                    assert text_of(type_code, value, text) == text, (name, row["mysqlType"][name])
        assert bool(message.key) == (row["table"] != "keyless")
        if message.key:
            key = values_of(reader.read(message.key))
            assert key == {name: image[name] for name in key}
            assert set(row["pkNames"] or key) == set(key)
    assert seen == TYPES


def test_protobuf_row_without_all_columns_names_those_it_lacks() -> None:
    registry = new_registry()
    messages = made(registry)
    reader = Reader(registry)
    partial = [reader.read(each.body) for each in messages if each.topic.endswith("partial_images")]
    assert any(each.omitted for each in partial)
    assert any({*each.omitted_before} > {*each.omitted} for each in partial)
    for each in partial:
        image = each.after if each.HasField("after") else each.before
        assert not any(image.HasField(name) for name in each.omitted)
    assert not any(reader.read(each.body).omitted for each in messages if each.topic.endswith("everything"))


def test_protobuf_key_is_that_of_conf_and_its_columns_must_be_visible() -> None:
    registry = new_registry()
    messages = made(registry, keys={"rehearsal.composed": ("a",)})
    reader = Reader(registry)
    own = [each for each in messages if each.topic.endswith("composed")]
    assert own
    assert all([field.name for field in reader.read(each.key).DESCRIPTOR.fields] == ["a"] for each in own)
    with pytest.raises(ConsumerStoppedError, match=r"key of rehearsal\.composed .* leave out: hidden"):
        made(registry, keys={"rehearsal.composed": ("a", "hidden")})


def test_protobuf_masked_numbers_are_strings_and_filters_apply() -> None:
    rules = RowRules(condition="a > 3", masks=(ColumnMask(column="a", kind="hash", salt="salt"),))
    policies, registry = {"rehearsal.composed": ValuePolicy(rules=rules)}, new_registry()
    messages = made(registry, policies)
    reader = Reader(registry)
    own = [reader.read(each.body) for each in messages if each.topic.endswith("composed")]
    rows = [row for _, row, _ in flat(policies) if row["table"] == "composed"]
    assert own
    assert len(own) == len(rows)
    assert {(each.after if each.HasField("after") else each.before).a for each in own} == {row["a"] for row in rows}


def test_protobuf_decimals_keep_their_scale() -> None:
    registry = new_registry()
    messages = made(registry)
    reader = Reader(registry)
    texts = {
        decimal.Decimal(value).as_tuple().exponent
        for each in messages
        for image in [reader.read(each.body).after]
        for field in image.DESCRIPTOR.fields
        if field.type == FieldDescriptor.TYPE_STRING and image.HasField(field.name)
        for value in [getattr(image, field.name)]
        if value.lstrip("-").replace(".", "").isdigit() and "." in value
    }
    assert -30 in texts


def array(text: str) -> np.typing.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_protobuf_message_moves_to_its_length(size: int) -> None:
    body = np.arange(size, dtype=np.uint32).astype(np.uint8)
    out = np.zeros(size + 10, np.uint8)
    out[1 + protobuf_kernel.LENGTH_BYTES :][:size] = body
    end = int(protobuf_kernel.put_length(out, 1, 1 + protobuf_kernel.LENGTH_BYTES + size))
    assert out[1:end].tobytes() == encoded_varint(size) + body.tobytes()


@pytest.mark.parametrize(
    ("kind", "type_name", "text"),
    [
        (ColumnKind.LONG, "int64", "-9223372036854775808"),
        (ColumnKind.LONG, "int64", "9223372036854775807"),
        (ColumnKind.LONG, "int64", str(kernel.NO_MOMENT)),
        (ColumnKind.INT, "int64", "0"),
        (ColumnKind.INT, "int64", "-1"),
        (ColumnKind.UNSIGNED, "uint64", "18446744073709551615"),
        (ColumnKind.UNSIGNED, "uint64", "9223372036854775808"),
        (ColumnKind.DATE, "sint32", "0001-01-01"),
        (ColumnKind.DATE, "sint32", "9999-12-31"),
        (ColumnKind.DATE, "sint32", "2021-02-31"),
        (ColumnKind.DATETIME, "sfixed64", "0001-01-01 00:00:00.000001"),
        (ColumnKind.DATETIME, "sfixed64", "9999-12-31 23:59:59.999999"),
        (ColumnKind.TIMESTAMP, "fixed64", "2038-01-19 03:14:07"),
        (ColumnKind.TIMESTAMP, "fixed64", "0000-00-00 00:00:00"),
        (ColumnKind.TIME, "sint64", "-838:59:59.000000"),
        (ColumnKind.DECIMAL, "string", "-0.10"),
        (ColumnKind.STRING, "string", ""),
        (ColumnKind.STRING, "string", "ж" * 100),
        (ColumnKind.BYTES, "bytes", "\x00\x7f\x80ÿ"),
    ],
)
def test_protobuf_values_at_their_ends(kind: ColumnKind, type_name: str, text: str) -> None:
    field = ProtobufField("c", type_name, 300, "optional")
    message = message_class(ProtobufSchema("p", (ProtobufMessage("M", (field,)),)).text)
    columns = kernel.RowColumns(
        np.array([kind], np.int8),
        np.zeros(1, np.int64),
        np.zeros(1, np.int8),
        np.full(1, -1, np.int64),
        byte_pieces([b"c"]),
    )
    given = array(text or " ")
    shown = ShownValues(
        np.zeros((1, 1), np.int64), np.full((1, 1), len(text.encode()), np.int64), np.zeros((1, 1), np.int8), given
    )
    values = kernel.SchemaValues(shown, np.zeros((0, 1), np.int64), np.empty(kernel.LIMBS, np.int64))
    keys = byte_pieces([encoded_varint(300 << 3 | WIRE_TYPES[type_name])])
    out = np.empty(len(given) + kernel.CELL_BYTES, np.uint8)
    end = int(protobuf_kernel.put_value(out, 0, columns, 0, 0, keys, values))
    found = message.FromString(out[:end].tobytes())
    assert found.SerializeToString() == out[:end].tobytes()
    if found.HasField("c"):
        assert text_of(found.DESCRIPTOR.fields[0].type, found.c, text) == text
    else:
        assert text in {"2021-02-31", "0000-00-00 00:00:00"}
