"""Tests that the logs of the processes of `sluice up` stay below a size while the processes write."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from sluice.cdc_engine.keeping import log_files
from sluice.cdc_engine.keeping.log_files import LOOK_SECONDS, LogFiles

PRINTS = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
LIMIT = 1000
LINE = "x" * 99 + "\n"


class Writer:
    """A process that appends given text to a log."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=output, text=True
            )

    def write(self, text: str, log: Path, size: int) -> None:
        """Lets the process write `text`, and waits until the log has at least `size` bytes."""
        stdin: IO[str] = self.process.stdin  # type: ignore[assignment]  # a pipe
        stdin.write(text)
        stdin.flush()
        while log.stat().st_size < size:
            assert self.process.poll() is None


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_files, "LOG_BYTES_MAX", LIMIT)
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder / "daemon.log"


@pytest.fixture
def writer(log: Path) -> Iterator[Writer]:
    made = Writer(log)
    yield made
    made.process.communicate()


def looks(log: Path) -> tuple[LogFiles, Any]:
    return LogFiles(clock=iter(range(0, 10_000, int(LOOK_SECONDS) + 1)).__next__), SimpleNamespace(
        config=SimpleNamespace(data_dir=log.parents[1])
    )


def test_a_log_that_is_too_large_begins_again_and_its_process_continues_to_write(log: Path, writer: Writer) -> None:
    files, in_use = looks(log)
    writer.write(LINE * 10, log, LIMIT)
    files.look(in_use)
    assert log.stat().st_size == LIMIT, "no more than the limit"
    writer.write(LINE, log, LIMIT + 1)
    files.look(in_use)
    assert log.read_text() == ""
    assert log.with_name("daemon.log.1").read_text() == LINE * 10, "the newest lines"
    writer.write("after\n", log, 6)
    assert log.read_text() == "after\n", "the process writes at the beginning of the file"


def test_a_full_disk_loses_nothing_of_a_log_and_gets_no_fuller(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any, copy: IO[bytes]) -> None:
        copy.write(b"a part")
        raise OSError(28, "No space left on device")

    files, in_use = looks(log)
    log.write_text(LINE * 11)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        files.look(in_use)
    assert log.read_text() == LINE * 11
    assert [each.name for each in log.parent.iterdir()] == [log.name]
    files.look(in_use)
    assert log.read_text() == ""


def test_the_sizes_are_looked_at_once_a_minute(log: Path) -> None:
    _, in_use = looks(log)
    files = LogFiles(clock=lambda: 1.0)
    files.look(in_use)
    log.write_text(LINE * 11)
    files.look(in_use)
    assert log.read_text() == LINE * 11
