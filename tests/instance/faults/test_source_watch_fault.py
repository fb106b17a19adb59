"""Tests a stream that is silent while its source is reset, replaced or cannot be queried: the engine notices at its next check."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.engine.source_watch import UNASKED_LOOKS_MAX, SourceWatch
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.source_check import unfollowed_format
from sluice.cdc_engine.parser.stream.watch import StreamState
from sluice.cdc_engine.position import Position
from tests.fix_servers import ServerFactory
from tests.instance.fix_destination import Captured
from tests.parser.providers.imitation import RDS_MARKS, amazon
from tests.parser.proxy import Proxy
from tests.waiting import wait_for

LOOK_SECONDS = 0.5


@contextmanager
def watching(shop: Captured) -> Iterator[Engine]:
    engine = Engine(shop.config, "shop", watch_seconds=LOOK_SECONDS)
    engine.start()
    try:
        wait_for("it runs", lambda: engine.status().state == "RUNNING")
        yield engine
    finally:
        engine.stop()


@pytest.mark.servers
@pytest.mark.parametrize("version", ["mysql-8.0.31", "mariadb-11.4.5"])
def test_fault_a_reset_under_an_idle_stream_is_a_lost_position(
    version: str, fresh_server: ServerFactory, tmp_path: Path
) -> None:
    shop = Captured(tmp_path, fresh_server(version))
    with watching(shop) as engine:
        shop.insert([1])
        assert shop.take(engine, 1) == [1]
        shop.run("RESET MASTER")
        shop.insert([2])
        wait_for("it is noticed", lambda: engine.status().state == "POSITION_LOST")
        assert "reset" in engine.status().reason


@pytest.mark.servers
def test_fault_another_server_behind_the_same_address_is_noticed(fresh_server: ServerFactory, tmp_path: Path) -> None:
    first, second = fresh_server("mariadb-11.4.5"), fresh_server("mariadb-11.4.5", {"server_id": 77})
    with Proxy(first.port) as proxy:
        shop = Captured(tmp_path, first)
        shop.describe(source=f"{{user: root, port: {proxy.port}}}")
        with watching(shop) as engine:
            shop.insert([1])
            assert shop.take(engine, 1) == [1]
            proxy.connect_to(second.port)
            wait_for("it is noticed", lambda: engine.status().state == "POSITION_LOST")


class SilentParser:
    """Streams, and hears nothing."""

    def __init__(self) -> None:
        self.reconnected: list[str] = []

    def stream_state(self) -> StreamState:
        at = Position(epoch=1, file="binlog.000004", offset=500)
        return StreamState(position=at, file=at.file, offset=at.offset, bytes=0)

    def unfollowed(self, facts: ServerFacts) -> str:
        return unfollowed_format(facts, follows_mixed=False)

    def reconnect(self, reason: str) -> None:
        self.reconnected.append(reason)


def test_fault_a_source_that_cannot_be_queried_is_reported_after_some_checks() -> None:
    now = [0.0]

    def refused(*_: str) -> ServerFacts:
        raise SourceConnectionError("max_user_connections")

    watch = SourceWatch(SilentParser(), refused, 60.0, lambda: now[0])
    assert watch.trouble() == ""
    now[0] = 60.0 * UNASKED_LOOKS_MAX + 1
    with pytest.raises(SourceConnectionError):
        watch.look()
    assert "could not be read for 301 s" in watch.trouble()
    assert watch.behind_seconds() == 0


@pytest.mark.parametrize("gtid_enabled", [False, True])
def test_fault_a_source_whose_account_may_not_read_the_end_counts_as_not_queried(*, gtid_enabled: bool) -> None:
    """The account has lost REPLICATION CLIENT. The stream continues, but the engine cannot know whether it has read the whole binlog."""
    now, parser = [0.0], SilentParser()
    silent = ServerFacts(version="8.0.31", mariadb=False, server_uuid="u", gtid_enabled=gtid_enabled)
    watch = SourceWatch(parser, lambda *_: silent, 60.0, lambda: now[0])
    now[0] = 60.0 * UNASKED_LOOKS_MAX + 1
    with pytest.raises(SourceConnectionError, match="did not report the end of its binlog"):
        watch.look()
    assert "REPLICATION CLIENT" in watch.trouble()
    assert parser.reconnected == []


def test_fault_a_look_that_breaks_is_not_the_last_one() -> None:
    stopping = threading.Event()
    requested: list[str] = []

    def breaks(file: str) -> ServerFacts:
        requested.append(file)
        if len(requested) == 2:
            stopping.set()
        raise ZeroDivisionError

    SourceWatch(SilentParser(), breaks, 0.01).run(stopping)
    assert len(requested) == 2


def test_failover_the_watch_reports_how_long_the_saved_position_is_kept() -> None:
    """At its second look, the watch reads the creation times of the oldest binlog file and of the file after the saved position's file."""
    requested: list[tuple[str, ...]] = []
    created = int(time.time()) - 20 * 3600

    def answers(*files: str) -> ServerFacts:
        requested.append(files)
        return ServerFacts(
            version="8.0.31",
            mariadb=False,
            server_uuid="u",
            gtid_enabled=False,
            file="binlog.000004",
            offset=500,
            logs=tuple(BinaryLog(file=f"binlog.00000{number}", size_bytes=500) for number in (3, 4)),
            variables={"binlog_expire_logs_seconds": str(24 * 3600)},
            created={"binlog.000004": created} if "binlog.000004" in files[1:] else {},
        )

    saved = [Position(epoch=1, file="binlog.000003", offset=900, server_uuid="u")]
    watch, strict = (
        SourceWatch(SilentParser(), answers, 60.0, saved=lambda: saved[-1], retention_left_hours_min=hours)
        for hours in (3, 12)
    )
    assert watch.retention_left_hours() is None
    watch.look()
    watch.look()
    assert requested == [("binlog.000004",), ("binlog.000004", "binlog.000004", "binlog.000003")]
    assert watch.retention_left_hours() == pytest.approx(4, abs=0.1)
    assert watch.retention_trouble() == ""
    strict.look()
    strict.look()
    assert "may purge" in strict.retention_trouble()
    saved.append(Position(epoch=1, file="binlog.000002", offset=900, server_uuid="u"))
    assert watch.retention_left_hours() == 0, "the alarm stays when what it warned of has come"
    assert "after a restart the engine would stop as POSITION_LOST" in watch.retention_trouble()
    saved.append(Position(epoch=1, file="binlog.000003", offset=900, server_uuid="another server's"))
    assert watch.retention_left_hours() is None


def test_fault_the_lag_grows_while_the_source_is_ahead_of_a_silent_stream() -> None:
    now = [60.0]
    ahead = ServerFacts(
        version="8.0.31", mariadb=False, server_uuid="u", gtid_enabled=False, file="binlog.000004", offset=900
    )
    parser = SilentParser()
    watch = SourceWatch(parser, lambda *_: ahead, 60.0, lambda: now[0])
    watch.look()
    now[0] = 125.0
    watch.look()
    assert watch.behind_seconds() == 65
    assert "receives nothing" in parser.reconnected[0]
    assert "receives nothing" in watch.trouble()


@pytest.mark.managed
@pytest.mark.servers
def test_fault_the_status_shows_the_retention_of_amazon_and_the_observed_one(
    fresh_server: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`binlog_expire_logs_seconds` is 30 days, but has no effect at Amazon. The test sets Amazon's retention to 168 h, and then the server
    purges a file earlier.
    """
    server = fresh_server("mysql-8.0.31")
    shop = Captured(tmp_path, server)
    with amazon(server, monkeypatch, RDS_MARKS), watching(shop) as engine:

        def troubles() -> str:
            return " ".join(engine.status().troubles)

        wait_for("it is told", lambda: "`binlog retention hours` is NULL" in troubles())
        assert engine.status().retention_left_hours is None, "nothing is purged, and nothing is promised"
        shop.run("CALL mysql.rds_set_configuration('binlog retention hours', 168)")
        wait_for("it is well", lambda: not troubles())
        wait_for("the age is known", lambda: engine.status().oldest_binlog_hours is not None)
        shop.insert([1])
        assert shop.take(engine, 1) == [1]
        shop.run("FLUSH BINARY LOGS")
        shop.insert([2])
        assert shop.take(engine, 1) == [2]
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row = cursor.fetchone()
            assert row
            cursor.execute("PURGE BINARY LOGS TO %s", (row[0],))
        wait_for("the purge is told", lambda: f"purged its binlog up to {row[0]}" in troubles())
        left = engine.status().retention_left_hours
        assert left is not None
        assert left < 1, "what was observed counts, not the 168 hours that are set"


@pytest.mark.managed
@pytest.mark.parametrize(
    ("row_format", "follows", "ended"),
    [("ROW", False, False), ("MIXED", True, False), ("MIXED", False, True), ("STATEMENT", True, True)],
)
def test_fault_a_format_that_is_not_followed_is_named(row_format: str, *, follows: bool, ended: bool) -> None:
    facts = ServerFacts(
        version="8.0.31",
        mariadb=False,
        server_uuid="u",
        gtid_enabled=True,
        file="binlog.000004",
        offset=500,
        variables={"binlog_format": row_format},
    )
    assert (f"became {row_format}" in unfollowed_format(facts, follows_mixed=follows)) == ended
    parser = SilentParser()
    SourceWatch(parser, lambda *_: facts, 60.0).look()
    assert bool(parser.reconnected) == (row_format != "ROW")
