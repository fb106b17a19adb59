"""`sluice position set` on a real server: the engine goes on behind exactly the place that was asked for, forwards and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_engine.client import read_ledger
from cdc_engine.errors import LeaseLostError
from cdc_engine.instance.engine import Engine
from cdc_engine.position import Position
from console.position import Request, set_position
from console.toolchain.servers import DatabaseServer
from tests.instance.fix_destination import Captured


@contextmanager
def running(captured: Captured) -> Iterator[Engine]:
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def executed(captured: Captured) -> str:
    """The server's GTID set, now."""
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.gtid_executed")
        return str((cursor.fetchone() or ("",))[0])


def move(captured: Captured, *, gtid: str = "", place: str = "") -> Position:
    request = Request.parse(place, gtid, latest=False)
    return set_position(captured.config, "shop", request, confirm=lambda _: True, say=lambda _: None)


def test_an_engine_goes_on_behind_the_gtid_set_it_was_given(mysql80: DatabaseServer, tmp_path: Path) -> None:
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
        ({"place": f"{cursor.file}:{cursor.offset}"}, [3, 4, 5, 6, 7, 8]),
    )
    for where, expected in moves:
        move(captured, **where)
        with running(captured) as engine:
            assert captured.take(engine, len(expected)) == expected
    captured.insert([9])
    with running(captured) as engine:
        assert captured.take(engine, 1) == [9], "and then with what is new"
