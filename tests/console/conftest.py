"""Provides a conf/ and a data directory, for commands that are called as an operator calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sluice.console.toolchain.ports import free_port

SECRET = "very-secret-42"  # noqa: S105
RUNNER = CliRunner()


class Installation:
    """The conf/ and the data directory of one test."""

    def __init__(self, folder: Path) -> None:
        self.conf, self.data = folder / "conf", folder / "data"
        (self.conf / "destinations").mkdir(parents=True)
        port = free_port()
        self.write(
            "sluice.yaml",
            {
                "data_dir": str(self.data),
                "lake": str(folder / "lake"),
                "ports": {"webserver": free_port(), "code_server": free_port(), "spark_connect": port},
                "spark": {"remote": f"sc://127.0.0.1:{port}"},
            },
        )

    def write(self, name: str, record: dict[str, Any]) -> None:
        (self.conf / name).write_text(yaml.safe_dump(record))

    def destination(self, port: int, user: str = "sluice") -> Path:
        source = {"port": port, "user": user, "password": "$SLUICE_TEST_PASSWORD"}
        self.write("destinations/shop.yaml", {"source": source, "include": r"shop\..*"})
        return self.data / "engine" / "shop"


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    made = Installation(tmp_path)
    monkeypatch.setenv("SLUICE_CONF", str(made.conf))
    monkeypatch.setenv("SLUICE_TEST_PASSWORD", SECRET)
    monkeypatch.setenv("COLUMNS", "250")
    return made
