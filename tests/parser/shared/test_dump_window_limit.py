"""Tests how many bytes a shared dump keeps for its slower readers."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.parser.shared.stream import SharedStream
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source


@pytest.mark.parametrize("buffers", [2, 3])
def test_a_shared_dump_keeps_a_limited_number_of_buffers(monkeypatch: pytest.MonkeyPatch, buffers: int) -> None:
    monkeypatch.setattr(limits, "SHARED_BYTES_MAX", buffers * limits.READ_BUFFER_BYTES)
    source = Source(destination="shop", host="127.0.0.1", port=1, user="root")
    window = SharedStream(source, Position(epoch=1, file="b.000001", offset=4))._window
    for number in range(10):
        assert window.make_room(0.0)
        window.add(number * limits.READ_BUFFER_BYTES, np.zeros(1, np.uint8))
    assert len(window._pieces) == buffers
