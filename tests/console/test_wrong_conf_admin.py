"""Tests commands while a file of conf/ is invalid: they use the settings that the stack uses, and `down` finds the stack in any case."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.in_use import VARIABLE
from sluice.console.commands.options import config_now
from sluice.console.main import app
from sluice.console.stack.processes import MARK, ProcessFile
from tests.console.conftest import RUNNER
from tests.keeping.test_conf_watch_admin import OTHER, WRONG, Conf
from tests.waiting import wait_for


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conf:
    """Returns a conf/ whose code server has begun once. Then the file of `shop` became invalid."""
    made = Conf(tmp_path)
    made.put("shop")
    made.put("crm")
    monkeypatch.setenv("SLUICE_CONF", str(made.directory))
    monkeypatch.setenv(VARIABLE, "")
    ConfWatch(made.directory, "code-server")
    monkeypatch.setenv(VARIABLE, "")  # This concerns only the code server.
    made.put("shop", WRONG)
    made.put("crm", OTHER)
    return made


def test_admin_a_wrong_file_is_reported_and_the_others_can_be_worked_on(
    conf: Conf, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = {name: each.source.port for name, each in config_now().destinations.items()}
    assert ports == {"crm": 3307, "shop": 3306}
    reported = capsys.readouterr()
    assert (
        "destinations/shop.yaml in conf/ is not used, and the last valid content of this file stays in use: "
        in reported.err
    )
    assert "source.prot" in reported.err
    assert reported.out == "", "for programs that read it"
    conf.main("ports: 7\n")
    with pytest.raises(ConfigurationError):
        config_now()


def test_admin_up_starts_what_is_right(conf: Conf, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[SluiceConfig] = []

    class Begun:
        shown_at, logs = "Dagster's UI: http://127.0.0.1:3000", conf.directory

        def __init__(self, config: SluiceConfig, *_: Any, **__: Any) -> None:
            begun.append(config)

        def require_startable(self) -> None:
            """Pretends that all ports are free."""

        def up(self) -> None:
            """Pretends that all parts answer."""

    monkeypatch.setattr("sluice.console.stack.stack.Stack", Begun)
    monkeypatch.setattr("sluice.console.toolchain.kernels.compile_kernels", lambda *_: None)
    answer = RUNNER.invoke(app, ["up"])
    assert answer.exit_code == 0, answer.output
    assert sorted(begun[0].destinations) == ["crm", "shop"]


def test_admin_down_finds_what_runs_whatever_conf_says_by_now(conf: Conf, tmp_path: Path) -> None:
    file = ProcessFile(tmp_path / "data" / "processes.json")
    environment = {**os.environ, MARK: str(file.path), "SLUICE_CONF": str(conf.directory)}
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(program, start_new_session=True, env=environment) as child:
        try:
            wait_for("its environment is there", lambda: MARK in psutil.Process(child.pid).environ())
            file.add("daemon", child.pid)
            conf.main(f"data_dir: {tmp_path}/elsewhere\nports: 7\n")
            answer = RUNNER.invoke(app, ["down"])
            assert answer.exit_code == 0, answer.output
            assert child.wait(20) != 0
        finally:
            child.kill()
    assert RUNNER.invoke(app, ["down"]).exit_code != 0, "nothing runs, and where it would is not known"
