"""Tests the demo's folder: a configuration that the engine accepts, one demo at a time, and a password that only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sluice.console.demo.home import DemoHome, demo_ports
from sluice.console.demo.source import PASSWORD_VARIABLE, DemoSource
from sluice.console.stack.processes import MARK
from sluice.console.stack.stack import Stack, StackOptions
from sluice.console.toolchain.errors import SetupError


@pytest.mark.servers
def test_the_written_configuration_is_the_engines_and_holds_no_secret(tmp_path: Path) -> None:
    home = DemoHome(tmp_path)
    source = DemoSource(home.source_folder, 34567)
    config = home.configure(demo_ports(34560)[0], source.destination())
    shop = config.destinations["shop"]
    assert (shop.source.port, shop.start.file, config.ports.code_server) == (34567, "binlog.000001", 34561)
    assert Path(config.lake) == home.lake
    for file in home.conf.rglob("*.yaml"):
        assert source.password not in file.read_text()
    assert stat.S_IMODE((home.source_folder / "password").stat().st_mode) == 0o600
    assert DemoSource(home.source_folder, 1).password == source.password, "a resumed demo keeps it"


@pytest.mark.servers
def test_children_get_the_password_and_the_mark_by_environment(tmp_path: Path) -> None:
    home = DemoHome(tmp_path)
    config = home.configure(demo_ports(34560)[0], DemoSource(home.source_folder, 1).destination())
    stack = Stack(config, home.conf, print, StackOptions(environment={PASSWORD_VARIABLE: "x"}))
    environment = stack.environment()
    assert environment[PASSWORD_VARIABLE] == "x"
    assert environment["SLUICE_CONF"] == str(home.conf)
    assert environment[MARK] == str(config.data_dir / "processes.json")
    assert stack.starts_spark


def test_a_second_demo_in_a_folder_is_refused_and_a_stale_lock_is_not_in_the_way(tmp_path: Path) -> None:
    home = DemoHome(tmp_path)
    (tmp_path / "demo.lock").write_text("999999")
    with home.alone(), pytest.raises(SetupError, match=f"pid {os.getpid()}"), DemoHome(tmp_path).alone():
        raise AssertionError
    with home.alone():
        assert (tmp_path / "demo.lock").read_text() == str(os.getpid())


def test_starting_over_deletes_only_what_the_demo_made(tmp_path: Path) -> None:
    home = DemoHome(tmp_path)
    (home.lake / "shop").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    home.start_over()
    assert not home.lake.exists()
    assert (tmp_path / "notes.txt").exists()
