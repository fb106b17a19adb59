"""Tests two parsers that share the stream of a real server. While both read its end, the server sends the stream once. In spite of
faults, each parser gets every row once and in order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.parser.shared import sharing
from sluice.cdc_engine.parser.shared.sharing import SharedStreams
from sluice.cdc_engine.parser.shared.stream import SharedStream
from sluice.cdc_engine.parser.stream.event_parser import RECONNECTING, STREAMING
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer
from tests.parser.fix_shop import insert, run
from tests.parser.recording import LATEST, Capture, in_shop, source_of
from tests.parser.test_stream import DUMPS, assert_each_once_in_order, kill_dumps
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

LARGE_BYTES = 1 << 20


def only_others(database: str, table: str) -> bool:
    return (database, table) == ("shop", "others")


def dumps(server: DatabaseServer) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(DUMPS)
        return len(cursor.fetchall())


class Pair:
    """Two parsers: `one` captures all of shop, `two` only shop.others."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server, self.streams = server, SharedStreams()
        self.one, self.two = (
            Capture(source, LATEST, captured, self.streams.of(source))
            for source, captured in (
                (source_of(server, destination="one"), in_shop),
                (source_of(server, destination="two"), only_others),
            )
        )
        self.written = self.of_others = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.one.running(), self.two.running():
            yield

    def share(self) -> None:
        """Writes a transaction, and waits until both parsers share the stream. Without the transaction, a parser may stay before an event
        of MariaDB that belongs to no transaction.
        """
        self.write(1)
        wait_for("both share", lambda: self.one.parser.shares and self.two.parser.shares)
        wait_for("the server sends once", lambda: dumps(self.server) == 1)

    def write(self, count: int, filler_bytes: int = 0) -> None:
        """Inserts the same new numbers into both tables."""
        numbers = range(self.written, self.written + count)
        insert(self.server, numbers)
        run(
            self.server,
            *(f"INSERT INTO shop.others VALUES ({number}, REPEAT('x', {filler_bytes}))" for number in numbers),
        )
        self.written += count

    def arrived(self, *, both: bool = True) -> None:
        assert_each_once_in_order(self.one, 2 * self.written)
        if both:
            assert {event.table for event in assert_each_once_in_order(self.two, self.written)} == {"shop.others"}


@pytest.fixture
def pair(shop: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> Pair:
    run(shop, "CREATE TABLE shop.others (id INT PRIMARY KEY, note LONGTEXT) ENGINE=InnoDB")
    monkeypatch.setattr(limits, "SHARED_BYTES_MAX", 2 * limits.READ_BUFFER_BYTES)
    monkeypatch.setattr(sharing, "REQUEST_SECONDS", 0.1)
    return Pair(shop)


def test_two_parsers_share_a_stream_through_slowness_killed_dumps_new_files_and_restarts(pair: Pair) -> None:
    with pair.running():
        pair.share()
        pair.write(20)
        pair.arrived()
        assert pair.one.parser.counters.connections == pair.two.parser.counters.connections == 1
        _one_falls_behind(pair)
        run(pair.server, "FLUSH BINARY LOGS")
        pair.write(5)
        pair.arrived()
        before = [capture.parser.counters.connections for capture in (pair.one, pair.two)]
        assert kill_dumps(pair.server) == 1
        pair.write(5)
        pair.arrived()
        assert [capture.parser.counters.connections for capture in (pair.one, pair.two)] == [
            each + 1 for each in before
        ]
        assert "shared stream" in pair.one.states.wait(RECONNECTING)
        pair.share()
        pair.two.parser.stop()
        position = _position(pair.two)
        pair.write(3)
        pair.arrived(both=False)
        assert (pair.one.parser.shares, dumps(pair.server)) == (True, 1)
        pair.two.parser.start(position)
        pair.write(3)
        pair.arrived()
        pair.share()
    wait_for("no dump is left", lambda: dumps(pair.server) == 0)


def _one_falls_behind(pair: Pair) -> None:
    """Blocks the sink of the second parser until more bytes have arrived than the window holds. The first parser is not delayed, and the
    second parser continues over its own connection.
    """
    opened = threading.Event()

    def held_up(_block: Block) -> None:
        assert opened.wait(60)

    pair.two.sink.gate = held_up
    pair.write(24, LARGE_BYTES)
    pair.arrived(both=False)
    assert pair.one.parser.shares
    opened.set()
    pair.arrived()
    pair.two.states.wait(STREAMING, 2)
    pair.share()
    assert (pair.one.parser.counters.connections, pair.two.parser.counters.connections) == (1, 2)


def _position(capture: Capture) -> Position:
    assert capture.parser.position is not None
    return capture.parser.position


def test_one_alone_has_a_connection_of_its_own_and_a_stream_that_cannot_begin_is_left(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Position] = []

    class Counted(SharedStream):
        def __init__(self, source: Source, begin: Position) -> None:
            super().__init__(source, begin)
            begun.append(begin)

    monkeypatch.setattr(sharing, "SharedStream", Counted)
    monkeypatch.setattr("sluice.cdc_engine.parser.connection.DUMP_OFFSET_MAX", 4)
    with pair.one.running():
        pair.write(1)
        pair.arrived(both=False)
        assert not begun
        with pair.two.running():
            wait_for("a stream is tried", lambda: begun)
            pair.write(4)
            pair.one.sink.wait_for_rows(10)
            pair.two.sink.wait_for_rows(4)
            assert not pair.one.parser.shares
    assert len(begun) == 1
