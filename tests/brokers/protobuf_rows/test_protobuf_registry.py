"""Tests that a registry for Protobuf keeps the promises of the contract, and that Confluent's own deserializer reads the messages in a real
Kafka.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import ValidationError

from benchmarks.servers.apicurio import ApicurioServer
from benchmarks.servers.kafka import KafkaServer
from sluice.cdc_engine.brokers.connecting import registry_of
from sluice.cdc_engine.brokers.contract_suite import never
from sluice.cdc_engine.brokers.kinds import Kafka
from sluice.cdc_engine.brokers.registry.memory import MemoryRegistry
from sluice.cdc_engine.brokers.registry.schema_forms import PROTOBUF
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.config.brokers import RegistryConfig
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.sending import message_maker
from tests.brokers.avro.registry_contract import (
    PROTOBUF_SAMPLES,
    RegistryContract,
    RegistryUnderTest,
    messages_of,
    refused,
    schemas_of,
)
from tests.brokers.avro.test_avro_apicurio import ApicurioUnderTest
from tests.brokers.avro.test_avro_registry import MemoryRegistryUnderTest
from tests.brokers.fix_recorded import recorded
from tests.brokers.protobuf_rows.compiled_schema import message_class
from tests.brokers.test_broker_kafka import make_topic, read_records

REGISTRY = {"url": "http://127.0.0.1:8081"}
TARGET = {"kind": "kafka", "servers": "k:1", "topic": "t", "format": "protobuf_rows"}


class TestMemoryRegistryForProtobuf(RegistryContract):
    samples = PROTOBUF_SAMPLES

    @pytest.fixture
    def registry_server(self) -> RegistryUnderTest:
        return MemoryRegistryUnderTest(MemoryRegistry(PROTOBUF.schema_type))


@pytest.mark.servers
class TestApicurioForProtobuf(RegistryContract):
    samples = PROTOBUF_SAMPLES

    @pytest.fixture
    def registry_server(self, apicurio26: ApicurioServer) -> RegistryUnderTest:
        return ApicurioUnderTest(apicurio26, PROTOBUF.schema_type)

    def test_registry_that_must_have_the_schema_already(
        self, registry_server: RegistryUnderTest, apicurio26: ApicurioServer
    ) -> None:
        registry = registry_of(RegistryConfig(url=apicurio26.url), PROTOBUF.schema_type)
        given, schemas = Subjects(registry, PROTOBUF, registers=False), messages_of("int64")
        assert "set `auto_register: true`" in refused(given, "given", schemas)
        number = registry_server.registry().register("given-value", schemas.value)
        assert given.ids("given", schemas).value == number

    def test_registry_with_schemas_of_another_type(
        self, registry_server: RegistryUnderTest, apicurio26: ApicurioServer
    ) -> None:
        _ = Subjects(registry_of(RegistryConfig(url=apicurio26.url))).ids("mixed", schemas_of("int"))
        said = refused(Subjects(registry_server.registry(), PROTOBUF), "mixed", messages_of("int64"))
        assert "subject mixed-value" in said
        assert "schemas of type AVRO, and the format of the broker needs type PROTOBUF" in said


@pytest.mark.seeds
@pytest.mark.servers
def test_protobuf_is_read_by_the_deserializer_of_confluent(kafka41: KafkaServer, apicurio26: ApicurioServer) -> None:
    settings: dict[str, object] = {"kind": "kafka", "servers": kafka41.servers, "topic": "p", "format": "protobuf_rows"}
    settings |= {"dynamic_topic": r"proto:.*\..*", "registry": {"url": apicurio26.url, "subjects": "topic_record"}}
    broker = Kafka.model_validate(settings)
    messages = message_maker(broker, Forms()).messages(recorded(), 1)
    (topic,) = {each.topic for each in messages}
    make_topic(kafka41, topic, 1)
    publisher = broker.publisher()
    publisher.send(messages, never)
    publisher.close()
    assert read_records(kafka41, topic, 0, len(messages)) == [(each.key, each.body) for each in messages]
    kinds = set()
    with SchemaRegistryClient({"url": apicurio26.url}) as confluent:

        def read(data: bytes, field: MessageField) -> Any:
            schema = confluent.get_schema(int.from_bytes(data[1:5], "big"))
            assert schema.schema_type == "PROTOBUF"
            deserializer = ProtobufDeserializer(
                message_class(schema.schema_str or ""), {"use.deprecated.format": False}
            )
            return deserializer(data, SerializationContext(topic, field))

        for message in messages:
            value = read(message.body, MessageField.VALUE)
            assert f"{value.source.file}:{value.source.pos}" == message.origin.position
            kinds.add(value.op)
            if message.key:
                image = value.after if value.HasField("after") else value.before
                key = read(message.key, MessageField.KEY)
                assert all(getattr(image, field.name) == each for field, each in key.ListFields())
    assert kinds == {"c", "u", "d"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "format protobuf_rows needs `registry`"),
        ({"registry": REGISTRY, "time_zone": "Asia/Tokyo"}, "format protobuf_rows has typed values"),
        ({"registry": REGISTRY, "format": "protobuf"}, "have no schema, so a registry is not used"),
        ({"registry": REGISTRY, "format": "proto"}, "protobuf_rows"),
    ],
)
def test_protobuf_settings_that_do_not_fit_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Kafka.model_validate({**TARGET, **settings})
    assert Kafka.model_validate({**TARGET, "registry": REGISTRY}).bytes_max == 1 << 20
