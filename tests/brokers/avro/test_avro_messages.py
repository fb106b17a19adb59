"""Tests rows as Avro: fastavro, which shares no code with the kernels, reads them. Their values must equal the values of the same rows in
flat messages.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import numpy as np
import pytest

from sluice.cdc_engine.binlog.entries.texts import Display, column_texts
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.rows_by_schema import avro_kernel, kernel
from sluice.cdc_engine.binlog.rows_by_schema.avro_rows import encoded_long
from sluice.cdc_engine.binlog.rows_by_schema.avro_schema import avro_type, table_schemas
from sluice.cdc_engine.binlog.rows_by_schema.columns import schema_name
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.brokers.registry.memory import MemoryRegistry
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.instance.consumers.statements import described
from tests.brokers.fix_recorded import recorded

NOW_MS = 1_700_000_000_123
BY_TABLE = Rules(topic="others", dynamic_topic=r".*\..*", partition_hash=r".*\..*:$pk$", partitions_num=3)


def made(
    registry: MemoryRegistry,
    policies: Mapping[str, ValuePolicy] | None = None,
    keys: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Message]:
    maker = MessageMaker(
        Routing(BY_TABLE),
        Subjects(registry, by_record=True),
        display=Display(labels=True),
        describe=described,
        policies=policies,
        keys=keys,
        now_ms=lambda: NOW_MS,
    )
    return maker.messages(recorded(), 1)


def flat(policies: Mapping[str, ValuePolicy] | None = None) -> list[tuple[str, dict[str, Any], str]]:
    """Returns each row of the flat messages: its kind, its values, and its position."""
    maker = MessageMaker(Routing(BY_TABLE), "flat", display=Display(labels=True), describe=described, policies=policies)
    found = []
    for each in maker.messages(recorded(), 1):
        record = json.loads(each.body)
        rows = record["data"] or ()
        for row, old in zip(rows, record["old"] or [{}] * len(rows), strict=True):
            found.append((record["type"], {**record, **row, "old": old}, each.origin.position))
    return found


class Reader:
    """Reads messages as a consumer does: the number in the header names the schema."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._schemas = {number: fastavro.parse_schema(json.loads(text)) for text, number in registry.ids.items()}

    def read(self, data: bytes) -> Any:
        assert data[0] == 0
        body = io.BytesIO(data[5:])
        found = fastavro.schemaless_reader(body, self._schemas[int.from_bytes(data[1:5], "big")], None)
        assert not body.read()
        return found


def shown(value: Any, text: str) -> Any:
    """Returns `value` as a flat message writes it. `text` is the text in the flat message, which determines the length of a time and the
    form of a float.
    """
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dt.datetime):
        value = value.replace(tzinfo=None)
        return value.isoformat(" ", "microseconds")[: len(text)]
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return text if value == float(text) or value == np.float32(text).item() else value
    return str(value)


def same(name: str, value: Any, text: str) -> bool:
    """Returns whether `value` of an Avro row equals `text` of a flat message. The columns `span…` have type TIME, which Avro has in
    microseconds.
    """
    if name.startswith("span"):
        value, text = abs(value), str(kernel.clock_of(array(text), int(text.startswith("-")), len(text)))
    return bool(shown(value, text) == text)


def test_avro_rows_have_the_values_of_flat_messages() -> None:
    registry = MemoryRegistry()
    messages, reader, rows = made(registry), Reader(registry), flat()
    assert len(messages) == len(rows)
    kinds = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}
    seen = set()
    ordered = sorted(rows, key=lambda row: int(row[2].rpartition(":")[2]))
    found = sorted(messages, key=lambda each: int(each.origin.position.rpartition(":")[2]))
    for message, (kind, row, position) in zip(found, ordered, strict=True):
        envelope = reader.read(message.body)
        assert (kinds[envelope["op"]], envelope["ts_ms"]) == (kind, NOW_MS)
        source = envelope["source"]
        assert f"{source['file']}:{source['pos']}" == position
        assert (source["db"], source["table"], source["ts_ms"]) == (row["database"], row["table"], row["es"])
        assert (source["gtid"] or "") == message.origin.gtid
        assert (envelope["before"] is None, envelope["after"] is None) == (kind == "INSERT", kind == "DELETE")
        image = envelope["after"] or envelope["before"]
        images = [(image, {name: row[name] for name in row["mysqlType"]}, envelope["omitted"])]
        if kind == "UPDATE":
            images.append((envelope["before"], {**images[0][1], **row["old"]}, envelope["omitted_before"]))
        seen |= {*row["mysqlType"].values()}
        for values, texts, omitted in images:
            assert set(values) >= set(texts)
            for name, text in texts.items():
                if name in omitted:
                    assert values[name] is None
                elif text is not None and not text.startswith("0000-00-00"):
                    assert same(name, values[name], text), (name, row["mysqlType"][name])
        assert bool(message.key) == (row["table"] != "keyless")
        if message.key:
            key = reader.read(message.key)
            assert key == {name: image[name] for name in key}
            assert set(row["pkNames"] or key) == set(key)
    assert {"decimal(65,30)", "json", "blob", "enum('a','b')", "bit(40)", "datetime(6)", "bigint unsigned"} <= seen


def test_avro_row_without_all_columns_names_those_it_lacks() -> None:
    registry = MemoryRegistry()
    messages, reader = made(registry), Reader(registry)
    partial = [reader.read(each.body) for each in messages if each.topic.endswith("partial_images")]
    assert any(each["omitted"] for each in partial)
    assert any({*each["omitted_before"]} > {*each["omitted"]} for each in partial)
    for each in partial:
        image = each["after"] or each["before"]
        assert all(image[name] is None for name in each["omitted"])
    assert not any(reader.read(each.body)["omitted"] for each in messages if each.topic.endswith("everything"))


def test_avro_key_is_that_of_conf_and_its_columns_must_be_visible() -> None:
    registry = MemoryRegistry()
    messages, reader = made(registry, keys={"rehearsal.composed": ("a",)}), Reader(registry)
    own = [each for each in messages if each.topic.endswith("composed")]
    assert own
    assert all({*reader.read(each.key)} == {"a"} for each in own)
    with pytest.raises(ConsumerStoppedError, match=r"key of rehearsal\.composed .* leave out: hidden"):
        made(registry, keys={"rehearsal.composed": ("a", "hidden")})


def test_avro_masked_numbers_are_strings_and_filters_apply() -> None:
    rules = RowRules(condition="a > 3", masks=(ColumnMask(column="a", kind="hash", salt="salt"),))
    policies, registry = {"rehearsal.composed": ValuePolicy(rules=rules)}, MemoryRegistry()
    messages, reader = made(registry, policies), Reader(registry)
    own = [reader.read(each.body) for each in messages if each.topic.endswith("composed")]
    rows = [row for _, row, _ in flat(policies) if row["table"] == "composed"]
    assert own
    assert len(own) == len(rows)
    assert {(each["after"] or each["before"])["a"] for each in own} == {row["a"] for row in rows}


def number_of(encoded: bytes) -> int:
    found: Any = fastavro.schemaless_reader(io.BytesIO(encoded), "long", None)
    return int(found)


def unscaled(text: str, scale: int) -> int:
    with decimal.localcontext(prec=100):
        return int(decimal.Decimal(text).scaleb(scale))


def array(text: str) -> np.typing.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("value", [0, -1, 63, -64, 64, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)])
def test_avro_numbers_at_their_ends(value: int) -> None:
    assert number_of(encoded_long(value)) == value


@pytest.mark.parametrize("digits", [1, 2, 3, 5, 9, 10, 18, 19, 20, 38, 64, 65])
@pytest.mark.parametrize("sign", ["", "-"])
def test_avro_decimals_of_every_size(digits: int, sign: str) -> None:
    limbs, out = np.empty(kernel.LIMBS, np.int64), np.empty(64, np.uint8)
    texts = {*("9" * digits, "1" + "0" * (digits - 1)), str(2 ** (digits * 3)), str(2 ** (digits * 3) - 1), "0"}
    for text in texts:
        for scale, shown_text in ((0, text), (2, f"{text}.5"), (2, f"{text}.50")):
            if len(text) + scale > 65:
                continue
            given = array(sign + shown_text)
            size = int(avro_kernel.put_decimal(out, 0, given, 0, len(given), scale, limbs))
            body: Any = fastavro.schemaless_reader(io.BytesIO(out[:size].tobytes()), "bytes", None)
            assert int.from_bytes(body, "big", signed=True) == unscaled(sign + shown_text, scale)
            assert (
                len(body) == max(1, (int.from_bytes(body, "big", signed=True).bit_length() + 8) // 8) or body[0] == 0x80
            )


def test_avro_days_are_those_of_the_calendar_and_others_are_null() -> None:
    for ordinal in (*range(1, 800), *range(719_000, 739_000, 7), *range(3_651_000, 3_652_060)):
        day = dt.date.fromordinal(ordinal)
        assert kernel.days_of(array(day.isoformat()), 0) == ordinal - dt.date(1970, 1, 1).toordinal()
    for text in (
        "0000-00-00",
        "0000-01-01",
        "2021-02-29",
        "2021-02-31",
        "2021-04-31",
        "2021-00-01",
        "2021-13-01",
        "2021-01-00",
    ):
        assert kernel.days_of(array(text), 0) == kernel.NO_MOMENT


@pytest.mark.parametrize(
    ("text", "micros"), [("00:00:00", 0), ("838:59:59.000001", 3_020_399_000_001), ("01:02:03.5", 3_723_500_000)]
)
def test_avro_times_are_microseconds(text: str, micros: int) -> None:
    assert kernel.clock_of(array(text), 0, len(text)) == micros


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("plain_1", "plain_1"),
        ("1st", "_u0031st"),
        ("a-b", "a_u002db"),
        ("a_u002db", "a_u005fu002db"),
        ("größe", "gr_u00f6_u00dfe"),
        ("名", "_u540d"),
        ("a b.c", "a_u0020b_u002ec"),
    ],
)
def test_avro_names_escape_what_avro_does_not_accept(name: str, escaped: str) -> None:
    assert schema_name(name) == escaped
    column = Column(name=name, type_code=TypeCode.LONG, mysql_type="int")
    schemas = table_schemas("d", name, [column], [avro_type(column, column_texts(column))], [name])
    fastavro.parse_schema(json.loads(schemas.value))
    field = json.loads(schemas.key)["fields"][0]
    assert (field["name"], field.get("column", name)) == (escaped, name)


@pytest.mark.parametrize(
    ("column", "schema"),
    [
        (Column(name="a", type_code=TypeCode.LONG), "int"),
        (Column(name="a", type_code=TypeCode.INT24, unsigned=True), "int"),
        (Column(name="a", type_code=TypeCode.LONG, unsigned=True), "long"),
        (Column(name="a", type_code=TypeCode.LONGLONG), "long"),
        (Column(name="a", type_code=TypeCode.BIT, metadata=7 << 8 | 7), "long"),
        (
            Column(name="a", type_code=TypeCode.BIT, metadata=8 << 8),
            {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0},
        ),
        (Column(name="a", type_code=TypeCode.YEAR, mysql_type="year"), "int"),
        (Column(name="a", type_code=TypeCode.YEAR, mysql_type="char(64)"), "string"),
    ],
)
def test_avro_types_of_numbers(column: Column, schema: Any) -> None:
    assert avro_type(column, column_texts(column)).schema == schema
