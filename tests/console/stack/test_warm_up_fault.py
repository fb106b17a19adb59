"""The warm-up of Spark ends itself, because `sluice up` does not wait for it: with its server, and after some time."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.console.toolchain.spark.server import WARM_UP


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers, as a Spark that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _begin(server: socket.socket, folder: Path, seconds_max: int) -> subprocess.Popen[bytes]:
    url = f"sc://127.0.0.1:{server.getsockname()[1]}"
    return subprocess.Popen([sys.executable, "-m", WARM_UP, url, str(folder / "warm"), str(seconds_max)])


def test_fault_it_ends_when_nothing_listens_at_the_port(silent: socket.socket, tmp_path: Path) -> None:
    program = _begin(silent, tmp_path, 300)
    silent.accept()[0].close()
    assert program.poll() is None
    silent.close()
    assert program.wait(60) == 1


def test_fault_it_ends_after_its_time_although_its_server_accepts_connections(
    silent: socket.socket, tmp_path: Path
) -> None:
    assert _begin(silent, tmp_path, 1).wait(60) == -14
