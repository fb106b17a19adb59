"""Tests a server whose binlog file names start again. If its GTIDs are unchanged, the stream continues in a new epoch. Otherwise the
position is lost, and the message names the reason.
"""

from __future__ import annotations

import time

import pytest

from sluice.cdc_engine.parser.stream.event_parser import STREAMING
from sluice.cdc_engine.position import Position, file_number
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.parser.fix_shop import insert, make_shop, run
from tests.parser.recording import Capture, capturing, source_of
from tests.waiting import wait_for

pytestmark = pytest.mark.servers


def read_some(server: DatabaseServer) -> Position:
    """Returns the position after three rows, with the creation time of its file. Waits until the second in which the file was created is
    over.
    """
    make_shop(server)
    with capturing(source_of(server)) as capture:
        insert(server, range(3))
        capture.sink.wait_for_rows(3)
        position = capture.parser.position
    assert position is not None
    assert position.file_created
    wait_for("a later second", lambda: time.time() > position.file_created + 1)
    return position


def executed(server: DatabaseServer) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.gtid_executed")
        row = cursor.fetchone()
    assert row is not None
    return str(row[0]).replace("\n", "")


def test_identity_a_reset_with_the_gtids_set_again_is_a_new_epoch(fresh_server: ServerFactory) -> None:
    server = fresh_server("mysql-8.0.31")
    position = read_some(server)
    gtids = executed(server)
    run(server, "RESET MASTER", f"SET GLOBAL gtid_purged = '{gtids}'")
    insert(server, range(10, 15))
    with Capture.of(source_of(server)).running(position) as capture:
        capture.sink.wait_for_rows(5)
        assert [start.position.epoch for start in capture.starts] == [position.epoch + 1]
        after = capture.parser.position
        assert after is not None
        assert after.order_key > position.order_key
        assert after.file_created > position.file_created
        assert len(capture.sink.events) == 5, "nothing that was read comes again"


def test_identity_numbers_given_again_are_noticed_though_the_file_that_was_read_is_purged(
    fresh_server: ServerFactory,
) -> None:
    """A server is in this state after a backup without the last transactions was restored and the cursor's file was purged."""
    server = fresh_server("mysql-8.0.31")
    position = read_some(server)
    before, _, last = executed(server).rpartition("-")
    run(server, "RESET MASTER", f"SET GLOBAL gtid_purged = '{before}-{int(last) - 2}'")
    for _ in range(file_number(position.file)):
        run(server, "FLUSH BINARY LOGS")
    insert(server, range(100, 105))
    run(server, f"PURGE BINARY LOGS TO 'binlog.{file_number(position.file) + 1:06d}'")
    with Capture.of(source_of(server)).running(position, wait=False) as capture:
        assert "used these GTIDs again" in capture.states.wait("POSITION_LOST")
        assert STREAMING not in [state for state, _ in capture.states.reported]


def test_identity_numbers_that_the_server_gave_again_are_lost_by_name(fresh_server: ServerFactory) -> None:
    """After RESET MASTER, the server executes more transactions than the engine had read. So the new executed set contains the cursor's
    set, although the transactions are others.
    """
    server = fresh_server("mysql-8.0.31")
    position = read_some(server)
    run(server, "RESET MASTER")
    insert(server, range(100, 120))
    with Capture.of(source_of(server)).running(position, wait=False) as capture:
        assert "which the engine has read" in capture.states.wait("POSITION_LOST")
        assert STREAMING not in [state for state, _ in capture.states.reported]
