"""Tests cluster clients of Canal in Java and in Go: they follow two engine hosts with three ZooKeeper nodes, whatever is killed or
suspended.

canal-python, the third client in the tests of the protocol, connects to one address and has no cluster mode.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from benchmarks.canal.server import java_command
from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from benchmarks.servers.zookeeper import ZooKeeperEnsemble
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from tests.instance.fix_destination import Captured
from tests.parser.proxy import Proxy
from tests.style.sources import ROOT
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.seeds]

SESSION_SECONDS = 4
# Each client has its own destination, because Canal's clients all have the id 1001.
JAVA, GO = "orders_java", "orders_go"
JAVA_PROGRAM = ROOT / "tests" / "server" / "protocol" / "ClusterClient.java"
GO_MODULE = Path(__file__).with_name("go_client")
SECRETS = {
    "LAKE_ACCESS": ACCESS_KEY,
    "LAKE_SECRET": SECRET_KEY,
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}


class Host:
    """An engine host with its own folder, which reaches each ZooKeeper node over a connection that can be interrupted."""

    def __init__(
        self, name: str, root: Path, captured: Captured, zookeeper: ZooKeeperEnsemble, store: S3Server
    ) -> None:
        self.name, self._root = name, root / name
        self.lines = [Proxy(node.port) for node in zookeeper.nodes]
        self._nodes = [node.port for node in zookeeper.nodes]
        self.port = free_port()
        prefix = f"s3://{store.bucket}/{uuid.uuid5(uuid.NAMESPACE_URL, str(root)).hex[:12]}"
        keys = {"aws_access_key_id": "$LAKE_ACCESS", "aws_secret_access_key": "$LAKE_SECRET"}
        main = {
            "data_dir": str(self._root / "data"),
            "lake": f"{prefix}/lake",
            "staging": f"{prefix}/staged",
            "storage_options": {**store.options, **keys},
            "meta": {
                "kind": "zookeeper",
                "hosts": ",".join(f"127.0.0.1:{line.port}" for line in self.lines),
                "session_seconds": SESSION_SECONDS,
            },
            "engine": {"kind": "remote", "listen": f"127.0.0.1:{free_port()}"},
        }
        (self._root / "conf" / "destinations").mkdir(parents=True)
        (self._root / "home").mkdir()
        (self._root / "conf" / "sluice.yaml").write_text(yaml.safe_dump(main))
        shop = (captured.conf / "destinations" / "shop.yaml").read_text()
        for destination in (JAVA, GO):
            text = f"{shop}canal_server: {{port: {self.port}}}\ntable_path: {destination}/{{database}}/{{table}}\n"
            (self._root / "conf" / "destinations" / f"{destination}.yaml").write_text(text)
        self.process: ChildProcess | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            **SECRETS,
            "SLUICE_CONF": str(self._root / "conf"),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }
        command = [sys.executable, "-m", "sluice.orchestration.rpc.process"]
        self.process = ChildProcess(
            command, self._root / "engine.log", environment=environment, folder=self._root / "home"
        )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def disconnect_all(self) -> None:
        """Interrupts the connections to all ZooKeeper nodes."""
        for line in self.lines:
            line.connect_to(free_port())
            line.disconnect()

    def connect(self) -> None:
        for line, port in zip(self.lines, self._nodes, strict=True):
            line.connect_to(port)


class Client:
    """Runs a cluster client in a process of its own, and collects the numbers that it prints."""

    def __init__(self, name: str, command: list[str], root: Path) -> None:
        self.name, self._log = name, root / f"{name}.log"
        self._process = ChildProcess(command, self._log, folder=root)

    @property
    def numbers(self) -> list[int]:
        lines = self._log.read_text(errors="replace").splitlines()
        return [int(line.removeprefix("row ")) for line in lines if line.startswith("row ") and line[4:].isdigit()]

    def has(self, number: int) -> bool:
        return max(self.numbers, default=-1) >= number

    def stop(self) -> None:
        self._process.kill()


class Traffic:
    """Inserts numbers one after the other until `stop`. `written` is how many numbers are committed."""

    def __init__(self, captured: Captured) -> None:
        self._captured, self._stopping = captured, threading.Event()
        self.written = 0
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stopping.is_set():
            self._captured.insert(range(self.written, self.written + 5))
            self.written += 5
            self._stopping.wait(0.2)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def cluster(root: Path, captured: Captured, zookeeper: ZooKeeperEnsemble, store: S3Server) -> Iterator[list[Host]]:
    hosts = [Host(name, root, captured, zookeeper, store) for name in ("one", "two")]
    try:
        for host in hosts:
            host.start()
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            for line in host.lines:
                line.disconnect()


def go_client(root: Path) -> str:
    """Compiles canal-go's client. Its modules come from Go's module proxy."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("the client in Go needs the program `go`")
    program = root / "go-client"
    built = subprocess.run(
        [go, "build", "-o", program, "."], cwd=GO_MODULE, capture_output=True, text=True, timeout=240, check=False
    )
    assert built.returncode == 0, built.stderr
    return str(program)


@contextmanager
def looking(zookeeper: ZooKeeperEnsemble) -> Iterator[Callable[[], set[int]]]:
    """Yields a function that returns the ports of the servers in the `running` nodes of the two destinations. A destination without this
    node has the port 0.
    """
    client = KazooClient(hosts=zookeeper.hosts)
    client.start()

    def port(destination: str) -> int:
        try:
            data, _ = client.retry(client.get, f"/otter/canal/destinations/{destination}/running")
        except NoNodeError:
            return 0
        return int(str(json.loads(data)["address"]).rpartition(":")[2])

    try:
        yield lambda: {port(JAVA), port(GO)}
    finally:
        client.stop()
        client.close()


@pytest.mark.timeout(600)
def test_ha_canals_cluster_clients_follow_the_running_server(
    mysql80: DatabaseServer, s3_store: S3Server, tmp_path: Path
) -> None:
    program = go_client(tmp_path)
    captured, zookeeper = Captured(tmp_path / "source", mysql80), ZooKeeperEnsemble(tmp_path / "zookeeper")
    with ExitStack() as stack:
        stack.callback(zookeeper.stop)
        zookeeper.start()
        one, two = stack.enter_context(cluster(tmp_path, captured, zookeeper, s3_store))
        served = stack.enter_context(looking(zookeeper))
        wait_for("both are served", lambda: 0 not in served(), 120)
        words = [zookeeper.hosts, JAVA, rf"{captured.database}\.numbers"]
        java = Client("java", [*java_command("canal-client", "canal-server"), str(JAVA_PROGRAM), *words], tmp_path)
        stack.callback(java.stop)
        golang = Client("go", [program, zookeeper.hosts, GO, words[2]], tmp_path)
        stack.callback(golang.stop)
        traffic = Traffic(captured)
        stack.callback(traffic.stop)

        def require_progress(what: str) -> None:
            reached = traffic.written - 1
            for client in (java, golang):
                wait_for(f"{client.name} goes on after: {what}", functools.partial(client.has, reached), 120)

        def require_served_by(host: Host) -> None:
            wait_for(f"host {host.name} serves", lambda: served() == {host.port}, 120)

        require_progress("the start")
        two.kill()
        require_served_by(one)
        two.start()
        one.kill()
        require_served_by(two)
        require_progress("a host was killed")
        one.start()

        two.send(signal.SIGSTOP)
        require_served_by(one)
        two.send(signal.SIGCONT)
        require_progress("a host stood still")

        one.disconnect_all()
        require_served_by(two)
        require_progress("a host lost ZooKeeper")
        one.connect()

        leader = zookeeper.leader
        leader.kill()
        require_progress("ZooKeeper's leader was killed")
        leader.start()
        follower = next(node for node in zookeeper.nodes if node is not zookeeper.leader)
        os.kill(follower.pid, signal.SIGSTOP)
        require_progress("a node of ZooKeeper stands still")
        os.kill(follower.pid, signal.SIGCONT)

        traffic.stop()
        require_progress("the end")
        for client in (java, golang):
            # A new consumer begins with what the store has, so traffic before its subscription may be missing.
            firsts = list(dict.fromkeys(client.numbers))
            assert firsts == [*range(firsts[0], traffic.written)], (
                f"{client.name} misses numbers, or got them in another order"
            )
