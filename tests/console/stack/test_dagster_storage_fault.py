"""Tests what Sluice reports about Dagster's storage and daemon: whether the storage was removed, whether the daemon runs, and the size of
the storage.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from sluice.console.stack.dagster_storage import MAKING_SECONDS_MAX, daemon_sentence, lost_storage, storage_bytes

LONG = MAKING_SECONDS_MAX + 1


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a home as Dagster itself does."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as instance:
        assert instance.get_runs() == []
        assert instance.all_instigator_state() == []
    return tmp_path


def test_fault_a_storage_that_is_there_is_not_lost(home: Path) -> None:
    assert lost_storage(home, LONG) == ""


@pytest.mark.parametrize("folder", ["history", "schedules"])
def test_fault_a_storage_that_was_wiped_is_reported_with_what_to_do(home: Path, folder: str) -> None:
    shutil.rmtree(home / folder)
    assert folder in lost_storage(home, LONG)
    assert "sluice up" in lost_storage(home, LONG)
    assert lost_storage(home, MAKING_SECONDS_MAX - 1) == "", "it may still be made"
    (home / folder).mkdir()
    for name in ("runs.db", "schedules.db"):
        sqlite3.connect(home / folder / name).close()
    assert folder in lost_storage(home, LONG), "an empty file that a process has created again holds nothing"
    (home / "dagster.yaml").write_text("storage:\n  postgres: {}\n")
    assert lost_storage(home, LONG) == "", "it is kept elsewhere"


@pytest.mark.found
def test_a_daemon_that_runs_is_not_reported_as_away(home: Path) -> None:
    """Defect 29: "Dagster's daemon does not run" was reported although the daemon ran. Only its ticks did not reach the engine."""
    now = 1_800_000_000.0
    assert "no heartbeat" in daemon_sentence(home, now)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(now - 20, "SENSOR", "1", []))
    assert daemon_sentence(home, now).startswith("Dagster's daemon runs (its last heartbeat was 20 s ago)")
    assert daemon_sentence(home, now + 600).startswith(
        "Dagster's daemon does not run or hangs (its last heartbeat was 620 s"
    )


def test_the_size_is_that_of_all_files(home: Path) -> None:
    """The size includes the files of runs. If the storage is in a database, the size is unknown."""
    before = storage_bytes(home)
    assert before
    (home / "history" / "runs" / "a-run.db").write_bytes(b"x" * 1000)
    assert storage_bytes(home) == before + 1000
    (home / "dagster.yaml").write_text("storage:\n  postgres: {}\n")
    assert storage_bytes(home) is None
