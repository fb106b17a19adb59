"""Tests that a cursor follows the binlog's files even if no captured change is in them, because the source may purge files at any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.states import EngineState
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


@pytest.fixture(params=["mysql80", "mysql57", "mariadb114"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    return Captured(tmp_path, request.getfixturevalue(request.param))


@pytest.fixture
def engine(shop: Captured) -> Iterator[Engine]:
    made = Engine(shop.config, "shop")
    made.start()
    yield made
    made.stop()


def last_file(server: DatabaseServer) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
    assert row is not None
    return str(row[0])


def wait_for_cursor_in(shop: Captured, engine: Engine, file: str) -> None:
    def there() -> bool:
        assert engine.hand_out(0.2) is None
        cursor = read_ledger(shop.directory).cursor
        return cursor is not None and cursor.file == file

    wait_for(f"the cursor is in {file}", there)


def test_fault_a_purge_after_idle_rotations_loses_no_position(shop: Captured, engine: Engine) -> None:
    shop.insert([1])
    assert shop.take(engine, 1) == [1]
    shop.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    wait_for_cursor_in(shop, engine, last_file(shop.server))
    cursor = read_ledger(shop.directory).cursor
    assert cursor is not None
    assert cursor.file_created
    engine.stop()
    shop.run(f"PURGE BINARY LOGS TO '{cursor.file}'")
    shop.insert([2])
    engine.start()
    assert shop.take(engine, 1) == [2]
    assert engine.status().state == EngineState.RUNNING


def test_fault_changes_of_tables_that_are_not_captured_move_the_cursor_through_the_files(
    shop: Captured, engine: Engine
) -> None:
    shop.run(f"CREATE DATABASE IF NOT EXISTS {shop.database}_other", f"DROP TABLE IF EXISTS {shop.database}_other.t")
    shop.run(f"CREATE TABLE {shop.database}_other.t (n INT PRIMARY KEY)")
    for number in range(3):
        shop.run(f"INSERT INTO {shop.database}_other.t VALUES ({number})", "FLUSH BINARY LOGS")
    wait_for_cursor_in(shop, engine, last_file(shop.server))
