"""Sends changes to message brokers, with the topics, partitions and messages that Canal uses. A broker gets each message at least once. If
the broker also commits positions (`CommittingPublisher`), it gets each message exactly once.

Plug-ins for other brokers import the names in `__all__` (docs/guides/write-a-broker-plug-in.md).
"""

from sluice.cdc_engine.brokers.publisher import (
    CommittingPublisher,
    Message,
    MessageOrigin,
    Publisher,
    ended_amid,
    too_large,
    unknown_target,
)
from sluice.cdc_engine.config.brokers import BrokerConfig, PartitionedConfig
from sluice.cdc_engine.environment import secret_at
from sluice.cdc_engine.errors import ConfigurationError, PublishError
from sluice.cdc_engine.source.settings import SecretConfig, TlsFilesConfig

__all__ = [
    "BrokerConfig",
    "CommittingPublisher",
    "ConfigurationError",
    "Message",
    "MessageOrigin",
    "PartitionedConfig",
    "PublishError",
    "Publisher",
    "SecretConfig",
    "TlsFilesConfig",
    "ended_amid",
    "secret_at",
    "too_large",
    "unknown_target",
]
