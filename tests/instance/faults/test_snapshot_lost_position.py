"""Tests that a snapshot alone resolves a lost position: the stream begins at the current position of the source, and a snapshot of every
table is requested.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


@pytest.fixture
def lost(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    """Returns a destination whose binlog was purged past its cursor."""
    shop = Captured(tmp_path, mysql80)
    with running(shop) as engine:
        shop.insert([1])
        assert shop.take(engine, 1) == [1]
    shop.insert([2])
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
        assert row is not None
        newest = str(row[0])

        def purged() -> bool:
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
            cursor.execute("SHOW BINARY LOGS")
            return str(cursor.fetchall()[0][0]) == newest

        wait_for("it is purged", purged)
    return shop


def _healed(shop: Captured, engine: Engine) -> None:
    """Requires that the engine reads again in a new epoch, with nothing buffered, and that a snapshot of every table is requested."""
    before = read_ledger(shop.directory).epoch
    wait_for("it reads again", lambda: engine.hand_out(0.2) is None and engine.status().state == "RUNNING")
    ledger = read_ledger(shop.directory)
    assert ledger.epoch == before + 1
    assert ledger.cursor is not None
    (record,) = SnapshotRecords(shop.directory).all()
    assert (record.name, record.state) == (f"{shop.database}.numbers", SnapshotState.WANTED)
    shop.insert([3])
    assert shop.take(engine, 1) == [3]


def test_a_lost_position_is_resolved_only_by_a_snapshot(lost: Captured) -> None:
    with running(lost) as engine:
        wait_for("it says so", lambda: engine.hand_out(0.1) is None and engine.status().state == "POSITION_LOST")
        snapshot.start_where_lost(lost.directory)
        _healed(lost, engine)


def test_a_lost_position_is_resolved_by_itself_with_snapshot_when_needed(lost: Captured) -> None:
    lost.describe("snapshot: when_needed")
    records = SnapshotRecords(lost.directory)
    records.begin(wanted(f"{lost.database}.numbers", read_ledger(lost.directory).cursor, 0.0))
    with running(lost) as engine:
        _healed(lost, engine)
        cursor = read_ledger(lost.directory).cursor
    (record,) = records.all()
    assert cursor is not None
    assert record.generation == 2
    assert 0 < record.buffered_after <= cursor.order_key, "what was held has a gap"
