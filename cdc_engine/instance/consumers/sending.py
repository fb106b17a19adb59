"""Sends the changes of a destination or a group to the brokers in conf/. Each broker is a consumer with a thread that sends. An engine's
`lifecycle` begins and ends the sending.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from sluice.cdc_engine.brokers.connecting import registry_of
from sluice.cdc_engine.brokers.messages import Format, MessageMaker
from sluice.cdc_engine.brokers.publisher import Message, Publisher
from sluice.cdc_engine.brokers.registry.schema_forms import AVRO, PROTOBUF, SchemaForm
from sluice.cdc_engine.brokers.registry.subjects import Subjects
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.brokers.sender import BrokerSender, ConsumerTaken
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.config.brokers import BrokerConfig, PartitionedConfig
from sluice.cdc_engine.errors import ConfigurationError, NotSubscribedError, SluiceError
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.forms import Forms, display_of, forms_of
from sluice.cdc_engine.instance.consumers.statements import described

ContentT = TypeVar("ContentT")
Got_co = TypeVar("Got_co", covariant=True)
FORMS: dict[str, Format | SchemaForm] = {
    "flat": "flat",
    "protobuf": "protobuf",
    "avro": AVRO,
    "protobuf_rows": PROTOBUF,
}


def rules_of(config: BrokerConfig) -> Rules:
    """Returns a broker's routing rules. For a kind of broker that has no partitions, returns only the rules for topics."""
    rules = Rules(topic=config.topic, dynamic_topic=config.dynamic_topic, exact_names=config.format != "protobuf")
    if not isinstance(config, PartitionedConfig):
        return rules
    return dataclasses.replace(
        rules,
        partition=config.partition,
        partitions_num=config.partitions_num,
        partition_hash=config.partition_hash,
        dynamic_topic_partition_num=config.dynamic_topic_partition_num,
        database_hash=config.database_hash,
        splits=config.key_changes == "split",
    )


def name_of(config: BrokerConfig) -> str:
    """Returns the name of a broker in messages: its kind and servers."""
    return f"{config.kind} {config.servers}"


class Subscribing(Protocol[Got_co]):
    """The methods of a destination's `Consumers` and a group's `GroupConsumers` that senders call."""

    def subscribe(self, client_id: int, client_filter: str = "") -> ConsumerTaken[Got_co]: ...
    def service(self, client_id: int) -> ConsumerTaken[Got_co]: ...


class Sending(Generic[ContentT]):
    """The senders of one destination or group, one for each broker. `maker_of` returns the function that makes a broker's messages from the
    content and the id of a batch, or raises ConfigurationError for an invalid rule in conf/. `publisher_of` returns the publisher that
    connects to a broker; the default is the publisher for the broker's kind.
    """

    def __init__(
        self,
        brokers: Sequence[BrokerConfig],
        consumers: Callable[[], Subscribing[ContentT]],
        maker_of: Callable[[BrokerConfig], Callable[[ContentT, int], Sequence[Message]]],
        publisher_of: Callable[[BrokerConfig], Publisher] | None = None,
    ) -> None:
        self._consumers, self._maker_of = consumers, maker_of
        self._senders = [self._sender(each, publisher_of or (lambda config: config.publisher())) for each in brokers]

    def begin(self) -> None:
        for sender in self._senders:
            sender.begin()

    def end(self) -> None:
        for sender in self._senders:
            sender.end()

    def _sender(
        self, config: BrokerConfig, publisher_of: Callable[[BrokerConfig], Publisher]
    ) -> BrokerSender[ContentT]:
        return BrokerSender(
            name_of(config),
            functools.partial(self._service, config),
            self._maker_of(config),
            functools.partial(publisher_of, config),
            bytes_max=config.bytes_max,
            may_send=self._may_send,
        )

    def _may_send(self) -> bool:
        try:
            self._consumers()
        except SluiceError:
            return False
        return True

    def _service(self, config: BrokerConfig) -> ConsumerTaken[ContentT]:
        consumers = self._consumers()
        try:
            return consumers.service(config.client_id)
        except NotSubscribedError:
            return consumers.subscribe(config.client_id, config.filter)


def form_of(config: BrokerConfig) -> Format | Subjects:
    """Returns the format of a broker's messages. For a format with schemas, returns the object that registers the schemas as subjects in
    the schema registry. Raises ConfigurationError if a format with schemas has no registry.
    """
    form, registry = FORMS[config.format], config.registry
    if not isinstance(form, SchemaForm):
        return form
    if registry is None:
        raise ConfigurationError(f"brokers: format {config.format} needs `registry`")
    by_record, registers = registry.subjects == "topic_record", registry.auto_register
    return Subjects(registry_of(registry, form.schema_type), form, by_record=by_record, registers=registers)


def message_maker(config: BrokerConfig, forms: Forms) -> MessageMaker:
    """Returns the object that makes a broker's messages, with the settings `forms` for rows. Raises ConfigurationError for an invalid rule
    in conf/.
    """
    return MessageMaker(
        Routing(rules_of(config)),
        form_of(config),
        display=display_of(config),
        describe=described,
        policies=forms.policies,
        kept=forms.kept,
        keys=forms.keys,
    )


def sending_of(config: DestinationConfig, consumers: Callable[[], Consumers]) -> Sending[tuple[Chosen, ...]]:
    """Returns the object that sends the changes of a destination to its brokers. Raises ConfigurationError for an invalid rule in conf/."""
    forms = forms_of(config)
    return Sending(config.brokers, consumers, lambda broker: message_maker(broker, forms).messages)
