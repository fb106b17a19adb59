"""Tests two engine hosts that share no folder, with one destination and continuous traffic: whatever happens to the active host, no row is
lost and none arrives twice.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from benchmarks.servers.zookeeper import ZooKeeperServer
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.config.test_deployment_ha import CONFS
from tests.instance.fix_destination import Captured, running
from tests.parser.proxy import Proxy
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
SECONDS = 6  # The length of a session.
# For each kind of `SharedServers`: the conf in docs/deployment.md, and the hosts and ports in it with their values in this test.
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
SECRETS = {
    "LAKE_ACCESS_KEY": ACCESS_KEY,
    "LAKE_SECRET_KEY": SECRET_KEY,
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}


def of_the_page(text: str, here: Mapping[str, str]) -> str:
    """Returns a conf of docs/deployment.md with the addresses of this machine. `here` maps each address in the conf to its replacement."""
    for old, new in here.items():
        assert old in text, f"the conf of the page does not say {old}"
        text = text.replace(old, new)
    return text


@dataclasses.dataclass(frozen=True)
class SharedServers:
    """The servers that the hosts share. For each host, `ports` has the port of the server that stores the leases, and `stores` has the port
    of the S3 server `store`.
    """

    kind: str
    ports: tuple[int, int]
    store: S3Server
    stores: tuple[int, int]

    def of(self, number: int) -> dict[str, str]:
        """Returns the values for the conf of one host."""
        return {
            "http://store:9000": f"http://127.0.0.1:{self.stores[number]}",
            "eu-central-1": self.store.options["aws_region"],
            "s3://bucket": f"s3://{self.store.bucket}/{uuid.uuid5(uuid.NAMESPACE_URL, str(self.ports)).hex[:12]}",
        }


class Host:
    """Runs one engine host. No other host and no run sees its folder."""

    def __init__(self, name: str, root: Path, captured: Captured, shared: SharedServers, number: int) -> None:
        self.name, self._root = name, root
        self.data = root / name / "data"
        self.conf = self._write(name, captured, shared, number)
        self.run_conf = self._write(f"{name}_runs", captured, shared, number)
        self._process: subprocess.Popen[bytes] | None = None

    def _write(self, name: str, captured: Captured, shared: SharedServers, number: int) -> Path:
        conf = self._root / name / "conf"
        (conf / "destinations").mkdir(parents=True)
        page, given = PAGES[shared.kind]
        here = {old: new.format(port=shared.ports[number], seconds=SECONDS, host=name) for old, new in given.items()}
        folder = {"/srv/sluice": f"{self._root / name}/data"}
        (conf / "sluice.yaml").write_text(of_the_page(page, {**folder, **shared.of(number), **here}))
        text = (captured.conf / "destinations" / "shop.yaml").read_text()
        (conf / "destinations" / "shop.yaml").write_text(text)
        return conf

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def reads(self) -> bool:
        return (self.data / "engine" / "shop" / "status.json").exists()

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
                env={**os.environ, **SECRETS, "PYTHONPATH": str(ROOT)},
            )

    def stand_still(self, lake: Lake) -> None:
        """Suspends the host, but not during a write of the lake. The lake is one file here, which would stay locked for all."""
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

    def lose_disk(self) -> None:
        """Removes the disk of a killed host, so that nobody sees its folder again."""
        self.data.rename(self.data.with_name(f"lost-{uuid.uuid4().hex[:6]}"))


class Lake:
    """What the runs wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def query(self, query: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self._path, timeout=30) as connection:
            try:
                return connection.execute(query).fetchall()
            except sqlite3.OperationalError:  # The table does not exist yet.
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
        found = self.query(f"SELECT COUNT(*) FROM rows WHERE host LIKE '{host}'")
        return int(str(found[0][0])) if found else 0

    def wait_until_written_by(self, host: Host, seconds: float = 180) -> None:
        before = self.count(host.name)
        wait_for(f"{host.name} writes", lambda: self.count(host.name) > before, seconds)


@contextmanager
def traffic(captured: Captured) -> Iterator[Callable[[], int]]:
    """Runs transactions continuously. Yields a function that ends them and returns the number of inserted rows."""
    stopping, numbers = threading.Event(), itertools.count()
    written: list[int] = []

    def write() -> None:
        while not stopping.is_set():
            some = [next(numbers) for _ in range(5)]
            captured.insert(some)
            written.extend(some)
            stopping.wait(0.2)

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
def hosts(root: Path, captured: Captured, shared: SharedServers) -> Iterator[tuple[Host, Host]]:
    made = tuple(Host(name, root, captured, shared, number) for number, name in enumerate(("one", "two")))
    try:
        for host in made:
            host.start()
        wait_for("an engine reads", lambda: any(host.reads for host in made), 120)
        yield made[0], made[1]
    finally:
        for host in made:
            host.kill()


def require_each_once(lake: Lake, count: int, also: Iterable[int] = ()) -> None:
    """Requires that every row was written exactly once, and that no position was acked twice. `also` are the rows of `Late`."""
    expected = Counter([*range(count), *also])
    wait_for("all rows are in the lake", lambda: lake.count() >= expected.total(), 120)
    found = Counter(n for (n,) in lake.query("SELECT n FROM rows"))
    assert found == expected
    acked = Counter(batch for (batch,) in lake.query("SELECT place FROM acked"))
    assert not [batch for batch, times in acked.items() if times > 1]


def active_of(pair: tuple[Host, Host], lake: Lake) -> tuple[Host, Host]:
    """Returns the host that writes, and the other host."""
    before = [lake.count(host.name) for host in pair]
    wait_for("a host writes", lambda: [lake.count(host.name) for host in pair] != before, 120)
    is_first = lake.count(pair[0].name) > before[0]
    return (pair[0], pair[1]) if is_first else (pair[1], pair[0])


class Late:
    """Writes the table `late`, whose schema changes during a takeover, and the table `late_xa`, whose rows come from XA transactions."""

    def __init__(self, captured: Captured) -> None:
        self._captured, self._table = captured, f"{captured.database}.late"
        self.rows: list[int] = []
        captured.run(
            f"CREATE TABLE {self._table} (n INT PRIMARY KEY, a INT)",
            f"CREATE TABLE {self._table}_xa LIKE {self._table}",
        )

    def _new(self) -> int:
        self.rows.append(-1 - len(self.rows))
        return self.rows[-1]

    def prepare(self, lake: Lake) -> str:
        """Prepares an XA transaction, whose rows arrive when it is committed, and returns its name. First waits until the lake has a row
        that was inserted after the XA PREPARE.
        """
        name = f"'{self._captured.database}-{len(self.rows)}'"
        insert = f"INSERT INTO {self._table}_xa (n) VALUES ({self._new()}), ({self._new()})"
        self._captured.run(f"XA START {name}", insert, f"XA END {name}", f"XA PREPARE {name}")
        self.insert(lake)
        return name

    def insert(self, lake: Lake) -> None:
        """Inserts a row, and returns when the lake has it."""
        new = self._new()
        self._captured.run(f"INSERT INTO {self._table} (n) VALUES ({new})")
        wait_for("the row is in the lake", lambda: bool(lake.query(f"SELECT 1 FROM rows WHERE n = {new}")), 120)

    def change(self) -> None:
        """Inserts a row with the earlier schema, and then changes the schema. A host that now reads the schema from the server gets the
        wrong schema for this row.
        """
        self._captured.run(
            f"INSERT INTO {self._table} (n) VALUES ({self._new()})",
            f"ALTER TABLE {self._table} ADD b{len(self.rows)} VARCHAR(9) DEFAULT 'x' FIRST",
        )

    def commit(self, name: str) -> None:
        self._captured.run(f"XA COMMIT {name}")


def takes_over_without_the_folder(late: Late, lake: Lake, pair: tuple[Host, Host]) -> None:
    """The active host is killed and its disk is removed, between XA PREPARE and XA COMMIT, and during changes of a table."""
    name = late.prepare(lake)
    active, standby = active_of(pair, lake)
    late.change()
    active.kill()
    active.lose_disk()
    late.change()
    lake.wait_until_written_by(standby)
    late.commit(name)
    late.insert(lake)
    active.start()


def test_ha_one_machine_by_the_conf_of_the_page(mysql80: DatabaseServer, tmp_path: Path) -> None:
    captured = Captured(tmp_path, mysql80)
    here = {"/srv/sluice": f"{tmp_path}/data", "/srv/lake": f"{tmp_path}/lake"}
    (captured.conf / "sluice.yaml").write_text(of_the_page(CONFS[0], here))
    with running(captured) as engine:
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
    assert {"meta.json", "lease.lock"} <= {path.name for path in captured.directory.iterdir()}


def test_failover_ha_s3_of_two_engine_hosts_under_load(
    mysql80: DatabaseServer, s3_store: S3Server, tmp_path: Path
) -> None:
    """A host is suspended for longer than the session, the network is interrupted, ZooKeeper is restarted, the store is missing, and an
    engine is killed and loses its disk.
    """
    captured, lake = Captured(tmp_path / "source", mysql80), Lake(tmp_path / "lake.db")
    keeper, late = ZooKeeperServer(tmp_path / "zookeeper").start(), Late(captured)
    lines, store_line = (Proxy(keeper.port), Proxy(keeper.port)), Proxy(s3_store.port)
    shared = SharedServers("zookeeper", (lines[0].port, lines[1].port), s3_store, (store_line.port, store_line.port))
    try:
        with (
            hosts(tmp_path, captured, shared) as pair,
            traffic(captured) as stop_traffic,
        ):
            # The active host is determined before each step, because on a busy machine a host may be silent for a session, and the other
            # takes over.
            active, standby = active_of(pair, lake)
            active.stand_still(lake)
            lake.wait_until_written_by(standby)
            active.process.send_signal(signal.SIGCONT)

            active, standby = active_of(pair, lake)
            line = lines[pair.index(active)]
            line.connect_to(free_port())
            line.disconnect()
            lake.wait_until_written_by(standby)
            line.connect_to(keeper.port)

            keeper.kill()
            keeper.start()

            active, _ = active_of(pair, lake)
            store_line.connect_to(free_port())
            store_line.disconnect()
            wait_for("a host misses the store", lambda: any(host.said("cannot be used now") for host in pair), 60)
            store_line.connect_to(s3_store.port)

            takes_over_without_the_folder(late, lake, pair)
            require_each_once(lake, stop_traffic(), late.rows)
    finally:
        for proxy in (*lines, store_line):
            proxy.disconnect()
        keeper.kill()


@pytest.mark.usefixtures("postgres16")
def test_failover_ha_s3_with_the_lease_in_postgres(
    mysql80: DatabaseServer, s3_store: S3Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The leases are in Postgres instead of ZooKeeper. A host is suspended, both hosts lose Postgres for some time, and then a host is
    killed and loses its disk.
    """
    port = request.getfixturevalue("postgres16").port
    captured, lake, line = Captured(tmp_path / "source", mysql80), Lake(tmp_path / "lake.db"), Proxy(port)
    shared, late = (
        SharedServers("sql", (line.port, line.port), s3_store, (s3_store.port, s3_store.port)),
        Late(captured),
    )
    try:
        with hosts(tmp_path, captured, shared) as pair, traffic(captured) as stop_traffic:
            active, standby = active_of(pair, lake)
            active.stand_still(lake)
            lake.wait_until_written_by(standby)
            active.process.send_signal(signal.SIGCONT)

            line.connect_to(free_port())
            line.disconnect()
            for host in pair:
                wait_for(f"{host.name} misses Postgres", functools.partial(host.said, "META"), 60)
            line.connect_to(port)

            takes_over_without_the_folder(late, lake, pair)
            require_each_once(lake, stop_traffic(), late.rows)
    finally:
        line.disconnect()
