"""Tests that `sluice up` also starts an engine process if conf/ requires one on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import EngineConfig, SluiceConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.stack.processes import DAGSTER_PARTS, ENGINE, PARTS, engine_port, part_names
from sluice.console.stack.stack import STOP_ORDER, Stack, StackOptions
from sluice.console.stack.supervisor import FOREGROUND

FAR: dict[str, Any] = {"token": "$T", "ca_file": Path("/ca.pem")}


def config_with(root: Path, **engine: Any) -> SluiceConfig:
    return SluiceConfig(data_dir=root, lake=str(root / "lake"), engine=EngineConfig(**engine))


@pytest.mark.parametrize(
    ("engine", "port"),
    [
        ({}, 0),
        ({"kind": "remote"}, 4267),
        ({"kind": "remote", "address": "localhost:7"}, 7),
        ({"kind": "remote", "address": "127.0.0.1:7", "listen": "0.0.0.0:8", **FAR}, 8),
        ({"kind": "remote", "address": "engine1:7,engine2:7", "listen": "0.0.0.0:7", **FAR}, 0),
    ],
)
def test_ha_up_starts_an_engine_process_where_it_is_of_this_host(
    tmp_path: Path, engine: dict[str, Any], port: int
) -> None:
    config = config_with(tmp_path, **engine)
    assert engine_port(config) == port
    assert (ENGINE in part_names(config)) == bool(port)
    names = [part.name for part in Stack(config, tmp_path / "conf", print)._parts()]
    assert (ENGINE in names) == bool(port)
    assert ENGINE in STOP_ORDER


def test_without_dagster_the_engine_and_spark_are_started(tmp_path: Path) -> None:
    stack = Stack(config_with(tmp_path, kind="remote"), tmp_path / "conf", print, StackOptions(dagster=False))
    names = {part.name for part in stack._parts()}
    assert {ENGINE, PARTS[-1]} <= names
    assert not names.intersection(DAGSTER_PARTS)
    assert "because your own Dagster calls the engines" in stack.shown_at


def test_without_dagster_an_engine_in_its_code_server_is_refused(tmp_path: Path) -> None:
    stack = Stack(config_with(tmp_path), tmp_path / "conf", print, StackOptions(dagster=False))
    with pytest.raises(ConfigurationError, match=r"no engine to start on this host: set engine: \{kind: remote\}"):
        stack.supervisor(FOREGROUND)
