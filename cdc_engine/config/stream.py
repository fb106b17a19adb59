"""Defines the settings that destinations and groups have in common: the name, and the consumers of the stream besides the lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field, model_validator

from sluice.cdc_engine.config.brokers import AnyBroker
from sluice.cdc_engine.config.consumers import CanalServerConfig
from sluice.cdc_engine.source.settings import Strict


class StreamConfig(Strict):
    """A destination or a group, as a stream with consumers. The stream has the name of its file in conf/destinations."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    canal_server: CanalServerConfig = CanalServerConfig()
    brokers: tuple[AnyBroker, ...] = Field((), description="Message brokers that receive the changes.")

    @model_validator(mode="after")
    def _one_number_each(self) -> StreamConfig:
        numbers = [broker.client_id for broker in self.brokers]
        if len(set(numbers)) < len(numbers):
            raise ValueError(
                "two brokers have the same client_id: give each broker a different client_id, because its "
                "cursor is stored under this number"
            )
        return self

    @property
    def has_consumers(self) -> bool:
        """Whether clients or brokers consume the stream besides the lake."""
        return bool(self.canal_server.port or self.brokers)


def transactional_id_problems(streams: Mapping[str, StreamConfig]) -> Iterator[str]:
    """Yields a message for each `transactional_id` that several brokers have. `streams` are all destinations and groups."""
    users: dict[str, list[str]] = {}
    for name, stream in sorted(streams.items()):
        for broker in stream.brokers:
            # Only Kafka's settings have `transactional_id`. Uses getattr instead of their class, because kinds of brokers are plug-ins.
            if transactional_id := getattr(broker, "transactional_id", ""):
                users.setdefault(transactional_id, []).append(f"{broker.client_id} of {name}")
    for transactional_id, brokers in users.items():
        if len(brokers) > 1:
            yield (
                f"the brokers with client_id {' and '.join(brokers)} have the same transactional_id "
                f"{transactional_id}, so each broker would fence the other with every batch: give each broker "
                "a different transactional_id in conf/destinations"
            )
