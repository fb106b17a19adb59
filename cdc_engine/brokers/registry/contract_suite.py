"""Tests what every schema registry must promise the sender. Its tests inherit `RegistryContract` and have a fixture `place`."""

# ruff: noqa: S101 - pytest runs this file

from __future__ import annotations

import itertools
import json
from typing import Any, Protocol

from sluice.cdc_engine.binlog.rows_by_schema.avro_schema import TIME, AvroType, table_schemas
from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind, TableSchemas
from sluice.cdc_engine.brokers.registry.client import SchemaRegistry
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.errors import PublishError

SUBJECTS = (f"contract-{number}-value" for number in itertools.count(1))
DATE = {"type": "int", "logicalType": "date"}
DATETIME = {"type": "long", "logicalType": "local-timestamp-micros"}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


# Types of a column before and after a schema change. Avro's rules read each as the other.
MISREAD: tuple[tuple[Any, Any], ...] = (
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
)


class RegistryPlace(Protocol):
    """A registry for one test, with compatibility BACKWARD. `where`: what an error names."""

    where: str

    def registry(self) -> SchemaRegistry:
        """Connects as conf/ would."""

    def kill(self) -> None:
        """Ends the registry as a crash would."""

    def start(self) -> None:
        """Starts the killed registry again."""


class RegistryContract:
    """The promises, each as a test. `place` is a fixture of the class that inherits them."""

    def test_registry_gives_a_schema_the_same_number_again(self, place: RegistryPlace) -> None:
        registry, subject, other = place.registry(), next(SUBJECTS), next(SUBJECTS)
        first = registry.register(subject, record("int"))
        assert registry.register(subject, record("int")) == first
        assert place.registry().register(other, record("int")) == first

    def test_registry_takes_added_dropped_and_wider_columns(self, place: RegistryPlace) -> None:
        registry, subject = place.registry(), next(SUBJECTS)
        forms = [record("int"), record("int", "string"), record("int"), record("long")]
        numbers = [registry.register(subject, form) for form in forms]
        assert numbers[0] == numbers[2]
        assert len({*numbers}) == 3

    def test_registry_refuses_another_type_and_says_what_to_do(self, place: RegistryPlace) -> None:
        registry, subject = place.registry(), next(SUBJECTS)
        first = registry.register(subject, record("int"))
        said = refusal(registry, subject, record("string"))
        assert place.where in said
        assert f"subject {subject}" in said
        assert "compatibility of the subject to NONE" in said
        assert registry.register(subject, record("int")) == first

    def test_registry_knows_what_it_has_and_the_latest_version(self, place: RegistryPlace) -> None:
        registry, subject, old, new = place.registry(), next(SUBJECTS), record("int"), record("int", "string")
        assert registry.latest(subject) is None
        assert registry.known(subject, old) is None
        numbers = [registry.register(subject, form) for form in (old, new)]
        assert [registry.known(subject, form) for form in (old, new)] == numbers
        assert registry.known(subject, record("string")) is None
        assert json.loads(registry.latest(subject) or "") == json.loads(new)

    def test_types_that_a_registry_accepts_but_consumers_misread_are_refused_until_somebody_registers_them(
        self, place: RegistryPlace
    ) -> None:
        for old, new in MISREAD:
            registry, topic = place.registry(), next(SUBJECTS)
            subjects, before, after = Subjects(registry), schemas_of(old), schemas_of(new)
            _ = subjects.ids(topic, before)
            said = refused(subjects, topic, after)
            assert place.where in said
            assert "c0 from " in said
            assert registry.latest(f"{topic}-value") is not None
            number = registry.register(f"{topic}-value", after.value)
            assert subjects.ids(topic, after).value == number

    def test_registry_that_is_away_says_so_and_is_used_again(self, place: RegistryPlace) -> None:
        registry, subject = place.registry(), next(SUBJECTS)
        _ = registry.register(subject, record("int"))
        place.kill()
        try:
            said = refusal(registry, subject, record("int"))
        finally:
            place.start()
        assert place.where in said
        assert "nothing is sent until it answers" in said
        assert registry.register(subject, record("int")) > 0


def record(*types: Any) -> str:
    fields = [{"name": f"c{index}", "type": ["null", each], "default": None} for index, each in enumerate(types)]
    return json.dumps({"type": "record", "name": "Contract", "namespace": "sluice", "fields": fields})


def schemas_of(kind: Any) -> TableSchemas:
    """Returns the schemas of a table without a key and with the column c0."""
    return table_schemas("shop", "contract", [Column(name="c0", type_code=0)], [AvroType(ColumnKind.STRING, kind)], ())


def refusal(registry: SchemaRegistry, subject: str, schema: str) -> str:
    """Returns the error with which a registry refuses a schema. Raises AssertionError if it accepts it."""
    try:
        registry.register(subject, schema)
    except PublishError as error:
        return str(error)
    raise AssertionError("the schema was accepted")


def refused(subjects: Subjects, topic: str, schemas: TableSchemas) -> str:
    """Returns the error with which the sender refuses the schemas of a table. Raises AssertionError if it does not."""
    try:
        subjects.ids(topic, schemas)
    except PublishError as error:
        return str(error)
    raise AssertionError("the schemas were used")
