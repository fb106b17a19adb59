"""Tests what `sluice catch-up` starts and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cdc_engine.config import SluiceConfig
from sluice.console.acts import catch_up
from sluice.console.stack.stack import Stack
from sluice.console.toolchain.errors import SetupError


def test_a_start_that_fails_stops_nothing_that_another_command_started_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Stack] = []

    def down(stack: Stack) -> list[Any]:
        stopped.append(stack)
        return []

    def fails(_stack: Stack) -> list[str]:
        raise SetupError("Port 4000 is taken")

    monkeypatch.setattr(Stack, "require_startable", lambda _: None)
    monkeypatch.setattr(Stack, "up", fails)
    monkeypatch.setattr(Stack, "down", down)
    config = SluiceConfig(data_dir=tmp_path, lake=str(tmp_path / "lake"))
    with pytest.raises(SetupError, match="Port 4000"), catch_up.running(config, tmp_path, ["shop"], lambda _: None):
        pass
    assert not stopped
    monkeypatch.setattr(Stack, "up", lambda _: [])
    with catch_up.running(config, tmp_path, ["shop"], lambda _: None):
        assert not stopped
    assert len(stopped) == 1
