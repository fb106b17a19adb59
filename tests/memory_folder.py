"""Provides the data folder of the shared servers. It is in memory if the machine has enough, because its content is not needed after the
tests.

A DDL statement takes MariaDB 15 ms on a disk and 1 ms in memory, and the tests run some ten thousand of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")  # noqa: S108  a file system of Linux, no name that others could guess
FREE_BYTES_MIN = 8 << 30  # Each server needs some 200 MB, and space for its binlogs.
PREFIX = "sluice-tests-"


def has_room() -> bool:
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > FREE_BYTES_MIN


def sweep() -> None:
    """Removes the folders of tests that were killed."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(PREFIX).partition("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns a folder for the data of servers, which is removed after the tests. If there is little memory, it is on disk with the other
    test files.
    """
    if not has_room():
        yield tmp_path_factory.mktemp("servers")
        return
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)
