"""Defines the tests that every schema registry must pass. The test class of a registry inherits `RegistryContract` and defines a fixture
`registry_server`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sluice.cdc_engine.binlog.rows_by_schema.avro_schema import TIME, AvroType, table_schemas
from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind, TableSchemas
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_schema import ENVELOPE, SOURCE
from sluice.cdc_engine.binlog.rows_by_schema.protobuf_text import ProtobufField, ProtobufMessage, ProtobufSchema
from sluice.cdc_engine.brokers.registry.client import SchemaRegistry
from sluice.cdc_engine.brokers.registry.schema_forms import AVRO, PROTOBUF, SchemaForm
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.errors import PublishError

SUBJECTS = (f"contract-{number}-value" for number in itertools.count(1))
DATE = {"type": "int", "logicalType": "date"}
DATETIME = {"type": "long", "logicalType": "local-timestamp-micros"}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def record(*types: Any) -> str:
    fields = [{"name": f"c{index}", "type": ["null", each], "default": None} for index, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "Contract", "namespace": "sluice", "fields": fields})


def schemas_of(kind: Any) -> TableSchemas:
    """Returns the Avro schemas of a table with the column c0 and without a key."""
    return table_schemas("shop", "contract", [Column(name="c0", type_code=0)], [AvroType(ColumnKind.STRING, kind)], ())


def message(*types: str, dropped: int = -1) -> str:
    """Returns a Protobuf schema with one column per type. `dropped` is the index of a column that the table no longer has."""
    fields = [
        ProtobufField(f"c{index}", each, index + 1, "optional", deprecated=index == dropped)
        for index, each in enumerate(types)
    ]
    return ProtobufSchema("sluice.shop.contract", (ENVELOPE, ProtobufMessage("Value", tuple(fields)), SOURCE)).text


def messages_of(kind: Any) -> TableSchemas:
    """Returns the Protobuf schemas of a table with the column c0 and without a key."""
    return TableSchemas("sluice.shop.contract.Envelope", message(kind), "", "")


@dataclasses.dataclass(frozen=True)
class Samples:
    """Schemas of one format. A registry accepts `others` after `first`, in this order, and refuses `refused` after `first`. `misread` has
    pairs of column types. A change from the first type to the second must be refused.
    """

    form: SchemaForm
    first: str
    others: tuple[str, ...]
    refused: str
    schemas_of: Callable[[Any], TableSchemas]
    misread: tuple[tuple[Any, Any], ...]


# A registry's check accepts each change of a type in `misread`, but consumers would misread values after the change.
AVRO_SAMPLES = Samples(
    form=AVRO,
    first=record("int"),
    others=(record("int", "string"), record("int"), record("long")),
    refused=record("string"),
    schemas_of=schemas_of,
    misread=(
        (decimal(10, 2), decimal(12, 4)),
        (decimal(10, 2), "string"),
        ("string", decimal(10, 2)),
        ("int", DATE),
        ("long", DATETIME),
        (decimal(20, 0), decimal(20, 2)),
        ("bytes", "string"),
        ("int", "float"),
        ("long", TIME),
        (TIME, "long"),
        ("int", TIME),
    ),
)
# Registries accept some of the changes of a type in `misread` for one field number.
PROTOBUF_SAMPLES = Samples(
    form=PROTOBUF,
    first=message("int64"),
    others=(message("int64", "string"), message("int64", "string", dropped=1), message("int64", "string", "bytes")),
    refused=message("string"),
    schemas_of=messages_of,
    misread=(
        ("string", "bytes"),
        ("bytes", "string"),
        ("int64", "uint64"),
        ("int64", "sint32"),
        ("int64", "sint64"),
        ("sfixed64", "fixed64"),
        ("float", "double"),
        ("int64", "string"),
    ),
)


class RegistryUnderTest(Protocol):
    """Provides a registry for one test, with compatibility BACKWARD. `where` is the name of the registry in errors."""

    where: str

    def registry(self) -> SchemaRegistry:
        """Returns a new client of the registry."""

    def kill(self) -> None:
        """Ends the registry as a crash would."""

    def start(self) -> None:
        """Starts the killed registry again."""

    def unchecked(self, subject: str) -> AbstractContextManager[None]:
        """Sets the compatibility of a subject to NONE until the context ends."""


class RegistryContract:
    """Has one test for each promise of a schema registry. The class that inherits it defines the fixture `registry_server`.
    `samples` are schemas of the tested format.
    """

    samples = AVRO_SAMPLES

    def test_registry_gives_a_schema_the_same_number_again(self, registry_server: RegistryUnderTest) -> None:
        registry, subject, other = registry_server.registry(), next(SUBJECTS), next(SUBJECTS)
        first = registry.register(subject, self.samples.first)
        assert registry.register(subject, self.samples.first) == first
        assert registry_server.registry().register(other, self.samples.first) == first

    def test_registry_takes_added_dropped_and_wider_columns(self, registry_server: RegistryUnderTest) -> None:
        registry, subject = registry_server.registry(), next(SUBJECTS)
        forms = [self.samples.first, *self.samples.others]
        numbers = [registry.register(subject, form) for form in forms]
        assert [registry.known(subject, form) for form in forms] == numbers
        assert len({*numbers}) == len({*forms})

    def test_registry_refuses_another_type_and_says_what_to_do(self, registry_server: RegistryUnderTest) -> None:
        registry, subject = registry_server.registry(), next(SUBJECTS)
        first = registry.register(subject, self.samples.first)
        said = refusal(registry, subject, self.samples.refused)
        assert registry_server.where in said
        assert f"subject {subject}" in said
        assert "compatibility of the subject to NONE" in said
        assert registry.register(subject, self.samples.first) == first

    def test_registry_knows_what_it_has_and_the_latest_version(self, registry_server: RegistryUnderTest) -> None:
        registry, subject, old, new = (
            registry_server.registry(),
            next(SUBJECTS),
            self.samples.first,
            self.samples.others[0],
        )
        assert registry.latest(subject) is None
        assert registry.known(subject, old) is None
        numbers = [registry.register(subject, form) for form in (old, new)]
        assert [registry.known(subject, form) for form in (old, new)] == numbers
        assert registry.known(subject, self.samples.refused) is None
        assert (registry.latest(subject) or "").split() == new.split()

    def test_registry_has_the_earlier_versions_of_a_subject(self, registry_server: RegistryUnderTest) -> None:
        registry, subject = registry_server.registry(), next(SUBJECTS)
        assert [*registry.earlier(subject)] == []
        forms = [*dict.fromkeys([self.samples.first, *self.samples.others])]
        numbers = [registry.register(subject, form) for form in forms]
        earlier = [*registry.earlier(subject)]
        assert [each.split() for each in earlier] == [each.split() for each in reversed(forms[:-1])]
        assert [registry.known(subject, each) for each in reversed(earlier)] == numbers[:-1]

    def test_types_that_a_registry_accepts_but_consumers_misread_are_refused_until_an_operator_registers_them(
        self, registry_server: RegistryUnderTest
    ) -> None:
        form = self.samples.form
        for old, new in self.samples.misread:
            registry, topic = registry_server.registry(), next(SUBJECTS)
            subjects, before, after = Subjects(registry, form), *map(self.samples.schemas_of, (old, new))
            _ = subjects.ids(topic, before)
            said = refused(subjects, topic, after)
            assert registry_server.where in said
            assert "c0 from " in said
            subject = f"{topic}-value"
            with registry_server.unchecked(subject) if form is PROTOBUF else contextlib.nullcontext():
                number = registry.register(subject, form.follow(registry.latest(subject), after.value).text)
            assert subjects.ids(topic, after).value == number

    def test_registry_that_is_away_says_so_and_is_used_again(self, registry_server: RegistryUnderTest) -> None:
        registry, subject = registry_server.registry(), next(SUBJECTS)
        _ = registry.register(subject, self.samples.first)
        registry_server.kill()
        try:
            said = refusal(registry, subject, self.samples.first)
        finally:
            registry_server.start()
        assert registry_server.where in said
        assert "until the registry answers" in said
        assert registry.register(subject, self.samples.first) > 0


def refusal(registry: SchemaRegistry, subject: str, schema: str) -> str:
    """Returns the error with which a registry refuses a schema. Raises AssertionError if the registry accepts it."""
    try:
        registry.register(subject, schema)
    except PublishError as error:
        return str(error)
    raise AssertionError("the schema was accepted")


def refused(subjects: Subjects, topic: str, schemas: TableSchemas) -> str:
    """Returns the error with which the sender refuses the schemas of a table. Raises AssertionError if the sender accepts them."""
    try:
        subjects.ids(topic, schemas)
    except PublishError as error:
        return str(error)
    raise AssertionError("the schemas were used")
