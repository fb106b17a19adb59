"""Two engine hosts, one destination, traffic without end: whatever becomes of the active one, no row is lost and none comes twice."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from console.toolchain.database.server import DatabaseServer
from console.toolchain.ports import free_port
from console.toolchain.shared.zookeeper import ZooKeeperServer
from tests.config.test_deployment_ha import CONFS
from tests.instance.fix_destination import Captured, running
from tests.parser.proxy import Proxy
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
SECONDS = 6  # of a session
# conf of docs/deployment.md → what it says of hosts and ports, and what that is here
PAGES = {
    "zookeeper": (
        CONFS[1],
        {"zk1:2181,zk2:2181,zk3:2181": "127.0.0.1:{port}", "seconds: 30": "seconds: {seconds}\n  address: {host}:4266"},
    ),
    "sql": (
        CONFS[2],
        {
            "sluice:$SLUICE_META_PASSWORD@db/sluice": "sluice@127.0.0.1:{port}/postgres",
            "seconds: 30": "seconds: {seconds}",
        },
    ),
}


def of_the_page(text: str, here: Mapping[str, str]) -> str:
    """A conf of the page with this machine's places in place of its own."""
    for old, new in here.items():
        assert old in text, f"the conf of the page does not say {old}"
        text = text.replace(old, new)
    return text


class Host:
    """One engine host. `port`: where it finds what keeps the leases."""

    def __init__(self, name: str, root: Path, captured: Captured, kind: str, port: int) -> None:
        self.name, self._root = name, root
        self.conf = self._write(name, captured, kind, port)
        self.run_conf = self._write(f"{name}_runs", captured, kind, port)
        self._process: subprocess.Popen[bytes] | None = None

    def _write(self, name: str, captured: Captured, kind: str, port: int) -> Path:
        conf = self._root / name / "conf"
        (conf / "destinations").mkdir(parents=True)
        page, given = PAGES[kind]
        here = {old: new.format(port=port, seconds=SECONDS, host=name) for old, new in given.items()}
        folders = {
            "/srv/sluice": f"{self._root / name}/data",
            "/mnt/shared/sluice": f"{self._root}/shared",
            "/mnt/shared": str(self._root),
        }
        (conf / "sluice.yaml").write_text(of_the_page(page, {**folders, **here}))
        text = (captured.conf / "destinations" / "shop.yaml").read_text()
        (conf / "destinations" / "shop.yaml").write_text(text)
        return conf

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def said(self, word: str) -> bool:
        return word in (self._root / f"{self.name}.log").read_text()

    def start(self) -> None:
        folder = self._root / self.name / "elsewhere"
        folder.mkdir(exist_ok=True)
        arguments = [str(self.conf), str(self.run_conf), str(self._root / "lake.db")]
        with (self._root / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.ha.engine_host", *arguments],
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def stand_still(self, lake: Lake) -> None:
        """Not amid a write of the lake, which is one file here and would be locked for everybody."""
        self.process.send_signal(signal.SIGSTOP)
        while lake.is_locked():
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()


class Lake:
    """What the runs wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self._path, timeout=30) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:  # no table yet
                return []

    def is_locked(self) -> bool:
        with closing(sqlite3.connect(self._path, timeout=1, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            connection.execute("ROLLBACK")
            return False

    def count(self, host: str = "%") -> int:
        found = self.ask(f"SELECT COUNT(*) FROM rows WHERE host LIKE '{host}'")
        return int(str(found[0][0])) if found else 0

    def wait_until_written_by(self, host: Host, seconds: float = 180) -> None:
        before = self.count(host.name)
        wait_for(f"{host.name} writes", lambda: self.count(host.name) > before, seconds)


@contextmanager
def traffic(captured: Captured) -> Iterator[Callable[[], int]]:
    """Transactions without end, until it is asked how many there were."""
    stopping, numbers = threading.Event(), itertools.count()
    written: list[int] = []

    def write() -> None:
        while not stopping.is_set():
            some = [next(numbers) for _ in range(5)]
            captured.insert(some)
            written.extend(some)
            stopping.wait(0.05)

    thread = threading.Thread(target=write)
    thread.start()

    def stop() -> int:
        stopping.set()
        thread.join()
        return len(written)

    try:
        yield stop
    finally:
        stop()


@contextmanager
def hosts(root: Path, captured: Captured, kind: str, ports: tuple[int, int]) -> Iterator[tuple[Host, Host]]:
    made = tuple(Host(name, root, captured, kind, port) for name, port in zip(("one", "two"), ports, strict=True))
    try:
        for host in made:
            host.start()
        status = root / "shared" / "shop" / "status.json"
        wait_for("an engine reads", status.exists, 120)
        yield made[0], made[1]
    finally:
        for host in made:
            host.kill()


def require_each_once(lake: Lake, count: int) -> None:
    """Every row that was written once, and no place acked twice."""
    wait_for("all rows are in the lake", lambda: lake.count() >= count, 120)
    found = Counter(n for (n,) in lake.ask("SELECT n FROM rows"))
    assert found == Counter(range(count))
    acked = Counter(place for (place,) in lake.ask("SELECT place FROM acked"))
    assert not [place for place, times in acked.items() if times > 1]


def active_of(pair: tuple[Host, Host], lake: Lake) -> tuple[Host, Host]:
    """The host that writes, and the other."""
    before = [lake.count(host.name) for host in pair]
    wait_for("a host writes", lambda: [lake.count(host.name) for host in pair] != before, 120)
    is_first = lake.count(pair[0].name) > before[0]
    return (pair[0], pair[1]) if is_first else (pair[1], pair[0])


def test_ha_one_machine_by_the_conf_of_the_page(mysql80: DatabaseServer, tmp_path: Path) -> None:
    captured = Captured(tmp_path, mysql80)
    here = {"/srv/sluice": f"{tmp_path}/data", "/srv/lake": f"{tmp_path}/lake"}
    (captured.conf / "sluice.yaml").write_text(of_the_page(CONFS[0], here))
    with running(captured) as engine:
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
    assert {"meta.json", "lease.lock"} <= {path.name for path in captured.directory.iterdir()}


def test_failover_ha_of_two_engine_hosts_under_load(mysql80: DatabaseServer, tmp_path: Path) -> None:
    """Standing still for longer than the session, a cut network, ZooKeeper restarted, a killed engine."""
    captured, lake = Captured(tmp_path / "source", mysql80), Lake(tmp_path / "lake.db")
    keeper = ZooKeeperServer(tmp_path / "zookeeper").start()
    lines = Proxy(keeper.port), Proxy(keeper.port)
    try:
        with (
            hosts(tmp_path, captured, "zookeeper", (lines[0].port, lines[1].port)) as pair,
            traffic(captured) as stop_traffic,
        ):
            # who is active is asked before each step: on a busy machine a host may be silent for a session, and the other takes over
            active, standby = active_of(pair, lake)
            active.stand_still(lake)
            lake.wait_until_written_by(standby)
            active.process.send_signal(signal.SIGCONT)

            active, standby = active_of(pair, lake)
            line = lines[pair.index(active)]
            line.turn_to(free_port())
            line.cut()
            lake.wait_until_written_by(standby)
            line.turn_to(keeper.port)

            keeper.kill()
            keeper.start()

            active, standby = active_of(pair, lake)
            active.kill()
            lake.wait_until_written_by(standby)
            active.start()
            require_each_once(lake, stop_traffic())
        assert not (tmp_path / active.name / "data").exists(), "nothing of it is on the engine's machine"
    finally:
        for proxy in lines:
            proxy.cut()
        keeper.kill()


@pytest.mark.usefixtures("postgres16")
def test_failover_ha_with_the_lease_in_postgres(
    mysql80: DatabaseServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same without ZooKeeper: standing still, Postgres away for both, then killed."""
    port = request.getfixturevalue("postgres16").port
    captured, lake, line = Captured(tmp_path / "source", mysql80), Lake(tmp_path / "lake.db"), Proxy(port)
    try:
        with hosts(tmp_path, captured, "sql", (line.port, line.port)) as pair, traffic(captured) as stop_traffic:
            active, standby = active_of(pair, lake)
            active.stand_still(lake)
            lake.wait_until_written_by(standby)
            active.process.send_signal(signal.SIGCONT)

            line.turn_to(free_port())
            line.cut()
            for host in pair:
                wait_for(f"{host.name} misses Postgres", functools.partial(host.said, "META"), 60)
            line.turn_to(port)

            active, standby = active_of(pair, lake)
            active.kill()
            lake.wait_until_written_by(standby)
            require_each_once(lake, stop_traffic())
    finally:
        line.cut()
