"""Tests the parser on real servers: every transaction arrives once and in order, over lost connections, restarts and killed dumps."""

from __future__ import annotations

import threading

import pytest

from sluice.cdc_engine.contracts import Block, RowEventKind, TableChangeKind
from sluice.cdc_engine.errors import ChecksumError, PositionLostError
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.parser.stream.event_parser import RECONNECTING, STOPPED, STREAMING
from sluice.cdc_engine.position import Position
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.parser.fix_shop import insert, make_shop, purge_all_but_newest, run
from tests.parser.proxy import Proxy
from tests.parser.recording import Capture, RowEvent, capturing, source_of

pytestmark = pytest.mark.servers

DUMPS = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"


def assert_each_once_in_order(capture: Capture, count: int) -> list[RowEvent]:
    capture.sink.wait_for_rows(count)
    events = capture.sink.events
    positions = [(event.file, event.position) for event in events]
    assert len(positions) == count
    assert positions == sorted(set(positions))
    assert capture.sink.ends == sorted(set(capture.sink.ends))
    return events


def kill_dumps(server: DatabaseServer) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(DUMPS)
        threads = [thread for (thread,) in cursor.fetchall()]
        for thread in threads:
            cursor.execute(f"KILL {thread}")
    return len(threads)


def position_of(capture: Capture) -> Position:
    position = capture.parser.position
    assert position is not None
    return position


def test_insert_update_delete_arrive_in_order_with_their_kinds(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        with shop.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'a'), (2, 'b')")
            cursor.execute("UPDATE shop.orders SET note = 'c' WHERE id = 1")
            cursor.execute("DELETE FROM shop.orders WHERE id = 2")
            connection.commit()
        capture.sink.wait_for_rows(3)
        ((first, second, third),) = capture.sink.transactions
        assert [first.kind, second.kind, third.kind] == list(RowEventKind)
        assert position_of(capture).gtid_set
        assert abs(position_of(capture).time_us / 1e6 - capture.parser.counters.received_at) < 60


def test_a_killed_dump_thread_loses_and_doubles_nothing(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        insert(shop, range(50))
        capture.sink.wait_for_rows(50)
        for round_ in (1, 2):
            assert kill_dumps(shop) == 1
            insert(shop, range(1000 * round_, 1000 * round_ + 50))
            capture.states.wait(STREAMING, round_ + 1)
        assert_each_once_in_order(capture, 150)
        assert capture.states.wait(RECONNECTING)


def test_a_lost_connection_within_a_transaction_loses_and_doubles_nothing(shop: DatabaseServer) -> None:
    """The connection is lost while the sink has the first part of a transaction that is larger than a read buffer."""
    disconnected = threading.Event()
    with Proxy(shop.port) as proxy, capturing(source_of(shop, port=proxy.port)) as capture:

        def disconnect_in_the_middle(block: Block) -> None:
            if block.event_count and not block.transaction_count and not disconnected.is_set():
                disconnected.set()
                proxy.disconnect()

        capture.sink.gate = disconnect_in_the_middle
        with shop.connect(autocommit=False) as connection, connection.cursor() as cursor:
            for number in range(40):
                cursor.execute("INSERT INTO shop.orders VALUES (%s, %s)", (number, "x" * 400_000))
            connection.commit()
        insert(shop, range(100, 110))
        assert_each_once_in_order(capture, 50)
        assert disconnected.is_set()
        assert [len(transaction) for transaction in capture.sink.transactions][:1] == [40]
        assert proxy.connection_count > 1


def test_a_flipped_bit_on_the_way_is_read_again(shop: DatabaseServer) -> None:
    flipped = threading.Event()

    def flip_once(piece: bytes) -> bytes:
        if b"precious" in piece and not flipped.is_set():
            flipped.set()
            return piece.replace(b"precious", b"prfcious", 1)
        return piece

    with Proxy(shop.port) as proxy, capturing(source_of(shop, port=proxy.port, tls_mode="DISABLED")) as capture:
        insert(shop, range(5))
        capture.sink.wait_for_rows(5)
        proxy.tamper = flip_once
        run(shop, "INSERT INTO shop.orders VALUES (10, 'precious')", "INSERT INTO shop.orders VALUES (11, 'x')")
        events = assert_each_once_in_order(capture, 7)
        assert b"precious" in events[5].body
        assert "CRC32" in capture.states.wait(RECONNECTING)


# The parser reads the event several times, with pauses, before it stops.
@pytest.mark.timeout(600)
def test_a_bit_that_is_wrong_every_time_stops_with_its_position(shop: DatabaseServer) -> None:
    with Proxy(shop.port) as proxy, capturing(source_of(shop, port=proxy.port, tls_mode="DISABLED")) as capture:
        proxy.tamper = lambda piece: piece.replace(b"precious", b"prfcious")
        run(shop, "INSERT INTO shop.orders VALUES (1, 'x')", "INSERT INTO shop.orders VALUES (10, 'precious')")
        reason = capture.states.wait("CHECKSUM")
        assert position_of(capture).file in reason
        assert isinstance(capture.parser.last_error, ChecksumError)
        assert capture.parser.last_error.offset >= position_of(capture).offset
        assert len(capture.sink.events) == 1


def test_a_restarted_server_is_found_again(fresh_server: ServerFactory) -> None:
    for version in ("mysql-8.0.31", "mariadb-11.4.5"):
        server = fresh_server(version)
        make_shop(server)
        with capturing(source_of(server)) as capture:
            insert(server, range(20))
            capture.sink.wait_for_rows(20)
            server.stop()
            capture.states.wait(RECONNECTING)
            server.start()
            insert(server, range(100, 120))
            events = assert_each_once_in_order(capture, 40)
            assert len({event.file for event in events}) == 2
            assert position_of(capture).epoch == 1
        server.stop()


def test_a_server_killed_in_full_run_loses_and_doubles_nothing(fresh_mysql80: ServerFactory) -> None:
    server = fresh_mysql80({"sync_binlog": 1, "innodb_flush_log_at_trx_commit": 1})
    make_shop(server)
    with capturing(source_of(server)) as capture:
        insert(server, range(200))
        server.kill()
        server.start()
        insert(server, range(1000, 1010))
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM shop.orders")
            ((count,),) = cursor.fetchall()
        assert_each_once_in_order(capture, count)


def test_a_row_of_more_than_sixteen_mebibytes_comes_whole(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        run(
            shop,
            "INSERT INTO shop.orders VALUES (1, 'before')",
            "INSERT INTO shop.orders VALUES (2, REPEAT('large', 4000000))",
            "INSERT INTO shop.orders VALUES (3, 'after')",
        )
        events = assert_each_once_in_order(capture, 3)
        assert events[1].body.count(b"large") == 4_000_000
        assert b"after" in events[2].body


def test_a_stopped_parser_continues_from_its_position(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        insert(shop, range(10))
        capture.sink.wait_for_rows(10)
        position = position_of(capture)
    assert capture.parser.state == STOPPED
    assert kill_dumps(shop) == 0
    insert(shop, range(100, 110))
    with capturing(source_of(shop), position) as again:
        assert len(assert_each_once_in_order(again, 10)) == 10
        assert again.history.rewound == [position]
        assert not again.starts
    with capturing(source_of(shop), position_without_gtid(position)) as by_file:
        assert assert_each_once_in_order(by_file, 10) == again.sink.events


def position_without_gtid(position: Position) -> Position:
    return Position(epoch=position.epoch, file=position.file, offset=position.offset, server_uuid=position.server_uuid)


def test_a_stream_without_cursor_reports_where_it_begins_and_learns_the_gtids(shop: DatabaseServer) -> None:
    """With a configured file, the executed set is unknown until the next file, which contains it."""
    with capturing(source_of(shop)) as capture:
        insert(shop, range(3))
        capture.sink.wait_for_rows(3)
        latest = capture.starts[0]
        known = position_of(capture)
    choice = StartChoice(file=latest.position.file, offset=latest.position.offset)
    with capturing(source_of(shop), choice=choice) as from_file:
        from_file.sink.wait_for_rows(3)
        assert from_file.starts[0].position.offset == latest.position.offset
        assert from_file.sink.events == capture.sink.events
        assert position_of(from_file).gtid_set == ""
        run(shop, "FLUSH BINARY LOGS", "INSERT INTO shop.orders VALUES (50, 'x')")
        from_file.sink.wait_for_rows(4)
        executed = position_of(from_file).gtid_set
    assert executed != known.gtid_set
    choice = StartChoice(gtid_set=known.gtid_set)
    with capturing(source_of(shop), choice=choice) as from_gtid:
        from_gtid.sink.wait_for_rows(1)
        assert position_of(from_gtid).gtid_set == executed


def test_ddl_comes_alone_and_in_order(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        insert(shop, [1])
        run(shop, "ALTER TABLE shop.orders ADD extra INT", "INSERT INTO shop.orders VALUES (2, 'x', 3)")
        capture.sink.wait_for_rows(2)
        statements = [text for text, _, _ in capture.history.statements]
        assert statements == ["ALTER TABLE shop.orders ADD extra INT"]
        (change,) = capture.sink.changes
        keys = [block.event_position.tolist() for block in capture.sink.blocks]
        assert [len(each) for each in keys if each] == [1, 1]
        _, _, position = capture.history.statements[0]
        assert change.order_key == position.order_key
        assert keys[0][0] < position.offset <= keys[-1][0]


def test_create_table_select_has_its_definition_before_its_rows(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        insert(shop, range(4))
        run(shop, "CREATE TABLE shop.copied AS SELECT * FROM shop.orders")
        capture.sink.wait_for_rows(5)
        (text, _, position), *_ = capture.history.statements
        assert text.startswith("CREATE TABLE")
        assert capture.sink.events[-1].table == "shop.copied"
        assert position.offset <= capture.sink.events[-1].position


def test_tables_of_other_databases_are_dropped_and_counted(shop: DatabaseServer) -> None:
    run(shop, "DROP DATABASE IF EXISTS elsewhere", "CREATE DATABASE elsewhere", "CREATE TABLE elsewhere.t (a INT)")
    with capturing(source_of(shop)) as capture:
        run(shop, "INSERT INTO elsewhere.t VALUES (1)", "INSERT INTO shop.orders VALUES (1, 'x')")
        capture.sink.wait_for_rows(1)
        assert capture.history.resolved == ["orders"]
        assert [event.table for event in capture.sink.events] == ["shop.orders"]
    assert capture.parser.counters.dropped_row_events == 1


def test_a_table_whose_schema_is_unknown_stops_alone(shop: DatabaseServer) -> None:
    run(shop, "CREATE TABLE shop.riddle (a INT)")
    capture = Capture.of(source_of(shop))
    capture.history.stopped = {"riddle"}
    with capture.running():
        run(shop, "INSERT INTO shop.riddle VALUES (1)", "INSERT INTO shop.orders VALUES (1, 'x')")
        run(shop, "INSERT INTO shop.riddle VALUES (2)", "INSERT INTO shop.orders VALUES (2, 'x')")
        capture.sink.wait_for_rows(2)
        (change,) = capture.sink.changes
        assert (change.kind, change.table) == (TableChangeKind.STOPPED, "riddle")
        assert {event.table for event in capture.sink.events} == {"shop.orders"}


def test_a_session_out_of_row_format_does_not_stop_the_stream_fidelity(shop: DatabaseServer) -> None:
    with capturing(source_of(shop)) as capture:
        insert(shop, [1])
        with shop.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("INSERT INTO shop.orders VALUES (2, 'as text')")
            connection.commit()
        insert(shop, [3])
        capture.sink.wait_for_rows(2)
        assert "as text" in [text for text, _, _ in capture.history.statements][-1]


def test_a_purged_position_is_lost_with_its_reason(fresh_server: ServerFactory) -> None:
    purge_without_replicas = {"slave_connections_needed_for_purge": 0}
    for version, options in (("mysql-8.0.31", {}), ("mariadb-11.4.5", purge_without_replicas)):
        server = fresh_server(version, options)
        make_shop(server)
        with capturing(source_of(server)) as capture:
            insert(server, range(3))
            capture.sink.wait_for_rows(3)
            position = position_of(capture)
        insert(server, range(10, 13))
        run(server, "FLUSH BINARY LOGS")
        insert(server, range(20, 23))
        purge_all_but_newest(server)
        for start in (position, position_without_gtid(position)):
            with capturing(source_of(server), start, wait=False) as lost:
                reason = lost.states.wait("POSITION_LOST")
                assert isinstance(lost.parser.last_error, PositionLostError)
                assert not lost.sink.blocks
                assert "purged" in reason.lower() or "too old" in reason.lower()
        server.stop()


def test_a_silent_server_is_dropped_and_found_again(shop: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cdc_engine.limits.READ_TIMEOUT_SECONDS", 2)
    with Proxy(shop.port) as proxy, capturing(source_of(shop, port=proxy.port, tls_mode="DISABLED")) as capture:
        insert(shop, [1])
        capture.sink.wait_for_rows(1)
        capture.states.wait(RECONNECTING)
        insert(shop, [2])
        assert_each_once_in_order(capture, 2)


def test_heartbeats_keep_an_idle_stream(shop: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cdc_engine.limits.HEARTBEAT_SECONDS", 1)
    monkeypatch.setattr("sluice.cdc_engine.limits.READ_TIMEOUT_SECONDS", 4)
    with capturing(source_of(shop)) as capture:
        insert(shop, [1])
        capture.sink.wait_for_rows(1)
        received = capture.parser.counters.bytes
        capture.sink.wait(lambda: capture.parser.counters.bytes > received + 300, "heartbeats")
        insert(shop, [2])
        assert_each_once_in_order(capture, 2)
        assert RECONNECTING not in {state for state, _ in capture.states.reported}
