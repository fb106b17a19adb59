"""Runs the brokers of a destination or a group that conf/ names; each is a consumer with a thread that sends. Started and ended by `engine`
and by `group.engine`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.publisher import Message, Publisher
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.brokers.sender import BrokerSender, ConsumerTaken
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.config.brokers import BrokerConfig, KafkaConfig, PartitionedConfig, RabbitConfig, RocketConfig
from sluice.cdc_engine.errors import ConfigurationError, NotSubscribedError, SluiceError
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.forms import Forms, display_of, forms_of
from sluice.cdc_engine.instance.consumers.statements import described
from sluice.extras import Extra, require

ContentT = TypeVar("ContentT")
Got_co = TypeVar("Got_co", covariant=True)


def rules_of(config: BrokerConfig) -> Rules:
    """Returns a broker's routing rules; a broker without partitions has one partition."""
    rules = Rules(topic=config.topic, dynamic_topic=config.dynamic_topic, exact_names=config.format == "flat")
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
    """Returns a broker's kind and servers, for messages."""
    return f"{getattr(config, 'kind', 'broker')} {getattr(config, 'servers', '')}"


class Subscribing(Protocol[Got_co]):
    """The consumers of a destination (`Consumers`) or of a group."""

    def subscribe(self, client_id: int, client_filter: str = "") -> ConsumerTaken[Got_co]: ...
    def service(self, client_id: int) -> ConsumerTaken[Got_co]: ...


class Sending(Generic[ContentT]):
    """The senders of one destination or group. `maker_of`: returns the function that makes a broker's messages from the content and the
    batch's id; raises ConfigurationError for an invalid rule. `publisher_of`: connects to a broker.
    """

    def __init__(
        self,
        brokers: Sequence[BrokerConfig],
        consumers: Callable[[], Subscribing[ContentT]],
        maker_of: Callable[[BrokerConfig], Callable[[ContentT, int], Sequence[Message]]],
        publisher_of: Callable[[BrokerConfig], Publisher] | None = None,
    ) -> None:
        self._consumers, self._maker_of = consumers, maker_of
        self._senders = [self._sender(each, publisher_of or open_publisher) for each in brokers]

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


def message_maker(config: BrokerConfig, forms: Forms) -> MessageMaker:
    """Returns the maker of a broker's messages, with the settings for its rows. Raises ConfigurationError for an invalid rule in conf/."""
    return MessageMaker(
        Routing(rules_of(config)),
        config.format,
        display=display_of(config),
        describe=described,
        policies=forms.policies,
        kept=forms.kept,
        keys=forms.keys,
    )


def sending_of(config: DestinationConfig, consumers: Callable[[], Consumers]) -> Sending[tuple[Chosen, ...]]:
    """Returns the senders of a destination. Raises ConfigurationError for an invalid rule in conf/."""
    forms = forms_of(config)
    return Sending(config.brokers, consumers, lambda broker: message_maker(broker, forms).messages)


def open_publisher(config: BrokerConfig) -> Publisher:
    """Connects to a broker. Raises ConfigurationError, PublishError. The clients' libraries are imported only where they are used."""
    if isinstance(config, KafkaConfig):
        require(Extra.KAFKA, ConfigurationError)
        from sluice.cdc_engine.brokers.kafka import KafkaPublisher, settings_of  # noqa: PLC0415

        return KafkaPublisher(settings_of(config.servers, config.options))
    if isinstance(config, RabbitConfig):
        require(Extra.RABBITMQ, ConfigurationError)
        from sluice.cdc_engine.brokers import rabbitmq  # noqa: PLC0415

        return rabbitmq.RabbitPublisher(rabbitmq.target_of(config))
    if isinstance(config, RocketConfig):
        from sluice.cdc_engine.brokers import rocketmq  # noqa: PLC0415

        return rocketmq.RocketPublisher(rocketmq.target_of(config))
    raise ConfigurationError(
        f"brokers: the kind {getattr(config, 'kind', '')!r} is unknown; use kafka, rabbitmq or rocketmq"
    )
