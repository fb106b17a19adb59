"""Tests the limits of tests with a separate pytest, in which some tests never end. Each of them is reported by name, and the other tests
continue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.style.sources import ROOT

CONFTEST = """
import pytest
import tests.limits
from tests.conftest import Groups

pytest_plugins = ["tests.limits"]
tests.limits.MARGIN_SECONDS = 3.0

class OneGroup(Groups):
    def _split_scope(self, nodeid):
        return "all"

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneGroup(config, log)
"""
ENDLESS = """
import threading
import pytest

@pytest.fixture
def waits_at_its_end():
    yield
    threading.Event().wait()

@pytest.mark.timeout(1)
def test_fails_and_its_fixture_never_ends(waits_at_its_end):
    raise ValueError

def test_first():
    pass

@pytest.mark.timeout(1)
def test_hears_no_signal():
    sum(range(10 ** 15))

def test_last():
    pass
"""


def test_what_never_ends_is_named_and_the_other_tests_continue(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "1",
        "--max-worker-restart",
        "1",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 error" in done.stdout
    assert "ERROR at teardown of test_fails_and_its_fixture_never_ends" in done.stdout
    assert "crashed while running" in done.stdout
    assert "in test_hears_no_signal" in done.stderr
