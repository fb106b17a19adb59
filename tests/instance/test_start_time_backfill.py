"""Tests a destination that begins at a time, on real servers: it gets what committed then or later, and does not start if the binlog of
that time is gone.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import PositionLostError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.time_text import time_text
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running

pytestmark = pytest.mark.servers


def insert_at(captured: Captured, number: int, seconds: int) -> None:
    """Inserts a row whose transaction committed, according to the binlog, at a time in seconds since 1970."""
    mariadb = "mariadb" in captured.server.version
    clock = () if mariadb else (f"SET original_commit_timestamp = {seconds * 1_000_000 + 1}",)
    captured.run(f"SET TIMESTAMP = {seconds}", *clock, f"INSERT INTO {captured.database}.numbers VALUES ({number}, '')")


@pytest.mark.parametrize("kind", ["mysql80", "mariadb114"])
def test_a_destination_begins_at_the_time_that_conf_names_backfill(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    captured = Captured(tmp_path, server)
    # Begins a new binlog file, because earlier files may have transactions of other tests with commit times in the future.
    captured.run("FLUSH BINARY LOGS")
    base = int(time.time()) + 1000
    for number in range(4):
        insert_at(captured, number, base + 10 * number)
    captured.describe(f"start: {{time: '{time_text((base + 15) * 1_000_000)}'}}")
    with running(captured) as engine:
        assert captured.take(engine, 2) == [2, 3]
    captured.insert([4])
    with running(captured) as engine:
        assert captured.take(engine, 1) == [4], "afterwards only the saved position counts"


def test_a_destination_does_not_begin_at_a_time_that_is_gone_backfill(mysql80: DatabaseServer, tmp_path: Path) -> None:
    captured = Captured(tmp_path, mysql80)
    captured.describe("start: {time: '2001-01-01T00:00:00Z'}")
    with pytest.raises(PositionLostError, match="the earliest time that can be read is"):
        Engine(captured.config, "shop").start()
