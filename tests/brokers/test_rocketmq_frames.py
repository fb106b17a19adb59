"""What a RocketMQ server may answer."""

from __future__ import annotations

import struct

import pytest

from sluice.cdc_engine.brokers import rocketmq
from sluice.cdc_engine.brokers import rocketmq_wire as wire
from sluice.cdc_engine.config.brokers import RocketConfig
from sluice.cdc_engine.errors import PublishError


class Answering:
    """A socket that receives these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def settimeout(self, seconds: float) -> None: ...

    def recv(self, _size: int) -> bytes:
        return self.data


@pytest.mark.parametrize("length", [-1, wire.FRAME_BYTES_MAX + 1])
def test_broker_an_answer_that_is_too_large_is_refused_before_it_is_read(length: int) -> None:
    target = rocketmq.RocketTarget(RocketConfig(kind="rocketmq", servers="127.0.0.1:9876", topic="shop"), str, None)
    connection = rocketmq._Connection(target, "127.0.0.1:10911")
    connection._socket = Answering(struct.pack(">i", length))  # type: ignore[assignment]
    with pytest.raises(PublishError, match=f"a frame of {length} bytes"):
        connection._receive()
