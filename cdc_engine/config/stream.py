"""Defines the settings that destinations and groups share: the name, and who consumes the stream besides the lake."""

from __future__ import annotations

from pydantic import Field, model_validator

from sluice.cdc_engine.config.brokers import AnyBroker
from sluice.cdc_engine.config.consumers import CanalServerConfig
from sluice.cdc_engine.source.settings import Strict


class StreamConfig(Strict):
    """A stream with consumers. Its name is that of its file."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    canal_server: CanalServerConfig = CanalServerConfig()
    brokers: tuple[AnyBroker, ...] = Field((), description="Message brokers that receive the changes.")

    @model_validator(mode="after")
    def _one_number_each(self) -> StreamConfig:
        numbers = [broker.client_id for broker in self.brokers]
        if len(set(numbers)) < len(numbers):
            raise ValueError(
                "two of the brokers have the same client_id: give each its own, because its cursor is stored under it"
            )
        return self

    @property
    def has_consumers(self) -> bool:
        """Whether clients or brokers consume the stream besides the lake."""
        return bool(self.canal_server.port or self.brokers)
