"""Tests an engine with a file store that is killed while it resumes a stopped table. It is killed between two writes, when the files of
the store are already removed.

The stored events lack the rows of the stopped table, so they are removed first. A process that starts after the kill reads the rows from
the source.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cdc_engine.acts import snapshot, stopped_table
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.meta.resume_requests import requests
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.engine_process import ROOT
from tests.instance.faults.fix_stored import purge_before_now, reading, wait_until_read
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

DIES = """
import os, signal, sys
from pathlib import Path
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.batches.hand_out import HandOut
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.tables import engine_acts, resume

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def forget_and_die(folder, forget=resume.forget_events):
    forget(folder)
    die()

if sys.argv[2] == "files removed":
    resume.forget_events = engine_acts.forget_events = forget_and_die
else:
    HandOut.read_again = die
engine = Engine(load_config(Path(sys.argv[1])), "shop")
engine.start()
while True:
    engine.hand_out(1.0)
"""
HOLDS, ADDS = "schema_changes: {add: hold}", "schema_changes: {add: apply}"


@pytest.fixture
def shop(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    """Sets up a destination whose table `late` has stopped at a change that conf/ would now apply. Everything before
    the change is acked.
    """
    captured = Captured(tmp_path, mysql80)
    captured.run(f"CREATE TABLE {captured.database}.late (n INT PRIMARY KEY)")
    captured.describe("store: {kind: file}", HOLDS)
    with running(captured) as engine:
        captured.run(f"INSERT INTO {captured.database}.late VALUES (1000)")
        captured.insert(range(3))
        assert sorted(captured.take(engine, 4)) == [0, 1, 2, 1000]
        captured.run(f"ALTER TABLE {captured.database}.late ADD COLUMN note INT", *rows_of_late(captured, 1001, 1003))
        captured.insert(range(3, 6))
        assert captured.take(engine, 3) == [3, 4, 5]
    captured.describe("store: {kind: file}", ADDS, "snapshot: never")
    return captured


def rows_of_late(shop: Captured, first: int, end: int) -> list[str]:
    return [f"INSERT INTO {shop.database}.late VALUES ({n}, {n})" for n in range(first, end)]


def killed_at(shop: Captured, location: str) -> None:
    """Runs an engine in a separate process, which hands out batches and is killed at this location."""
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(shop.conf), location], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert process.wait(90.0) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def taken(shop: Captured, engine: Engine, *last: int) -> list[int]:
    """Returns everything that is handed out until these numbers were handed out."""
    found: list[int] = []

    def done() -> bool:
        found.extend(shop.take(engine, 1))
        return set(last) <= set(found)

    wait_for(f"{last} are staged", done)
    return found


@pytest.mark.parametrize("location", ["files removed", "ledger written"])
def test_fault_a_kill_while_a_table_is_resumed_from_a_file_store_loses_and_doubles_nothing(
    shop: Captured, location: str
) -> None:
    before = read_ledger(shop.directory).cursor
    assert before is not None
    stopped_table.resume(shop.directory, f"{shop.database}.late")
    killed_at(shop, location)
    after = read_ledger(shop.directory)
    assert not (shop.directory / "events").exists()
    assert requests(shop.directory)
    assert after.cursor is not None
    assert (after.cursor == before, bool(after.stopped_tables)) == ((location == "files removed"),) * 2
    shop.insert([6])
    with running(shop) as engine:
        found = taken(shop, engine, 6, 1002)
        # The stream is read again from the position of the stop, so rows of the other table come again. A merge drops them by order key.
        assert set(found) == {3, 4, 5, 6, 1001, 1002}
        assert (found.count(1001), found.count(1002)) == (1, 1)
        assert read_ledger(shop.directory).epoch == after.epoch
        wait_for("the request is gone", lambda: engine.hand_out(0.1) is None and not requests(shop.directory))
        assert engine.status().stopped_tables == ()
    with running(shop) as engine:
        shop.insert([7])
        assert shop.take(engine, 1) == [7]


def test_fault_a_kill_during_a_re_snapshot_from_a_file_store_loses_and_doubles_nothing(shop: Captured) -> None:
    name = f"{shop.database}.late"
    snapshot.start(shop.directory, [name])
    killed_at(shop, "files removed")
    assert not (shop.directory / "events").exists()
    assert [each.name for each in read_ledger(shop.directory).stopped_tables] == [name]
    shop.insert([6])
    with running(shop) as engine:
        assert taken(shop, engine, 6) == [6]
        wait_for("the stop is gone", lambda: engine.hand_out(0.1) is None and not engine.status().stopped_tables)
        shop.run(*rows_of_late(shop, 1003, 1004))
        assert shop.take(engine, 1) == [1003]


def test_fault_a_table_waits_while_the_file_store_has_the_only_copy_of_what_follows_for_the_others(
    shop: Captured,
) -> None:
    """The source has purged the changes after the stop. If the engine read the stream again for the stopped table, these changes of all
    tables would be lost.
    """
    name = f"{shop.database}.late"
    with reading(shop):
        shop.insert(range(6, 30))
        shop.run("FLUSH BINARY LOGS")
        shop.insert([30])
        wait_until_read(shop)
    purge_before_now(shop)
    snapshot.start(shop.directory, [name])
    with running(shop) as engine:
        wait_for("the stream goes on", lambda: engine.status().state == "RUNNING")
        first = engine.hand_out(30.0)
        assert first is not None
        assert [each.name for each in read_ledger(shop.directory).stopped_tables] == [name]
        assert (shop.directory / "events").exists()
        engine.rollback(first)
        assert taken(shop, engine, 30) == list(range(6, 31))
        wait_for("the stop is gone", lambda: engine.hand_out(0.1) is None and not engine.status().stopped_tables)
        shop.run(*rows_of_late(shop, 1003, 1004))
        assert taken(shop, engine, 1003) == [1003]
