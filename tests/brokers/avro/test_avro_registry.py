"""Tests that the registry in memory fulfills the contract of a registry, and that the sender waits for a registry that is away or refuses
a schema.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import structlog
from pydantic import ValidationError

from sluice.cdc_engine.binlog.entries.texts import Display, column_texts
from sluice.cdc_engine.binlog.rows_by_schema.avro_schema import AvroType, avro_type, table_schemas
from sluice.cdc_engine.binlog.rows_by_schema.columns import ColumnKind
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.brokers.kinds import Kafka
from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.publisher import MemoryBroker
from sluice.cdc_engine.brokers.registry.memory import MemoryRegistry
from sluice.cdc_engine.brokers.registry.subjects import CHECK_SECONDS, Subjects
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.brokers.sender import BrokerSender, RoundResult
from sluice.cdc_engine.contracts import Column
from sluice.cdc_engine.errors import PublishError
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.statements import described
from tests.brokers.avro.registry_contract import RegistryContract, RegistryUnderTest
from tests.brokers.fix_recorded import recorded

REGISTRY = {"url": "http://127.0.0.1:8081"}
TARGET = {"kind": "kafka", "servers": "k:1", "topic": "t", "format": "avro"}


class MemoryRegistryUnderTest:
    where = "the schema registry in memory"

    def __init__(self, registry: MemoryRegistry | None = None) -> None:
        self._registry = registry or MemoryRegistry()

    def registry(self) -> MemoryRegistry:
        return self._registry

    def kill(self) -> None:
        self._registry.away = True

    def start(self) -> None:
        self._registry.away = False

    @contextlib.contextmanager
    def unchecked(self, subject: str) -> Iterator[None]:
        self._registry.unchecked.add(subject)
        yield
        self._registry.unchecked.clear()


class TestMemoryRegistry(RegistryContract):
    @pytest.fixture
    def registry_server(self) -> RegistryUnderTest:
        return MemoryRegistryUnderTest()


class OneBatch:
    """Implements `ConsumerTaken` with one recorded batch, which `get` returns until the batch is acked."""

    def __init__(self) -> None:
        self.undelivered, self.acked = "", False

    def get(self, bytes_max: int, timeout_seconds: float = 0.0) -> tuple[int, tuple[Chosen, ...] | None]:  # noqa: ARG002
        return 1, None if self.acked else recorded()

    def ack(self, batch_id: int) -> None:  # noqa: ARG002
        self.acked = True

    def rollback(self, batch_id: int | None = None) -> None:
        """The next get returns the batch again."""

    def stop_waiting(self) -> None:
        """Does nothing, because no thread waits."""

    def end_text(self, batch_id: int) -> str:  # noqa: ARG002
        return ""

    def continue_after(self, text: str) -> bool:  # noqa: ARG002
        return False


def sender_of(
    registry: MemoryRegistry, service: OneBatch, broker: MemoryBroker, rules: Rules, *, by_record: bool
) -> BrokerSender:  # type: ignore[type-arg]
    maker = MessageMaker(
        Routing(rules), Subjects(registry, by_record=by_record), display=Display(labels=True), describe=described
    )
    return BrokerSender("avro", lambda: service, maker.messages, broker.publisher, bytes_max=1 << 20)


def test_avro_waits_for_a_registry_that_is_away_and_queries_it_once_for_each_schema() -> None:
    registry, service, broker = MemoryRegistry(), OneBatch(), MemoryBroker()
    sender = sender_of(registry, service, broker, Rules(topic="t", dynamic_topic=r".*\..*"), by_record=False)
    registry.away = True
    assert sender.send_next() is RoundResult.AGAIN
    assert "does not answer" in service.undelivered
    assert not broker.kept
    registry.away, registry.requests = False, 0
    assert sender.send_next() is RoundResult.SENT
    assert service.undelivered == ""
    once = registry.requests  # Known? Which is the latest? Registered.
    assert once == 3 * sum(map(len, registry.versions.values()))
    service.acked = False
    assert sender.send_next() is RoundResult.SENT
    assert registry.requests == once


def test_avro_says_what_to_do_when_tables_share_a_topic_and_its_subject() -> None:
    registry, service, broker = MemoryRegistry(), OneBatch(), MemoryBroker()
    assert sender_of(registry, service, broker, Rules(topic="t"), by_record=False).send_next() is RoundResult.AGAIN
    assert "t-" in service.undelivered
    assert "set `subjects: topic_record`" in service.undelivered
    assert not service.acked
    assert sender_of(registry, service, broker, Rules(topic="t"), by_record=True).send_next() is RoundResult.SENT


def test_avro_schema_change_is_compatible_and_has_a_new_number() -> None:
    registry = MemoryRegistry()
    subjects = Subjects(registry)
    old, new = schemas("id", "name"), schemas("id", "price")
    first, second = subjects.ids("orders", old), subjects.ids("orders", new)
    assert first.value != second.value
    assert first.key == second.key
    assert [len(registry.versions[each]) for each in ("orders-value", "orders-key")] == [2, 1]
    wider = subjects.ids("orders", schemas("id", "price", kind=TypeCode.LONGLONG))
    assert wider.value not in {first.value, second.value}
    with pytest.raises(PublishError, match="price from long to string"):
        subjects.ids("orders", schemas("id", "price", kind=TypeCode.JSON))


def test_avro_key_of_another_type_is_refused() -> None:
    column = Column(name="id", type_code=TypeCode.LONG)
    old, new = (
        table_schemas("shop", "orders", [column], [AvroType(ColumnKind.LONG, kind)], ["id"])
        for kind in ("int", {"type": "int", "logicalType": "date"})
    )
    subjects = Subjects(MemoryRegistry())
    subjects.ids("orders", old)
    with pytest.raises(PublishError, match=r"subject orders-key .*id from int to date"):
        subjects.ids("orders", new)


OTHERS_OF_AVRO = [
    "syntax",
    "[" * 5_000,
    '{"name": 3}',
    '{"type": "record", "name": "sluice.shop.orders.Envelope", "fields": 3}',
    '{"type": "record", "name": "sluice.shop.orders.Envelope", "fields": [{"name": "before"}]}',
]


@pytest.mark.parametrize("latest", OTHERS_OF_AVRO, ids=range(len(OTHERS_OF_AVRO)))
def test_avro_subject_whose_latest_schema_cannot_be_read_is_named(latest: str) -> None:
    registry, own = MemoryRegistry(), schemas("id")
    registry.versions["orders-value"] = [latest]
    with pytest.raises(
        PublishError, match=r"subject orders-value of .* cannot be read: .*Send the table to another topic"
    ):
        Subjects(registry).ids("orders", own)
    registry.versions["orders-value"], registry.ids[own.value] = [own.value, latest], 7
    assert Subjects(registry).ids("orders", own).value == 7, "a schema that is registered already"


def test_avro_schema_that_an_operator_must_register_is_logged_once() -> None:
    registry, own = MemoryRegistry(), schemas("id")
    given = Subjects(registry, registers=False)
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            with pytest.raises(PublishError, match="schema_to_register"):
                given.ids("orders", own)
    assert [(each["event"], each["schema"]) for each in logged] == [("schema_to_register", own.key)]
    assert not registry.versions


def test_avro_registry_is_queried_again_and_another_number_stops_the_broker() -> None:
    registry, own, now = MemoryRegistry(), schemas("id"), [0.0]
    subjects = Subjects(registry, clock=lambda: now[0])
    first = subjects.ids("orders", own)
    now[0], registry.away = CHECK_SECONDS - 1, True
    assert subjects.ids("orders", own) == first
    now[0] = CHECK_SECONDS
    with pytest.raises(PublishError, match="does not answer"):
        subjects.ids("orders", own)
    registry.away = False
    assert subjects.ids("orders", own) == first
    kept, now[0] = registry.versions, 2 * CHECK_SECONDS
    registry.versions = {}
    with pytest.raises(PublishError, match="now does not have this schema"):
        subjects.ids("orders", own)
    registry.versions, registry.ids = kept, {text: number + 1 for text, number in registry.ids.items()}
    with pytest.raises(
        PublishError, match=r"id 1, and the registry now gives this schema the id 2.*restart the engine"
    ):
        subjects.ids("orders", own)


def schemas(*names: str, kind: TypeCode = TypeCode.LONG):  # type: ignore[no-untyped-def]
    columns = [Column(name=name, type_code=TypeCode.LONG if name == "id" else kind) for name in names]
    return table_schemas("shop", "orders", columns, [avro_type(each, column_texts(each)) for each in columns], ["id"])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "needs `registry`"),
        ({"registry": REGISTRY, "time_zone": "Asia/Tokyo"}, "remove time_zone"),
        ({"registry": REGISTRY, "format": "protobuf"}, "have no schema, so a registry is not used"),
        ({"registry": {"url": "ftp://host"}}, "write http"),
        ({"registry": {"url": "http://me:hidden@host"}}, "instead of a login"),
        ({"registry": {**REGISTRY, "user": "me"}}, "both user and password"),
        ({"registry": {"url": "http://far:1", "user": "me", "password": {"env": "P"}}}, "in clear text"),
        ({"registry": {"url": "http://host:none"}}, "url"),
    ],
)
def test_avro_settings_that_do_not_fit_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Kafka.model_validate({**TARGET, **settings})
    assert Kafka.model_validate({**TARGET, "registry": REGISTRY}).bytes_max == 1 << 20
