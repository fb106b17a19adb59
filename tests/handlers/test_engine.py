"""Tests the example handler of docs/handlers.md with a real engine: its package is installed, the engine calls it around a batch, and an
error names it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import HandlerError
from sluice.cdc_engine.handlers.calls import FILE
from tests.handlers.fix_handlers import install
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text()


def block(language: str) -> str:
    """Returns the first code block of the page in this language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def captured(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Returns a destination that has the handler of the page."""
    entries = tomllib.loads(block("toml"))["project"]["entry-points"]["sluice.handlers"]
    targets = {name: target.removeprefix("sluice_audit:") for name, target in entries.items()}
    install(tmp_path, monkeypatch, "sluice-audit", block("python"), **targets)
    made = Captured(tmp_path, request.getfixturevalue("mysql80"))
    made.describe(f"handlers: [{{name: audit, options: {{file: {tmp_path}/audit/lines}}}}]")
    return made


def test_a_handler_that_is_installed_is_called_by_the_engine_and_named_where_it_fails(
    captured: Captured, tmp_path: Path
) -> None:
    with running(captured) as engine:
        captured.insert([1])
        batch = wait_for("a batch is staged", lambda: engine.hand_out(0.5))
        engine.ack(batch)
        captured.insert([2])
        wanted = r"the handler audit failed in `after` for delivery 1, the batch that ends at .*: FileNotFoundError"
        with pytest.raises(HandlerError, match=wanted):
            engine.hand_out(5.0)
        status = engine.status()
        assert status.state == "HANDLER_FAILED"
        assert "the handler audit failed" in status.reason
        assert (captured.directory / FILE).exists()
    (tmp_path / "audit").mkdir()
    with running(captured) as engine:  # Another process makes the call that this one could not make.
        assert captured.take(engine, 1) == [2]
        wait_for("the state is well", lambda: engine.hand_out(0.2) is None and engine.status().state == "RUNNING")
    table = f"{captured.database}.numbers"
    assert (tmp_path / "audit" / "lines").read_text() == f"shop 1 1 {table}\nshop 2 1 {table}\n"
    assert not (captured.directory / FILE).exists()
