"""Tests that the broker in memory passes the tests that every broker must pass."""

from __future__ import annotations

import itertools

import pytest

from sluice.cdc_engine.brokers.contract_suite import BrokerUnderTest, PublisherContract
from sluice.cdc_engine.brokers.publisher import MemoryBroker, Publisher


class MemoryUnderTest:
    partitions = 3
    where, secret = "the broker in memory", ""

    def __init__(self) -> None:
        self._broker = MemoryBroker({})
        self._names = itertools.count()

    def topic(self) -> str:
        name = f"topic_{next(self._names)}"
        assert self._broker.topics is not None
        self._broker.topics[name] = self.partitions
        return name

    def publisher(self) -> Publisher:
        return self._broker.publisher()

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        found = self._broker.messages(topic, partition)
        assert len(found) >= count
        return found

    def stall(self) -> None:
        self._broker.stalls = True

    def kill(self) -> None:
        self._broker.stalls, self._broker.refuses = False, lambda _: f"{self.where} was killed"

    def start(self) -> None:
        self._broker.refuses = lambda _: ""


class TestMemoryBroker(PublisherContract):
    @pytest.fixture
    def broker(self) -> BrokerUnderTest:
        return MemoryUnderTest()
