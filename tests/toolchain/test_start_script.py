"""Tests the ./sluice script: a prepared checkout starts without changes, and an unprepared one names what it lacks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.style.sources import ROOT as PROJECT_ROOT

PROGRAMS = (
    "sh",
    "env",
    "dirname",
    "readlink",
    "cksum",
    "cat",
    "mkdir",
    "mktemp",
    "rm",
    "tail",
    "tr",
    "grep",
    "id",
    "ls",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("sluice", "uv.lock", "pyproject.toml"):
        shutil.copy2(PROJECT_ROOT / name, folder / name)
    return folder


def _start(checkout: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    quiet = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    return subprocess.run(
        [checkout / "sluice", *arguments],
        cwd=checkout.parent,
        env={**quiet, "SLUICE_CACHE": str(checkout.parent / "cache"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _stamp(checkout: Path) -> str:
    """Returns what the script writes when it has installed everything, and compares at the next start."""
    sums = [
        subprocess.run(["cksum"], input=(checkout / name).read_bytes(), capture_output=True, check=True).stdout.decode()
        for name in ("uv.lock", "pyproject.toml")
    ]
    return " ".join([str(checkout), *(each.strip() for each in sums)])


def test_prepared_checkout_starts_at_once(checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (checkout / ".venv" / "sluice.stamp").write_text(_stamp(checkout) + "\n")
    done = _start(checkout, "test", "-k", "two words")
    assert (done.returncode, done.stdout) == (0, "-P -m sluice.console.main test -k two words\n")
    assert not (checkout.parent / "cache").exists()


def test_no_network_ends_the_first_start_with_one_sentence(checkout: Path) -> None:
    dead = "http://127.0.0.1:9"
    done = _start(checkout, "setup", HTTPS_PROXY=dead, https_proxy=dead, PIP_RETRIES="0")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "check the network" in done.stderr


def test_missing_python_is_named(checkout: Path) -> None:
    programs = checkout.parent / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    done = _start(checkout, "setup", PATH=str(programs))
    assert done.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 was not found" in done.stderr


def test_unwritable_cache_is_named(checkout: Path) -> None:
    (checkout.parent / "file").touch()
    done = _start(checkout, "setup", SLUICE_CACHE=str(checkout.parent / "file" / "cache"))
    assert done.returncode == 1
    assert "set SLUICE_CACHE to a folder you may write to" in done.stderr
