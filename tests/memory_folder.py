"""Where the servers that all tests share keep their data: in memory where the machine has room, for nothing of it outlives the tests.

A data definition statement costs a MariaDB on a disk 15 ms and one in memory 1 ms, and the tests run some ten thousand of them.
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
FREE_BYTES_MIN = 8 << 30  # some 200 MB a server, and what their binlogs grow to
PREFIX = "sluice-tests-"


def has_room() -> bool:
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > FREE_BYTES_MIN


def sweep() -> None:
    """Folders of tests that were killed."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(PREFIX).partition("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the data of servers, gone after the tests; on the disk of the other tests' files where memory is scarce."""
    if not has_room():
        yield tmp_path_factory.mktemp("servers")
        return
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)
