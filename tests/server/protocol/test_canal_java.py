"""Tests Canal's own Java client, unmodified, with a running engine: it subscribes, gets, rolls back, disconnects, connects again, acks and
unsubscribes.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from benchmarks.canal.server import java_command
from sluice.canal_client import CanalClient
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.server.protocol.listener import Address, CanalListener
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.canal_client.fix_served import Destination
from tests.instance.fix_destination import Captured

pytestmark = pytest.mark.servers

PROGRAM = Path(__file__).with_name("StockClient.java")
HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"  # the hash of the password "canal"
ROWS = 300


def test_canals_java_client_gets_rolls_back_comes_again_and_acks(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("CANAL_HASH", HASH)
    captured = Captured(tmp_path, mysql80)
    captured.describe(f"canal_server: {{port: {port}, user: canal, password_hash: $CANAL_HASH}}")
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert(range(ROWS))
        words = [str(port), "shop", rf"{captured.database}\.numbers", str(ROWS), "canal", "canal"]
        done = subprocess.run(
            [*java_command("canal-client"), str(PROGRAM), *words],
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        columns = [line.split() for line in done.stdout.splitlines() if line.startswith("column n ")]
        assert [int(value) for _, _, value, _ in columns] == [*range(ROWS)]
        assert {key for *_, key in columns} == {"true"}
        assert f"rows {ROWS} {ROWS}" in done.stdout
        assert engine.status().consumers == ()
    finally:
        engine.stop()


@pytest.mark.found
def test_canals_java_client_shows_why_it_is_not_let_in() -> None:
    """Defect 21: Canal's clients above the limit of connections were disconnected without a reason."""
    with contextlib.closing(CanalListener(Address(connections_max=1))) as listener:
        listener.serve("example", Destination([]))
        with CanalClient("example", port=listener.port):
            done = subprocess.run(
                [*java_command("canal-client"), str(PROGRAM), str(listener.port), "example", ".*", "1", "", ""],
                capture_output=True,
                text=True,
                timeout=250,
                check=False,
            )
    assert done.returncode != 0
    assert "1 clients are connected, and canal_server.connections_max allows no more" in done.stderr
