"""Tests the file store of an engine that was killed, and a full disk under the store. The source purges its binlog after the kill, so the
engine continues from its own files. Every row arrives once.

The killed engine is a separate process from which nobody requests batches, so everything that it read is only in the files.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import StoreUnfitError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.faults.fix_stored import purge_before_now, reading, wait_until_read
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

FILE, MEMORY = "store: {kind: file}", "store: {kind: memory}"


@pytest.fixture
def shop(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    captured = Captured(tmp_path, mysql80)
    captured.describe(FILE)
    return captured


def test_fault_a_killed_engine_continues_from_its_file_store_though_the_source_purged(shop: Captured) -> None:
    with running(shop) as engine:
        shop.insert(range(10))
        assert shop.take(engine, 10) == list(range(10))
    with reading(shop):
        shop.insert(range(10, 40), filler_bytes=2000)
        shop.run("FLUSH BINARY LOGS")
        shop.run(f"ALTER TABLE {shop.database}.numbers ADD COLUMN note VARCHAR(20)")
        shop.run(f"INSERT INTO {shop.database}.numbers SELECT n + 100, filler, 'late' FROM {shop.database}.numbers")
        wait_until_read(shop)
    purge_before_now(shop)
    newest = max(shop.directory.glob("events/*.events"))
    newest.write_bytes(newest.read_bytes() + b"SLE1 torn off")
    shop.run(f"INSERT INTO {shop.database}.numbers (n) VALUES (500)")
    shop.describe(MEMORY)
    with pytest.raises(
        StoreUnfitError, match=r"another kind of store. The source no longer has these events either: .*purged"
    ):
        Engine(shop.config, "shop").start()
    shop.describe(FILE)
    with running(shop) as engine:
        wanted = [*range(10, 40), *range(100, 140), 500]
        assert shop.take(engine, len(wanted)) == wanted
        assert engine.hand_out(0.0) is None


def test_fault_a_full_disk_under_the_file_store_is_a_state_and_ends(
    shop: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev
    full = [True]

    def pwritev(descriptor: int, views: list[memoryview], offset: int) -> int:
        if full and str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(".events"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, views, offset)

    with running(shop) as engine:
        monkeypatch.setattr(os, "pwritev", pwritev)
        shop.insert(range(5))
        wait_for("the engine says it", lambda: engine.status().state == "STORE_FULL")
        assert "No space left on device" in engine.status().reason
        full.clear()
        assert shop.take(engine, 5) == list(range(5))
        wait_for("the engine reads again", lambda: engine.status().state == "RUNNING")
