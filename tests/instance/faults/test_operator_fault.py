"""Tests acts of operators and faults of hosts. The filters change, two destinations read one source, the source purges its binlog, or an
engine process is stopped and continued.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import LeaseLostError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.meta.resume_requests import request
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance import engine_process
from tests.instance.fix_destination import Captured, running
from tests.parser.test_stream import DUMPS
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


@pytest.fixture
def shop(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    return Captured(tmp_path, mysql80)


def test_fault_a_table_that_conf_newly_includes_is_not_half_there_silently(shop: Captured) -> None:
    shop.run(f"CREATE TABLE {shop.database}.late (n INT PRIMARY KEY)")
    shop.describe("exclude: .*\\.late")
    with running(shop) as engine:
        shop.insert([1])
        assert shop.take(engine, 1) == [1]
        shop.run(f"INSERT INTO {shop.database}.late VALUES (1)")
    shop.describe()
    for again in range(2):
        with running(shop) as engine:
            (stopped,) = engine.status().stopped_tables
            assert (stopped.table, stopped.state) == ("late", "NEWLY_INCLUDED")
            assert "re-snapshot the table" in stopped.reason
            shop.run(f"CREATE TABLE IF NOT EXISTS {shop.database}.born_later (n INT PRIMARY KEY)")
            shop.run(f"INSERT INTO {shop.database}.late VALUES ({2 + again})")
            shop.insert([10 + again])
            assert shop.take(engine, 1) == [10 + again], "the other tables go on"
    with running(shop) as engine:
        request(shop.directory, shop.database, "late")
        taken: list[int] = []

        def begins_here() -> bool:
            taken.extend(shop.take(engine, 1))
            return {2, 3} <= set(taken)

        wait_for("it begins where it was included", begins_here)
        assert engine.status().stopped_tables == ()


def test_fault_a_purge_past_the_cursor_is_a_lost_position(shop: Captured) -> None:
    with running(shop) as engine:
        shop.insert([1])
        assert shop.take(engine, 1) == [1]
    shop.insert([2])
    with shop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
        assert row is not None
        wait_for("it is purged", lambda: _purged(shop.server, str(row[0])))
    before = read_ledger(shop.directory).cursor
    with running(shop) as engine:
        wait_for("it says so", lambda: engine.status().state == "POSITION_LOST")
        assert "purged" in engine.status().reason
    assert read_ledger(shop.directory).cursor == before


def _purged(server: DatabaseServer, file: str) -> bool:
    """Purges the binlog before `file`. Returns whether the older files are gone, because the server keeps a file while a dump thread has it
    open.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"PURGE BINARY LOGS TO '{file}'")
        cursor.execute("SHOW BINARY LOGS")
        return str(cursor.fetchall()[0][0]) == file


def test_fault_two_destinations_read_one_source_and_neither_throws_the_other_off(shop: Captured) -> None:
    text = (shop.conf / "destinations" / "shop.yaml").read_text()
    (shop.conf / "destinations" / "copy.yaml").write_text(
        f"{text}tables: {{{shop.database}.numbers: {{path: {shop.conf}/copy}}}}\n"
    )
    engines = [Engine(shop.config, name) for name in ("shop", "copy")]
    for engine in engines:
        engine.start()
    try:
        for number in range(3):
            shop.insert([number])
            for engine in engines:
                batch = wait_for(f"{engine.name} has it", lambda engine=engine: engine.hand_out(0.5))  # type: ignore[misc]
                assert (engine.directory / batch.path).is_dir()
                engine.ack(batch)
        for engine in engines:
            assert engine.status().state == "RUNNING"
    finally:
        for engine in engines:
            engine.stop()


def test_fault_a_host_that_was_stopped_for_long_continues_and_no_other_host_took_over(shop: Captured) -> None:
    """While the process is stopped by SIGSTOP, its dump ends on the server, and the start of a second engine is refused. After SIGCONT, the
    process continues at its position.
    """
    process = engine_process.start(shop.conf, 6)
    try:
        shop.wait_until_running()
        shop.insert(range(3))
        wait_for("some are acked", lambda: read_ledger(shop.directory).next_batch_id > 1)
        os.kill(process.pid, signal.SIGSTOP)
        written = (shop.directory / "status.json").stat().st_mtime_ns
        with shop.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(DUMPS)
            for (thread,) in cursor.fetchall():
                cursor.execute(f"KILL {thread}")
        shop.insert(range(3, 6))
        with pytest.raises(LeaseLostError, match=f"process {process.pid} on"):
            Engine(shop.config, "shop").start()
        assert (shop.directory / "status.json").stat().st_mtime_ns == written
        os.kill(process.pid, signal.SIGCONT)
        assert engine_process.finished(process, 60)["rows"] == 6
        assert not read_ledger(shop.directory).outstanding
    finally:
        process.kill()


def test_fault_filters_that_cannot_be_read_are_a_sentence(shop: Captured) -> None:
    with running(shop):
        pass
    path = shop.directory / "filters.json"
    assert json.loads(path.read_text())["include"]
    path.write_text("{")
    with pytest.raises(Exception, match=r"filters\.json cannot be read"):
        Engine(shop.config, "shop").start()
