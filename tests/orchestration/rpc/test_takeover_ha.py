"""Tests two engine hosts without Dagster: one is killed, and the other serves the clients. A host is a
`sluice engine` with its own folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from benchmarks.servers.postgres import PostgresServer
from sluice.canal_client import CanalClient, CanalError, ClientSettings
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.keeping import acts
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from tests.instance.fix_destination import Captured
from tests.style.sources import ROOT as PROJECT_ROOT
from tests.waiting import wait_for

SESSION_SECONDS = 6


class Host:
    """Runs one of two engine hosts. `meta` has the settings in conf/ of the ledger that both hosts share."""

    def __init__(self, root: Path, captured: Captured, meta: str) -> None:
        self._root, self.port = root, free_port()
        self.conf = root / "conf"
        (self.conf / "destinations").mkdir(parents=True)
        engine = f"engine: {{kind: remote, address: 127.0.0.1:{free_port()}}}"
        self.conf.joinpath("sluice.yaml").write_text(
            f"data_dir: {root}/data\nlake: {root}/lake\nstaging: {root.parent}/staging\n{engine}\n{meta}\n"
        )
        shop = (captured.conf / "destinations" / "shop.yaml").read_text()
        (self.conf / "destinations" / "shop.yaml").write_text(f"canal_server: {{port: {self.port}}}\n{shop}")
        self.process = self._begun()

    def _begun(self) -> ChildProcess:
        environment = {**os.environ, "SLUICE_CONF": str(self.conf), "PYTHONPATH": str(PROJECT_ROOT)}
        command = [sys.executable, "-m", "sluice.orchestration.rpc.process"]
        return ChildProcess(command, self._root / "engine.log", environment=environment, die_with_parent=True)

    @property
    def directory(self) -> Path:
        return load_config(self.conf).destination_dir("shop")

    def serves(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    def stands_by(self) -> bool:
        log = self._root / "engine.log"
        return log.exists() and "LEASE_LOST" in log.read_text()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def begin_again(self) -> None:
        self._root.joinpath("engine.log").unlink()
        self.process = self._begun()


class Seen:
    """Collects the numbers that a client has received, in a thread of its own."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def all_of(self, numbers: range) -> bool:
        return set(numbers) <= set(self.numbers)


@contextlib.contextmanager
def python_client(hosts: list[Host], captured: Captured) -> Iterator[Seen]:
    """Starts Sluice's own client, which gets the addresses of both servers."""
    seen, ending = Seen(), threading.Event()
    client = CanalClient(
        "shop",
        servers=[("127.0.0.1", host.port) for host in hosts],
        settings=ClientSettings(table_filter=rf"{captured.database}\.numbers", retry_seconds=120.0),
    )

    def take() -> None:
        with contextlib.suppress(CanalError):
            while not ending.is_set():
                for change in client.changes(idle_seconds=0.2):
                    seen.numbers.append(int(change.row["n"]))

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield seen
    finally:
        ending.set()
        thread.join(150)
        client.close()


def take_over(
    root: Path, captured: Captured, meta: str, client: Callable[[list[Host]], contextlib.AbstractContextManager[Seen]]
) -> None:
    """Kills the first host, starts it again as standby, and kills the second host. After each kill, requires that the standby serves the
    client.
    """
    hosts = [Host(root / "one", captured, meta)]
    wait_for("the first host serves", hosts[0].serves, 120)
    hosts.append(Host(root / "two", captured, meta))
    try:
        wait_for("the second host stands by", hosts[1].stands_by, 120)
        with client(hosts) as seen:
            captured.insert(range(3))
            wait_for("the client has what the first host sends", lambda: seen.all_of(range(3)), 120)
            for serving, standby, upto in ((hosts[0], hosts[1], 6), (hosts[1], hosts[0], 9)):
                serving.kill()
                captured.insert(range(upto - 3, upto))
                wait_for("the standby serves", functools.partial(Host.serves, standby), 120)
                wait_for("the client goes on there", functools.partial(seen.all_of, range(upto)), 120)
                serving.begin_again()
                wait_for("the one that was killed stands by", functools.partial(Host.stands_by, serving), 120)
        assert list(dict.fromkeys(seen.numbers)) == [*range(9)], "in order, none missing"
        reported = acts.start("shop", hosts[0].directory)
        assert reported.done
        assert "no operator had stopped shop, and process" in reported.message
    finally:
        for host in hosts:
            host.process.kill()


def own_database(server: PostgresServer, name: str) -> str:
    """Returns the URL of a new database, because other tests leave the ledger of a `shop` in the common one."""
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.url.removesuffix("postgres") + name


@pytest.mark.servers
@pytest.mark.found
def test_ha_clients_continue_with_the_standby_of_a_ledger_in_sql_without_dagster(
    mysql80: DatabaseServer, postgres16: PostgresServer, tmp_path: Path
) -> None:
    """Defect 18: a standby began only at a tick of Dagster. With engine hosts, clients had no server after a kill -9.

    `tests/ha/test_canal_cluster_seeds.py` does the same with the lease in ZooKeeper.
    """
    captured = Captured(tmp_path / "source", mysql80)
    meta = f"meta: {{kind: sql, url: '{own_database(postgres16, 'takeover')}', session_seconds: {SESSION_SECONDS}}}"
    take_over(tmp_path, captured, meta, lambda hosts: python_client(hosts, captured))
