"""Tests what an engine does after the loss of a ledger, the failure of a batch, and a change of the source, on real servers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import LedgerLostError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.acts.position import move, request
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def handed_out(engine: Engine) -> OutstandingBatch:
    return wait_for("a batch is handed out", lambda: engine.hand_out(1.0))


def test_identity_an_engine_whose_ledger_is_gone_does_not_start_from_the_beginning(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    with running(captured) as engine:
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
    position = read_ledger(captured.directory).cursor
    assert position is not None
    captured.insert(range(3, 6))  # No engine reads these rows.
    (captured.directory / "meta.json").unlink()
    with pytest.raises(LedgerLostError, match="sluice position set shop"):
        Engine(captured.config, "shop").start()
    assert not (captured.directory / "meta.json").exists()
    wanted = request(f"{position.file}:{position.offset}", "", latest=False)
    move(captured.config, "shop", wanted, confirm=lambda _: True, say=lambda _: None)
    with running(captured) as engine:
        assert captured.take(engine, 3) == [3, 4, 5]


def test_identity_a_failed_batch_comes_again_from_the_same_files_under_another_name(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    with running(captured) as engine:
        captured.insert(range(3))
        first = handed_out(engine)
        captured.insert(range(3, 6))
        engine.rollback(first)
        again = handed_out(engine)
        assert (again.path, again.end, again.tables) == (first.path, first.end, first.tables)
        assert again.delivery > first.delivery
    with running(captured) as engine:
        assert handed_out(engine) == again, "also for an engine that was started anew"
        shutil.rmtree(captured.directory / again.path)
        engine.rollback(again)
        assert read_ledger(captured.directory).given_up == again.end
        assert captured.take(engine, 6) == [0, 1, 2, 3, 4, 5], "what is gone is read again"
    assert read_ledger(captured.directory).given_up is None


def test_fault_a_table_that_cannot_be_merged_stops_where_its_batch_begins(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    with running(captured) as engine:
        captured.insert(range(3))
        batch = handed_out(engine)
        (name,) = batch.tables
        engine.stop_tables(batch, {name: ("MERGE_FAILED", "a type differs")})
        again = handed_out(engine)
        assert again.tables == ()
        assert again.path == batch.path
        (stop,) = read_ledger(captured.directory).stopped_tables
        assert (f"{stop.database}.{stop.table}", stop.state, stop.position) == (name, "MERGE_FAILED", batch.start)
