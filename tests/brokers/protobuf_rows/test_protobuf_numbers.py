"""Tests that field numbers keep their meaning over schema changes, and that schemas are read in every form that a registry may return."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

from sluice.cdc_engine.binlog.entries.texts import column_texts
from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind, TableSchemas, column_type
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_schema import protobuf_schemas
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import after, parsed
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.brokers.registry.field_numbers import with_numbers
from sluice.cdc_engine.brokers.registry.memory import MemoryRegistry
from sluice.cdc_engine.brokers.registry.schema_forms import PROTOBUF
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.errors import PublishError
from tests.brokers.protobuf_rows.compiled_schema import message_class


def schemas(*names: str, kind: TypeCode = TypeCode.LONG, key: tuple[str, ...] = ("id",)) -> TableSchemas:
    columns = [Column(name=name, type_code=TypeCode.LONG if name == "id" else kind) for name in names]
    kinds = [column_type(each, column_texts(each)).kind for each in columns]
    return protobuf_schemas("shop", "orders", columns, kinds, key)


def numbers(text: str) -> dict[str, int]:
    """Returns the number of each column, negative for dropped columns."""
    (rows,) = (each for each in parsed(text).messages if each.name in {"Value", "Key"})
    return {field.name: -field.number if field.deprecated else field.number for field in rows.fields}


def after_changes(*steps: TableSchemas) -> str:
    """Returns the latest schema of a subject whose table had these columns one after the other."""
    latest: str | None = None
    for step in steps:
        followed = with_numbers(latest, step.value)
        assert not followed.changed
        assert not followed.other
        latest = followed.text
    assert latest
    return latest


def test_protobuf_columns_keep_their_numbers_and_new_ones_get_the_next() -> None:
    first, second = schemas("id", "name"), schemas("new", "name", "id")
    assert numbers(after_changes(first)) == {"id": 1, "name": 2}
    assert numbers(after_changes(first, second)) == {"id": 1, "name": 2, "new": 3}
    assert after_changes(first, schemas("name", "id")) == first.value


def test_protobuf_dropped_column_keeps_its_number_and_gets_it_back() -> None:
    first, second = schemas("id", "name"), schemas("id")
    assert numbers(after_changes(first, second)) == {"id": 1, "name": -2}
    assert numbers(after_changes(first, second, schemas("id", "price"))) == {"id": 1, "name": -2, "price": 3}
    assert after_changes(first, second, first) == first.value
    renamed = after_changes(first, schemas("id", "label"))
    assert numbers(renamed) == {"id": 1, "name": -2, "label": 3}


def test_protobuf_wider_integer_is_the_same_schema() -> None:
    assert schemas("id", "n", kind=TypeCode.TINY) == schemas("id", "n", kind=TypeCode.LONGLONG)


def test_protobuf_column_with_another_type_gets_a_new_number_once_an_operator_registers_it() -> None:
    registry = MemoryRegistry(PROTOBUF.schema_type)
    subjects, old, new = Subjects(registry, PROTOBUF), schemas("id", "n"), schemas("id", "n", kind=TypeCode.JSON)
    subjects.ids("orders", old)
    with pytest.raises(PublishError, match=r"n from int64 to string.*get new field numbers.*schema_to_register"):
        subjects.ids("orders", new)
    followed = with_numbers(registry.latest("orders-value"), new.value)
    assert numbers(followed.text) == {"id": 1, "n": 3}
    assert "  reserved 2;\n" in followed.text
    message_class(followed.text)
    registry.unchecked.add("orders-value")
    number = registry.register("orders-value", followed.text)
    assert subjects.ids("orders", new).value == number
    again = with_numbers(followed.text, schemas("id", "n", "m", kind=TypeCode.JSON).value)
    assert numbers(again.text) == {"id": 1, "n": 3, "m": 4}
    assert "  reserved 2;\n" in again.text


def test_protobuf_column_that_is_dropped_and_added_with_another_type_counts_as_new() -> None:
    text = after_changes(schemas("id", "n"), schemas("id"), schemas("id", "n", kind=TypeCode.JSON))
    assert numbers(text) == {"id": 1, "n": 3}
    assert "  reserved 2;\n" in text


def test_protobuf_key_has_numbers_of_its_own() -> None:
    registry = MemoryRegistry(PROTOBUF.schema_type)
    subjects = Subjects(registry, PROTOBUF)
    subjects.ids("orders", schemas("a", "id"))
    ids = subjects.ids("orders", schemas("id", "a", key=("a", "id")))
    assert numbers(ids.key_text) == {"id": 1, "a": 2}
    assert numbers(ids.value_text) == {"a": 1, "id": 2}


def test_protobuf_batch_that_is_sent_again_after_a_change_of_type_is_sent_with_its_earlier_schema() -> None:
    registry, old, new = (
        MemoryRegistry(PROTOBUF.schema_type),
        schemas("id", "n"),
        schemas("id", "n", kind=TypeCode.JSON),
    )
    registry.unchecked.add("orders-value")
    first = Subjects(registry, PROTOBUF).ids("orders", old)
    registry.register("orders-value", with_numbers(registry.latest("orders-value"), new.value).text)
    again = Subjects(registry, PROTOBUF)
    assert again.ids("orders", old) == first
    assert numbers(again.ids("orders", new).value_text) == {"id": 1, "n": 3}
    assert len(registry.versions["orders-value"]) == 2


def test_protobuf_batch_that_is_sent_again_registers_nothing_and_gives_no_number_twice() -> None:
    registry, steps = MemoryRegistry(PROTOBUF.schema_type), (schemas("id", "a"), schemas("id"), schemas("id", "b"))

    def send() -> int:
        for step in steps:
            Subjects(registry, PROTOBUF).ids("orders", step)
        return len(registry.versions["orders-value"])

    assert send() == len(steps)
    assert send() == len(steps)
    for text in registry.versions["orders-value"]:
        assert {name: abs(number) for name, number in numbers(text).items()}.items() <= {
            "id": 1,
            "a": 2,
            "b": 3,
        }.items()


def test_protobuf_subject_of_another_table_is_refused() -> None:
    subjects = Subjects(MemoryRegistry(PROTOBUF.schema_type), PROTOBUF)
    subjects.ids("all", schemas("id"))
    other = protobuf_schemas("shop", "items", [Column(name="id", type_code=TypeCode.LONG)], [ColumnKind.LONG], ())
    with pytest.raises(PublishError, match=r"is sluice\.shop\.orders\.Envelope.*set `subjects: topic_record`"):
        subjects.ids("all", other)


@pytest.mark.parametrize(
    ("latest", "why"),
    [
        ('"string"', "cannot be read"),
        ("syntax = 'proto3'; message Envelope { int64 a", "cannot be read"),
        (schemas("id").value.replace("string op = 4", "string op = 9"), "another envelope"),
        (schemas("id").value.replace("repeated string omitted = 6", "string omitted = 6"), "another envelope"),
        (schemas("id").value.replace("message Value", "message Values"), "no message Value"),
        (schemas("id").value.replace("string db = 6", "string db = 8"), "another envelope"),
        ("message Envelope {" * 5000, "cannot be read"),
        ("/* " * 300_000, "cannot be read"),
        (
            schemas("id").value.replace("message Value {", "message Value {\n  map<string, int64> m = 2;"),
            "Value has a map",
        ),
    ],
)
def test_protobuf_subject_with_a_schema_of_another_program_is_refused(latest: str, why: str) -> None:
    assert why in with_numbers(latest, schemas("id").value).other


def test_protobuf_fields_that_another_program_added_keep_their_numbers() -> None:
    more = "message Value {\n  oneof more { option (x) = 1; string q = 3; bytes r = 7 [deprecated = true]; }\n  string s = 4;\n"
    latest = schemas("id", "name").value.replace("message Value {", more)
    followed = with_numbers(latest, schemas("id", "name", "new").value)
    assert numbers(followed.text) == {"id": 1, "name": 2, "q": -3, "s": -4, "r": -7, "new": 8}
    message_class(followed.text)


def test_protobuf_schema_in_which_null_would_be_read_as_a_default_is_not_used() -> None:
    registry, own = MemoryRegistry(PROTOBUF.schema_type), schemas("id", "name")
    registry.register("orders-value", own.value.replace("optional int64 name", "int64 name"))
    with pytest.raises(PublishError, match="register the schema, or set `auto_register: true`"):
        Subjects(registry, PROTOBUF, registers=False).ids("orders", own)
    assert Subjects(registry, PROTOBUF).ids("orders", own).value_text == own.value


def test_protobuf_schema_is_used_as_the_registry_has_it() -> None:
    own = schemas("id", "name").value
    shapes = [
        own.replace("\n", " "),
        own.replace("  Value before", "  .sluice.shop.orders.Value before").replace(";\n", "; // comment\n"),
        own.replace("package", 'import "google/protobuf/any.proto";\noption java_package = "a.b";\n/* a\n} */ package'),
        own.replace("= 2;", '= 2 [(own.option) = "x;]", json_name = "other"];', 1).replace("= 2 [", "= 2 [", 1),
        own.replace("message Source", "enum Kind { A = 0; B = 1 [deprecated = true]; }\nmessage Source"),
        own.replace("message Value {", "message Value {\n  option (x) = { a: 1 };\n"),
    ]
    for shape in shapes:
        assert shape != own
        assert with_numbers(shape, own).text == shape
    nested = re.sub(
        r"(message Envelope \{)(.*)(\n\}\n\n)(message Value \{.*?\n\}\n)", r"\1\2\n\4\3", own, flags=re.DOTALL
    )
    assert with_numbers(nested, own).text == nested


def test_protobuf_names_that_are_the_same_in_json_and_names_that_protobuf_does_not_accept() -> None:
    text = after_changes(schemas("id", "userId"), schemas("id", "user_id", 'a-"b\\', "1st", "option", "größe"))
    assert "option deprecated_legacy_json_field_conflicts = true;" in text
    assert "legacy_json" not in schemas("id", "user_id").value
    assert "legacy_json" in schemas("_1st", "1st").value
    row = message_class(text)().after
    row.a_u002d_u0022b_u005c, row._u0031st, row.gr_u00f6_u00dfe = 1, 2, 3
    assert MessageToDict(row) == {'a-"b\\': "1", "1st": "2", "größe": "3"}
    assert [field.json_name for field in sorted(parsed(text).messages[1].fields, key=lambda each: each.number)][3:] == [
        'a-"b\\',
        "1st",
        "",
        "größe",
    ]


def test_protobuf_schema_of_the_guide() -> None:
    columns = [
        Column(name="id", type_code=TypeCode.LONG),
        Column(name="price", type_code=TypeCode.NEWDECIMAL, metadata=10 << 8 | 2),
        Column(name="due", type_code=TypeCode.DATE),
    ]
    kinds = [column_type(each, column_texts(each)).kind for each in columns]
    page = (Path(__file__).parents[3] / "docs/guides/send-protobuf.md").read_text()
    assert f"```\n{protobuf_schemas('shop', 'orders', columns, kinds, ()).value}```\n" in page


def test_protobuf_numbers_that_protobuf_keeps_for_itself_are_left_out() -> None:
    assert [after(each) for each in (0, 18_998, 18_999, 20_000)] == [1, 18_999, 20_000, 20_001]
    latest = schemas("id").value.replace("message Value {", 'message Value {\n  reserved 5 to 7, 18999, "gone";')
    followed = with_numbers(latest, schemas("id", "new").value)
    assert numbers(followed.text) == {"id": 1, "new": 20_000}
    assert "  reserved 5 to 7, 18999;\n" in followed.text
