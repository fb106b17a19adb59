"""Compares the parser with mysql-replication on the same binlog: both must return the same row events, byte for byte, at the same
positions.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import QueryEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from sluice.cdc_engine.contracts import RowEventKind
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.fix_shop import run
from tests.parser.recording import RowEvent, capturing, source_of

pytestmark = pytest.mark.servers

KINDS = {
    WriteRowsEvent: RowEventKind.INSERT,
    UpdateRowsEvent: RowEventKind.UPDATE,
    DeleteRowsEvent: RowEventKind.DELETE,
}
SEED = 20


def traffic(server: DatabaseServer) -> None:
    """Runs transactions of many forms: with several tables, many rows, savepoints, rollbacks, tables without transactions, and DDL
    statements between them.
    """
    chance = random.Random(SEED)  # noqa: S311  the same traffic every time
    run(
        server,
        "CREATE TABLE shop.places (id INT PRIMARY KEY, a JSON, b BLOB)",
        "CREATE TABLE shop.plain (a INT) ENGINE=MyISAM",
    )
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for number in range(300):
            for _ in range(chance.randint(1, 3)):
                choice = chance.randint(0, 7)
                if choice <= 2:
                    cursor.execute(
                        "INSERT IGNORE INTO shop.orders (id, note) VALUES (%s, REPEAT('n', %s))",
                        (chance.randint(0, 90), number * 9),
                    )
                elif choice == 3:
                    cursor.execute(
                        "UPDATE shop.orders SET note = CONCAT(note, 'u') WHERE id < %s", (chance.randint(0, 90),)
                    )
                elif choice == 4:
                    cursor.execute("DELETE FROM shop.orders WHERE id = %s", (chance.randint(0, 90),))
                elif choice == 5:
                    cursor.execute(
                        "REPLACE INTO shop.places VALUES (%s, '[1]', REPEAT('b', 9000))", (chance.randint(0, 9),)
                    )
                elif choice == 6:
                    cursor.execute("SAVEPOINT s")
                    cursor.execute("UPDATE shop.places SET b = 'undone'")
                    cursor.execute("ROLLBACK TO s")
                else:
                    connection.commit()
                    cursor.execute("INSERT INTO shop.plain VALUES (%s)", (number,))
                    connection.commit()
            connection.rollback() if chance.random() < 0.1 else connection.commit()
            if number % 97 == 0:
                cursor.execute(f"ALTER TABLE shop.orders ADD c{number} INT")
            if number == 150:
                cursor.execute("FLUSH BINARY LOGS")


def through_the_library(server: DatabaseServer, file: str, offset: int) -> tuple[list[tuple[Any, ...]], int]:
    """Reads the binlog with mysql-replication. Returns (file, table, kind, bytes of the body, position) of each row event, and the number
    of transactions that ended.
    """
    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": server.port, "user": "root"},
        server_id=99,
        log_file=file,
        log_pos=offset,
        resume_stream=True,
        blocking=False,
        filter_non_implemented_events=False,
        enable_logging=False,
    )
    events: list[tuple[Any, ...]] = []
    transactions = 0
    try:
        for event in stream:
            transactions += isinstance(event, XidEvent) or (isinstance(event, QueryEvent) and event.query == "COMMIT")
            if type(event) in KINDS:
                packet = event.packet.packet._data
                name = f"{event.schema}.{event.table}"
                begin = event.packet.log_pos - event.packet.event_size
                events.append(
                    (stream.log_file, name, KINDS[type(event)], packet[1 : 1 + event.packet.event_size - 4], begin)
                )
    finally:
        stream.close()
    return events, transactions


def test_the_row_events_are_those_of_mysql_replication(mysql80: DatabaseServer) -> None:
    run(mysql80, "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    run(mysql80, "CREATE TABLE shop.orders (id INT PRIMARY KEY, note LONGTEXT)")
    with capturing(source_of(mysql80)) as capture:
        start = capture.starts[0].position
        traffic(mysql80)
        expected, transactions = through_the_library(mysql80, start.file, start.offset)
        capture.sink.wait_for_rows(len(expected))
        found = capture.sink.events
        statements = len(capture.history.statements)
    assert len(expected) > 300
    assert [(e.file, e.table, e.kind, e.body, e.position) for e in found] == expected
    # Each beginning of a file adds two entries without rows, which move the cursor and count as transactions.
    beginnings = 2 * (len({event.file for event in found}) - 1)
    assert capture.parser.counters.transactions == transactions + statements + beginnings


def test_every_row_event_is_at_its_reported_offset_in_the_file(mysql80: DatabaseServer) -> None:
    run(mysql80, "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    run(mysql80, "CREATE TABLE shop.orders (id INT PRIMARY KEY, note LONGTEXT)")
    with capturing(source_of(mysql80)) as capture:
        traffic(mysql80)
        start = capture.starts[0].position
        expected, _ = through_the_library(mysql80, start.file, start.offset)
        capture.sink.wait_for_rows(len(expected))
    assert all(lies_in_its_file(event, mysql80.data_folder) for event in capture.sink.events)


def lies_in_its_file(event: RowEvent, folder: Path) -> bool:
    with (folder / event.file).open("rb") as file:
        file.seek(event.position)
        return file.read(len(event.body)) == event.body


def test_mariadb_row_events_are_those_of_its_files(mariadb114: DatabaseServer) -> None:
    """mysql-replication cannot read MariaDB's stream to its end, so the test compares with the binlog files. The parser reads the stream
    twice, and must report the same positions.
    """
    run(mariadb114, "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    run(mariadb114, "CREATE TABLE shop.orders (id INT PRIMARY KEY, note LONGTEXT)")
    with capturing(source_of(mariadb114)) as capture:
        start = capture.starts[0].position
        traffic(mariadb114)
        run(mariadb114, "INSERT INTO shop.plain VALUES (424242)")
        last = (424242).to_bytes(4, "little")
        capture.sink.wait(lambda: bool(capture.sink.events) and last in capture.sink.events[-1].body, "last row")
        events, ends = list(capture.sink.events), list(capture.sink.ends)
    choice = StartChoice(file=start.file, offset=start.offset)
    with capturing(source_of(mariadb114), choice=choice) as again:
        again.sink.wait_for_rows(len(events))
        assert again.sink.events == events
        assert again.sink.ends == ends
    positions = [(event.file, event.position) for event in events]
    assert positions == sorted(set(positions))
    in_files = rows_of_files(mariadb114.data_folder, {event.file for event in events})
    assert [event.body for event in events] == in_files[-len(events) :]


def rows_of_files(folder: Path, files: set[str]) -> list[bytes]:
    """Returns the bodies of all row events in these binlog files, found by the lengths in the event headers."""
    bodies = []
    for name in sorted(files):
        data, at = (folder / name).read_bytes(), 4
        while at < len(data):
            length = int.from_bytes(data[at + 9 : at + 13], "little")
            if data[at + 4] in (23, 24, 25, 30, 31, 32):
                bodies.append(data[at : at + length - 4])
            at += length
    return bodies
