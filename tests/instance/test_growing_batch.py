"""Tests a batch that is larger than the ring, which is possible because its staged part frees space. After a rollback it is read from the
source again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.limits import READ_BUFFER_BYTES
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

ROWS, ROW_BYTES = 24, 1 << 20
RING_BYTES = READ_BUFFER_BYTES  # This is the smallest ring. The backlog is six times as large.


def next_batch(engine: Engine) -> OutstandingBatch:
    return wait_for("a batch is staged", lambda: engine.hand_out(0.5))


def test_a_backlog_beyond_the_ring_is_few_batches(mysql80: DatabaseServer, tmp_path: Path) -> None:
    captured = Captured(tmp_path, mysql80)
    captured.describe(f"ring: {{bytes_max: {RING_BYTES}}}")
    engine = Engine(captured.config, "shop")
    engine.start()
    captured.insert([0])
    captured.take(engine, 1)
    engine.stop()
    captured.insert(range(1, ROWS + 1), filler_bytes=ROW_BYTES)
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        batch = next_batch(engine)
        first = captured.staged(batch)
        assert first == list(range(1, len(first) + 1))
        assert engine.status().ring_bytes <= RING_BYTES + READ_BUFFER_BYTES < batch.bytes
        engine.rollback(batch)
        assert captured.take(engine, ROWS) == list(range(1, ROWS + 1))
        captured.insert([ROWS + 1])
        assert captured.take(engine, 1) == [ROWS + 1]
    finally:
        engine.stop()
