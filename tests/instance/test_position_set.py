"""Tests on a real server that an engine continues exactly after the position of `sluice position set`, forward, backward and after a
restart.

Its records of XA transactions stay valid if the stream was read without a gap.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import LeaseLostError
from sluice.cdc_engine.position import Position
from sluice.console.acts.position import move as move_to
from sluice.console.acts.position import request
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def executed(captured: Captured) -> str:
    """Returns the server's current GTID set."""
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.gtid_executed")
        return str((cursor.fetchone() or ("",))[0])


def move(captured: Captured, *, gtid: str = "", position: str = "") -> Position:
    wanted = request(position, gtid, latest=False)
    return move_to(captured.config, "shop", wanted, confirm=lambda _: True, say=lambda _: None)


def test_an_engine_continues_behind_the_gtid_set_it_was_given(mysql80: DatabaseServer, tmp_path: Path) -> None:
    captured = Captured(tmp_path, mysql80)
    with running(captured) as engine:
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
        with pytest.raises(LeaseLostError):
            move(captured, gtid=executed(captured))
    after_three, cursor = executed(captured), read_ledger(captured.directory).cursor
    assert cursor is not None
    captured.insert(range(3, 6))
    after_six = executed(captured)
    captured.insert(range(6, 9))
    moves = (
        ({"gtid": after_six}, [6, 7, 8]),
        ({"gtid": after_three}, [3, 4, 5, 6, 7, 8]),
        ({"position": f"{cursor.file}:{cursor.offset}"}, [3, 4, 5, 6, 7, 8]),
    )
    for where, expected in moves:
        move(captured, **where)
        with running(captured) as engine:
            assert captured.take(engine, len(expected)) == expected
    captured.insert([9])
    with running(captured) as engine:
        assert captured.take(engine, 1) == [9], "and then with what is new"


def prepare(captured: Captured, name: str, number: int) -> None:
    """Prepares an XA transaction that inserts `number`. The session ends, and the transaction waits for XA COMMIT or XA ROLLBACK."""
    xid = f"'{captured.database}-{name}'"
    insert = f"INSERT INTO {captured.database}.numbers VALUES ({number}, '')"
    captured.run(f"XA START {xid}", insert, f"XA END {xid}", f"XA PREPARE {xid}")


def decide(captured: Captured, decision: str, name: str) -> None:
    captured.run(f"XA {decision} '{captured.database}-{name}'")


def saved_position(captured: Captured) -> str:
    cursor = read_ledger(captured.directory).cursor
    assert cursor is not None
    return f"{cursor.file}:{cursor.offset}"


def recorded(captured: Captured) -> int:
    return len(list((captured.directory / "prepared").glob("*.prepared")))


def test_an_xa_transaction_over_a_restart_is_staged_once_and_one_rolled_back_never_fidelity(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    with running(captured) as engine:
        captured.insert([0])
        prepare(captured, "kept", 1)
        prepare(captured, "gone", 2)
        captured.insert([3])
        assert captured.take(engine, 2) == [0, 3]
    position = saved_position(captured)
    with running(captured) as engine:
        captured.insert([4])
        assert captured.take(engine, 1) == [4]
    assert recorded(captured) == 2
    # The position moves back, but stays after the XA PREPAREs, so their records stay valid.
    move(captured, position=position)
    decide(captured, "COMMIT", "kept")
    decide(captured, "ROLLBACK", "gone")
    captured.insert([5])
    with running(captured) as engine:
        assert captured.take(engine, 3) == [4, 1, 5]
    captured.insert([6])
    with running(captured) as engine:
        assert captured.take(engine, 1) == [6]
    assert recorded(captured) == 0


def test_an_xa_record_is_not_used_for_a_name_that_was_used_again_in_an_unread_part_fidelity(
    mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    with running(captured) as engine:
        captured.insert([0])
        assert captured.take(engine, 1) == [0]
        first = saved_position(captured)
        prepare(captured, "again", 1)
        captured.insert([2])
        assert captured.take(engine, 1) == [2]
    decide(captured, "COMMIT", "again")
    prepare(captured, "again", 3)
    move_to(captured.config, "shop", request("", "", latest=True), confirm=lambda _: True, say=lambda _: None)
    decide(captured, "COMMIT", "again")
    with running(captured) as engine:
        wait_for("the stream stops", lambda: engine.status().state == "UNKNOWN_EVENT")
        assert "prepared before the stream began" in engine.status().reason
    move(captured, position=first)
    with running(captured) as engine:
        assert captured.take(engine, 3) == [2, 1, 3]
