"""`sluice up` starts an engine process in addition to the others if conf/ requires one on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import EngineConfig, SluiceConfig
from sluice.console.stack.processes import ENGINE, engine_port, part_names
from sluice.console.stack.stack import STOP_ORDER, Stack

FAR: dict[str, Any] = {"token_env": "T", "authority": Path("/ca.pem")}


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
