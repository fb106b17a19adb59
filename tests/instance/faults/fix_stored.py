"""Provides an engine that only reads, so that everything it has read is only in its file store, and a source that purges its binlog."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.instance.engine_process import ROOT
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

READS = """
import sys, time
from pathlib import Path
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.engine.engine import Engine
Engine(load_config(Path(sys.argv[1])), "shop").start()
time.sleep(600)
"""


@contextmanager
def reading(shop: Captured) -> Iterator[subprocess.Popen[bytes]]:
    """Runs an engine in another process, which reads the source but hands out no batch. Ends the process with SIGKILL."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", READS, str(shop.conf)], env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait_until_read(shop: Captured) -> None:
    """Waits until the engine has read the source's binlog to its current end, as the engine's status file shows."""
    with shop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]

    def there() -> bool:
        path = shop.directory / "status.json"
        position = json.loads(path.read_text())["position"] if path.exists() else None
        return position is not None and (position["file"], position["offset"]) >= (file, offset)

    wait_for(f"all up to {file}:{offset} is read", there, seconds_max=90.0)


def purge_before_now(shop: Captured) -> None:
    with shop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        cursor.execute(f"PURGE BINARY LOGS TO '{cursor.fetchone()[0]}'")
