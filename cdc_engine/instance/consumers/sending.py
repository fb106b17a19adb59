"""The brokers that conf/ names for a destination, each a consumer with a thread that sends. Started and ended by `engine`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from cdc_engine.brokers.messages import MessageMaker
from cdc_engine.brokers.publisher import Publisher
from cdc_engine.brokers.routing import Routing, Rules
from cdc_engine.brokers.sender import Sender
from cdc_engine.config import DestinationConfig
from cdc_engine.config.brokers import BrokerConfig, KafkaConfig, PartitionedConfig, RabbitConfig, RocketConfig
from cdc_engine.errors import ConfigurationError, NotSubscribedError, SluiceError
from cdc_engine.instance.consumers.consumers import Consumers, Service
from cdc_engine.instance.consumers.feed import Chosen
from cdc_engine.instance.consumers.statements import described
from cdc_engine.instance.tables.value_policies import keys_of, policies_of
from cdc_engine.sink.column_filter import ColumnFilter


def rules_of(config: BrokerConfig) -> Rules:
    """A broker without partitions has one."""
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
    """For people: what it is and where."""
    return f"{getattr(config, 'kind', 'broker')} {getattr(config, 'servers', '')}"


class Sending:
    """Of one destination. `publisher_of`: a connection to one of its brokers. Raises ConfigurationError where a rule is none."""

    def __init__(
        self,
        config: DestinationConfig,
        consumers: Callable[[], Consumers],
        publisher_of: Callable[[BrokerConfig], Publisher] | None = None,
    ) -> None:
        self._consumers, self._policies, self._keys = consumers, policies_of(config), keys_of(config)
        self._columns = ColumnFilter(config.column_include, config.column_exclude)
        self._senders = [self._sender(each, publisher_of or open_publisher) for each in config.brokers]

    def begin(self) -> None:
        for sender in self._senders:
            sender.begin()

    def end(self) -> None:
        for sender in self._senders:
            sender.end()

    def _sender(
        self, config: BrokerConfig, publisher_of: Callable[[BrokerConfig], Publisher]
    ) -> Sender[tuple[Chosen, ...]]:
        maker = MessageMaker(
            Routing(rules_of(config)),
            config.format,
            time_zone=config.time_zone,
            describe=described,
            policies=self._policies,
            kept=self._columns.kept,
            keys=self._keys,
        )
        return Sender(
            name_of(config),
            functools.partial(self._service, config),
            maker.messages,
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

    def _service(self, config: BrokerConfig) -> Service:
        consumers = self._consumers()
        try:
            return consumers.service(config.client_id)
        except NotSubscribedError:
            return consumers.subscribe(config.client_id, config.filter)


def sending_of(config: DestinationConfig, consumers: Callable[[], Consumers]) -> Sending:
    """Raises ConfigurationError where a rule of conf/ is none."""
    return Sending(config, consumers)


def open_publisher(config: BrokerConfig) -> Publisher:
    """Raises ConfigurationError, PublishError. The clients' libraries are read in only where they are used."""
    if isinstance(config, KafkaConfig):
        from cdc_engine.brokers.kafka import KafkaPublisher, settings_of  # noqa: PLC0415

        return KafkaPublisher(settings_of(config.servers, config.options))
    if isinstance(config, RabbitConfig):
        from cdc_engine.brokers import rabbitmq  # noqa: PLC0415

        return rabbitmq.RabbitPublisher(rabbitmq.place_of(config))
    if isinstance(config, RocketConfig):
        from cdc_engine.brokers import rocketmq  # noqa: PLC0415

        return rocketmq.RocketPublisher(rocketmq.place_of(config))
    raise ConfigurationError(f"no such broker: {config}")
