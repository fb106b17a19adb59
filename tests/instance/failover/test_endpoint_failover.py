"""Tests one address that becomes another server under load: a blue/green switchover, an Aurora endpoint, a restored copy, a virtual IP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.instance.failover.fix_pair import DATABASE, Pair, requested, run
from tests.parser.proxy import Proxy
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.managed]


@pytest.fixture(params=["mysql-8.0.31", "mysql-9", "mariadb-11.4.5"])
def pair(request: pytest.FixtureRequest, fresh_server: ServerFactory, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, fresh_server, tmp_path)
    yield made
    made.slot.stop()


@pytest.fixture
def endpoint(pair: Pair) -> Iterator[Proxy]:
    """Provides the endpoint in conf/ as a proxy. At first, the proxy connects clients to the first server."""
    with Proxy(pair.first.port) as proxy:
        pair.end_engine()
        pair.describe_endpoint(proxy.port)
        yield proxy


class Through(DatabaseServer):
    """The first server, for clients that connect through the endpoint."""

    def __init__(self, server: DatabaseServer, endpoint: Proxy) -> None:
        super().__init__(server.version, server.folder, endpoint.port)


@contextlib.contextmanager
def under_load(pair: Pair, endpoint: Proxy) -> Iterator[None]:
    """Writes through the endpoint in another thread until the block ends. The thread ignores errors, because a switch interrupts writes."""
    ended, through = threading.Event(), Through(pair.first, endpoint)

    def write() -> None:
        while not ended.wait(0.005):
            with contextlib.suppress(pymysql.MySQLError):
                pair.write(through, 1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def numbers(server: DatabaseServer) -> list[int]:
    return [int(str(n)) for (n,) in requested(server, f"SELECT n FROM {DATABASE}.numbers ORDER BY n")]


def state(pair: Pair) -> tuple[str, str]:
    engine = pair.engine()
    return (str(engine.status().state), engine.status().reason) if engine else ("", "")


def test_failover_an_endpoint_that_becomes_a_server_with_the_same_gtids_continues(pair: Pair, endpoint: Proxy) -> None:
    """When the endpoint switches, a run has merged a part of its batch. The new server has another uuid and other binlog file names."""
    run(pair.second, "FLUSH LOGS", "FLUSH LOGS", "FLUSH LOGS")
    wait_for("the engine runs", lambda: state(pair)[0] == "RUNNING")
    pair.write(pair.first)
    pair.settle()
    with under_load(pair, endpoint), pair.first.connect() as connection, connection.cursor() as cursor:
        batch = pair.next_batch()
        pair.lake.merge(pair.directory / batch.path, ["numbers"])  # Then the run dies.
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        wait_for("the replica has all", lambda: numbers(pair.second) == numbers(pair.first))
        pair.promote(pair.second)
        endpoint.connect_to(pair.second.port)
        endpoint.disconnect()
        before = len(numbers(pair.second))
        wait_for("the load continues", lambda: len(numbers(pair.second)) >= before + 10)
    pair.written[:] = numbers(pair.second)
    pair.settle()
    pair.check()
    assert pair.epoch() == 2
    assert state(pair) == ("RUNNING", "")
    assert requested(pair.second, "SELECT @@server_id") != requested(pair.first, "SELECT @@server_id")


def test_failover_an_endpoint_that_becomes_a_server_with_other_gtids_stops_by_name(
    pair: Pair, endpoint: Proxy, fresh_server: ServerFactory
) -> None:
    """The new server is like a copy that was restored without the newest changes and has executed its own changes since."""
    wait_for("the engine runs", lambda: state(pair)[0] == "RUNNING")
    pair.write(pair.first)
    pair.settle()
    run(pair.second, "STOP SLAVE")
    pair.write(pair.first)
    pair.settle()
    run(pair.second, "RESET SLAVE ALL", f"INSERT INTO {DATABASE}.numbers VALUES (-1)")
    endpoint.connect_to(pair.second.port)
    endpoint.disconnect()
    wait_for("it stops", lambda: state(pair)[0] == "POSITION_LOST")
    reason = state(pair)[1]
    assert "has not executed" in reason or "other" in reason, reason
    assert "snapshot" in reason, reason
    assert -1 not in pair.lake.rows["numbers"]
    pair.check()
