"""Tests Avro messages with a real schema registry, Apicurio. Apicurio must pass the tests of `RegistryContract`. Confluent's own
deserializer must read the messages from a real Kafka.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from benchmarks.servers.apicurio import ApicurioServer
from benchmarks.servers.kafka import KafkaServer
from sluice.cdc_engine.brokers.connecting import registry_of
from sluice.cdc_engine.brokers.contract_suite import never
from sluice.cdc_engine.brokers.kinds import Kafka
from sluice.cdc_engine.brokers.registry import client
from sluice.cdc_engine.brokers.registry.client import AVRO_TYPE, SchemaRegistry
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.config.brokers import RegistryConfig
from sluice.cdc_engine.errors import PublishError
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.sending import message_maker
from tests.brokers.avro.registry_contract import (
    RegistryContract,
    RegistryUnderTest,
    record,
    refusal,
    refused,
    schemas_of,
)
from tests.brokers.fix_recorded import recorded
from tests.brokers.test_broker_kafka import make_topic, read_records
from tests.certificates import make_certificate

PASSWORD = "hidden:word"  # noqa: S105  of a server of this test
SUBJECT = "t-value"


class ApicurioUnderTest:
    def __init__(self, server: ApicurioServer, schema_type: str = AVRO_TYPE) -> None:
        self._server, self._type, self.where = server, schema_type, f"the schema registry at {server.url}"

    def registry(self) -> SchemaRegistry:
        return registry_of(RegistryConfig(url=self._server.url), self._type)

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    @contextlib.contextmanager
    def unchecked(self, subject: str) -> Iterator[None]:
        """Sets the compatibility of a subject to NONE during the block. Also sets the global level, because Apicurio applies it to a
        subject with the level NONE.
        """
        assert self._server.set_compatibility("NONE", subject)
        assert self._server.set_compatibility("NONE")
        yield
        assert self._server.set_compatibility("BACKWARD")


@pytest.mark.servers
class TestApicurio(RegistryContract):
    @pytest.fixture
    def registry_server(self, apicurio26: ApicurioServer) -> RegistryUnderTest:
        return ApicurioUnderTest(apicurio26)

    def test_registry_that_must_have_the_schema_already(
        self, registry_server: RegistryUnderTest, apicurio26: ApicurioServer
    ) -> None:
        given, schemas = Subjects(registry_of(RegistryConfig(url=apicurio26.url)), registers=False), schemas_of("int")
        assert "set `auto_register: true`" in refused(given, "given", schemas)
        number = registry_server.registry().register("given-value", schemas.value)
        assert given.ids("given", schemas).value == number


@pytest.mark.seeds
@pytest.mark.servers
def test_avro_is_read_by_the_deserializer_of_confluent(kafka41: KafkaServer, apicurio26: ApicurioServer) -> None:
    settings: dict[str, object] = {"kind": "kafka", "servers": kafka41.servers, "topic": "others", "format": "avro"}
    settings |= {"dynamic_topic": r".*\..*", "registry": {"url": apicurio26.url}}
    broker = Kafka.model_validate(settings)
    messages = message_maker(broker, Forms()).messages(recorded(), 1)
    for topic in {each.topic for each in messages}:
        make_topic(kafka41, topic, 1)
    publisher = broker.publisher()
    publisher.send(messages, never)
    publisher.close()
    kinds = set()
    with SchemaRegistryClient({"url": apicurio26.url}) as confluent:
        deserializer = AvroDeserializer(confluent)
        for topic in sorted({each.topic for each in messages}):
            own = [each for each in messages if each.topic == topic]
            records = read_records(kafka41, topic, 0, len(own))
            assert records == [(each.key, each.body) for each in own]
            for message in own:
                value: Any = deserializer(message.body, SerializationContext(topic, MessageField.VALUE))
                image = value["after"] or value["before"]
                assert f"{value['source']['file']}:{value['source']['pos']}" == message.origin.position
                kinds.add(value["op"])
                if message.key:
                    key: Any = deserializer(message.key, SerializationContext(topic, MessageField.KEY))
                    assert key == {name: image[name] for name in key}
    assert kinds == {"c", "u", "d"}


class Login(http.server.BaseHTTPRequestHandler):
    """Serves a registry that gives every schema the number 7 if the login is right. Its answer to a wrong login contains the password."""

    def do_POST(self) -> None:
        given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = (200, {"id": 7}) if given == f"me:{PASSWORD}" else (401, {"message": f"not {given}"})
        if "moved" in self.path:
            status, answer = 302, {}
        body = json.dumps(answer).encode()
        if "slow" in self.path:
            self.trickle(b"HTTP/1.0 200 OK\r\n\r\n" + body)
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "/subjects")
        self.end_headers()
        self.wfile.write(body)

    def trickle(self, answer: bytes) -> None:
        """Sends the answer byte by byte, so that the whole answer takes long although no single read does."""
        with contextlib.suppress(OSError):
            for byte in answer:
                self.wfile.write(bytes([byte]))
                time.sleep(0.02)

    def log_message(self, *_args: object) -> None:
        """Says nothing."""


@pytest.fixture
def tls_registry(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Returns the URL of a registry with a login and TLS, and the certificate of its authority."""
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Login)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}", certificate
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.secret
def test_avro_registry_with_login_and_tls_and_no_secret_in_an_error(
    tls_registry: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, authority = tls_registry
    settings = {"url": url, "user": "me", "password": {"env": "REGISTRY_PASSWORD"}, "tls": {"ca_file": str(authority)}}
    registry = registry_of(RegistryConfig.model_validate(settings))
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    assert registry.register(SUBJECT, record("int")) == 7
    assert "answered 302" in refusal(registry, "moved", record("int"))
    with monkeypatch.context() as short:
        short.setattr(client, "ANSWER_SECONDS_MAX", 0.2)
        assert "does not answer" in refusal(registry, "slow", record("int"))
    monkeypatch.setenv("REGISTRY_PASSWORD", "wrong-word")
    said = refusal(registry, SUBJECT, record("int"))
    assert "correct user and password of `registry`" in said
    assert "wrong-word" not in said
    untrusted = registry_of(RegistryConfig.model_validate({**settings, "tls": None}))
    with pytest.raises(PublishError, match="does not answer"):
        untrusted.register(SUBJECT, record("int"))
