"""`sluice up` with Dagster and Spark themselves: both are killed amid the start, and everything runs in the end; `down` leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sluice.cdc_engine.config import load_config
from sluice.console.stack.processes import ENGINE, ProcessFile
from sluice.console.stack.stack import CODE_SERVER, SPARK, STOP_ORDER, Stack
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.kernels import compile_kernels
from sluice.console.toolchain.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]

SECONDS_MAX = 400.0


@pytest.mark.timeout(600)
def test_fault_up_goes_on_when_spark_dies_in_its_warm_up_and_the_code_server_after_it(tmp_path: Path) -> None:
    compile_kernels(open_cache(), print)  # `up` would do it first, for minutes
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    spark = free_port()
    ports = {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark}
    record = {"ports": ports, "spark": {"remote": f"sc://127.0.0.1:{spark}"}}
    (tmp_path / "conf" / "sluice.yaml").write_text(yaml.safe_dump(record))
    file, said = ProcessFile(tmp_path / "data" / "processes.json"), tmp_path / "said"
    environment = {**os.environ, "SLUICE_CONF": str(tmp_path / "conf")}
    with said.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "-m", "sluice.console.main", "up"], stdout=output, stderr=output, env=environment
        )
    try:
        wait_for("the warm-up", lambda: "starting the warm-up" in said.read_text(), SECONDS_MAX)
        for name in (SPARK, CODE_SERVER):
            os.kill(file.running()[name].pid, signal.SIGKILL)
        assert up.wait(SECONDS_MAX) == 0, said.read_text()
        assert said.read_text().count("ended (signal 9)") >= 2
        # an engine is a process of its own only where engine.remote says so
        assert set(file.running()) == set(STOP_ORDER) - {ENGINE}
    finally:
        up.kill()
        up.wait()
        left = Stack(load_config(tmp_path / "conf"), tmp_path / "conf", print).down()
    assert left == []
    assert file.load() == []
