"""Tests that the warm-up of Spark ends by itself, because `sluice up` does not wait for it. It ends when its server ends, and after some
time. Also tests that the warm-up waits until other processes do not need the processors.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.console.stack.parts import WarmUp
from sluice.console.stack.stack import CODE_SERVER, DAEMON, IDLE_SECONDS_MAX, SPARK, WEBSERVER, Stack, StackOptions
from sluice.console.toolchain.spark.server import WARM_UP
from sluice.console.toolchain.spark.warmup import IDLE_PERCENT, wait_until_idle

BUSY, IDLE = IDLE_PERCENT, IDLE_PERCENT - 1


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Yields a server that accepts connections and never answers, like a Spark that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _begin(server: socket.socket, folder: Path, seconds_max: int) -> subprocess.Popen[bytes]:
    url = f"sc://127.0.0.1:{server.getsockname()[1]}"
    return subprocess.Popen([sys.executable, "-m", WARM_UP, url, str(folder / "warm"), str(seconds_max), "0"])


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


@pytest.mark.parametrize(
    ("used", "looks"),
    [([IDLE, IDLE], 2), ([BUSY, IDLE, BUSY, IDLE, IDLE, BUSY], 5), ([BUSY] * 9, 7)],
    ids=["idle", "idle after some time", "busy until the deadline"],
)
def test_the_merges_of_the_warm_up_wait_until_the_processors_are_idle(used: list[float], looks: int) -> None:
    """Otherwise these merges would share the processors with a run that begins when `sluice up` has started everything."""
    looked = list[float]()

    def used_percent() -> float:
        looked.append(used[len(looked)])
        return looked[-1]

    wait_until_idle(used_percent, 7.0, lambda: float(len(looked)))
    assert len(looked) == looks


def test_the_warm_up_waits_for_no_processors_after_its_deadline() -> None:
    wait_until_idle(lambda: pytest.fail("it looks"), 0.0, lambda: 0.0)


@pytest.mark.parametrize("awaits", [False, True])
def test_what_no_run_needs_starts_after_the_daemon(tmp_path: Path, awaits: bool) -> None:
    """The first run waits for the daemon, which would share the processors with the webserver and the warm-up."""
    config, options = SluiceConfig(data_dir=tmp_path, lake=str(tmp_path / "lake")), StackOptions(awaits_warm_up=awaits)
    parts = {part.name: part for part in Stack(config, tmp_path / "conf", print, options)._parts()}
    assert set(parts[WEBSERVER].after) == {CODE_SERVER, DAEMON}
    assert parts[WarmUp.name].after == (SPARK,)
    warm_up = parts[WarmUp.name]
    assert isinstance(warm_up, WarmUp)
    assert warm_up._command[-1] == str(0.0 if awaits else IDLE_SECONDS_MAX)
