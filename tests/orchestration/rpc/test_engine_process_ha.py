"""Tests `sluice engine` with a real source: callers connect and disconnect, and it is killed, started again and stopped."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.destination_files import lease_holder
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.keeping import acts
from sluice.cdc_engine.keeping.in_use import VARIABLE
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from sluice.orchestration.base.batch_reference import delivery_of
from sluice.orchestration.rpc.remote_host import RemoteEngine, RemoteHost
from tests.instance.fix_destination import Captured
from tests.style.sources import ROOT as PROJECT_ROOT
from tests.waiting import wait_for


class Installation:
    """A conf/, and the engine process that runs its engines."""

    def __init__(self, root: Path, server: DatabaseServer) -> None:
        self.captured = Captured(root, server)
        engine = f"engine: {{kind: remote, address: 127.0.0.1:{free_port()}}}\n"
        (self.captured.conf / "sluice.yaml").write_text(f"data_dir: {root}/data\nlake: {root}/lake\n{engine}")
        self.log = root / "engine.log"
        self.process = self.begun()

    def begun(self) -> ChildProcess:
        environment = {**os.environ, "SLUICE_CONF": str(self.captured.conf), "PYTHONPATH": str(PROJECT_ROOT)}
        command = [sys.executable, "-m", "sluice.orchestration.rpc.process"]
        return ChildProcess(command, self.log, environment=environment, die_with_parent=True)

    def engine(self) -> RemoteEngine:
        """Returns the engine as a code server that has just started sees it."""
        host = RemoteHost(load_config(self.captured.conf))

        def found() -> RemoteEngine | None:
            try:
                return host.get_or_start("shop")
            except SluiceError:
                return None

        return wait_for("the engine answers", found)

    def token(self) -> int:
        holder = lease_holder(self.captured.directory)
        return holder.token if holder is not None and holder.held else 0


@pytest.fixture
def installation(mysql80: DatabaseServer, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path, mysql80)
    yield made
    made.process.kill()


@pytest.mark.servers
def test_ha_an_engine_of_its_own_process_outlives_its_callers_and_continues_after_its_own_death(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = installation.captured
    first: Any = installation.engine()
    token = installation.token()
    captured.insert(range(3))
    assert captured.take(first, 3) == [0, 1, 2]
    captured.insert([3])
    batch = wait_for("a batch is staged", lambda: first.hand_out(0.5))
    second = installation.engine()
    assert second.outstanding() == batch, "another code server finds what is out"
    assert installation.token() == token, "the engine has noticed nothing"
    assert second.status().state == "RUNNING"

    # Dagster's definitions, as `dagster dev` loads them
    monkeypatch.setenv("SLUICE_CONF", str(captured.conf))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delitem(sys.modules, "sluice.orchestration.definitions", raising=False)
    definitions = importlib.import_module("sluice.orchestration.definitions")
    sensor = definitions.defs.resolve_sensor_def("shop_engine")
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, repository_def=definitions.defs.get_repository_def()) as context,
    ):
        (request,) = sensor.evaluate_tick(context).run_requests
    assert delivery_of(request.tags) == str(batch.delivery)
    monkeypatch.delitem(sys.modules, "sluice.orchestration.definitions")

    assert acts.restart("shop", load_config(captured.conf).destination_dir("shop")).done
    assert installation.token() > token
    os.kill(installation.process.pid, signal.SIGKILL)
    wait_for("it is dead", lambda: not installation.token())
    installation.process.kill()
    installation.process = installation.begun()
    third: Any = installation.engine()
    assert wait_for("the batch is out again", third.outstanding) == batch
    third.ack(batch)
    captured.insert([4])
    assert captured.take(third, 1) == [4]

    os.kill(installation.process.pid, signal.SIGTERM)
    wait_for("it has ended", lambda: installation.process.ended)
    assert installation.process.exit_code == 0
    assert installation.token() == 0, "in order: the lease is free"
    assert "destination=shop" in installation.log.read_text()


def test_ha_an_engine_that_conf_wants_inside_the_code_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.console.main import app  # noqa: PLC0415
    from tests.console.conftest import RUNNER  # noqa: PLC0415

    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr("sluice.orchestration.rpc.process.until_signal", threading.Event)
    answer = RUNNER.invoke(app, ["engine"])
    assert answer.exit_code == 1
    assert "engine: {kind: remote}" in str(answer.exception)
