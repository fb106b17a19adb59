"""Tests that systemd accepts docs/sluice.service as a unit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "docs" / "sluice.service"


def test_the_unit_starts_the_foreground_and_is_notified_when_it_is_ready() -> None:
    lines = UNIT.read_text().splitlines()
    assert "ExecStart=/opt/sluice/sluice up --foreground" in lines
    assert {"Type=notify", "KillMode=mixed", "Restart=on-failure"} <= set(lines)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not on this machine")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    unit = tmp_path / "sluice.service"
    # systemd requires that the program exists.
    unit.write_text(UNIT.read_text().replace("/opt/sluice/sluice", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
