"""Defines three kinds of brokers: Kafka, RabbitMQ and RocketMQ. Each kind is a settings class with a method that opens a publisher.
pyproject.toml registers the classes in the entry-point group `sluice.brokers`. The client libraries are imported only when the engine
connects.
"""

from __future__ import annotations

from sluice.cdc_engine.brokers.publisher import Publisher
from sluice.cdc_engine.brokers.settings import KafkaConfig, RabbitConfig, RocketConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.extras import Extra, require


class Kafka(KafkaConfig):
    """The settings of a Kafka cluster, with a method that opens a publisher."""

    def publisher(self) -> Publisher:
        require(Extra.KAFKA, ConfigurationError)
        from sluice.cdc_engine.brokers.kafka import KafkaPublisher, TransactionalPublisher, settings_of  # noqa: PLC0415

        settings = settings_of(self.servers, self.options)
        if not self.transactional_id:
            return KafkaPublisher(settings)
        return TransactionalPublisher({**settings, "transactional.id": self.transactional_id})


class Rabbit(RabbitConfig):
    """The settings of a RabbitMQ exchange, with a method that opens a publisher."""

    def publisher(self) -> Publisher:
        require(Extra.RABBITMQ, ConfigurationError)
        from sluice.cdc_engine.brokers.rabbitmq import RabbitPublisher, target_of  # noqa: PLC0415

        return RabbitPublisher(target_of(self))


class Rocket(RocketConfig):
    """The settings of a RocketMQ cluster, with a method that opens a publisher."""

    def publisher(self) -> Publisher:
        from sluice.cdc_engine.brokers.rocketmq import RocketPublisher, target_of  # noqa: PLC0415

        return RocketPublisher(target_of(self))
