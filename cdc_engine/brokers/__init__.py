"""Sends a consumer's changes to message brokers, with Canal's topics, partitions and messages. The broker gets each message at least once,
or exactly once if it also commits positions.

Plug-ins for other brokers import their protocol from here (docs/guides/write-a-broker-plug-in.md).
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
