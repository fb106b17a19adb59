"""Tests one consumer of two real servers over Canal's protocol. The rows stay in one order while engines are killed, a server is away, and
conf/ changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.canal_client import CanalClient
from sluice.canal_client.errors import CanalError
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.destination_files import read_ledger
from sluice.console.status.report import read_status
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.process import ChildProcess
from tests.fix_servers import ServerFactory
from tests.style.sources import ROOT as PROJECT_ROOT
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

DATABASE = "grouped"
EAST, WEST = 1, 77  # server ids
Got = tuple[str, int]  # server, number of the row


class Installation:
    """Two sources with a destination each, and the group `all` of both. Their engines are in a process of their own."""

    def __init__(self, root: Path, servers: dict[str, DatabaseServer]) -> None:
        self.root, self.servers, self.port, self.number = root, servers, free_port(), 0
        self.written: list[Got] = []
        conf = root / "conf"
        (conf / "destinations").mkdir(parents=True)
        engine = f"engine: {{kind: remote, address: 127.0.0.1:{free_port()}}}"
        (conf / "sluice.yaml").write_text(f"data_dir: {root}/data\nlake: {root}/lake\n{engine}\n")
        for name, server in servers.items():
            run(server, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
            run(server, f"CREATE TABLE {DATABASE}.numbers (n INT PRIMARY KEY, note VARCHAR(40))")
            text = f"source: {{user: root, port: {server.port}}}\ninclude: {DATABASE}\\..*\ntable_path: '{name}/{{table}}'\n"
            (conf / "destinations" / f"{name}.yaml").write_text(text)
        self.group_file = conf / "destinations" / "all.yaml"
        self.describe_group()
        self.process = self.begun()

    def describe_group(self) -> None:
        self.group_file.write_text(f"members: [east, west]\ncanal_server: {{port: {self.port}}}\n")

    def begun(self) -> ChildProcess:
        environment = {**os.environ, "SLUICE_CONF": str(self.root / "conf"), "PYTHONPATH": str(PROJECT_ROOT)}
        command = [sys.executable, "-m", "sluice.orchestration.rpc.process"]
        return ChildProcess(command, self.root / "engine.log", environment=environment, die_with_parent=True)

    def killed_and_begun(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process = self.begun()

    def write(self, *names: str) -> None:
        """Writes one row on each named server, in this order. Each row has its own transaction."""
        for name in names:
            run(self.servers[name], f"INSERT INTO {DATABASE}.numbers VALUES ({self.number}, '{name}')")
            self.written.append((name, self.number))
            self.number += 1

    def status(self) -> dict[str, Any]:
        file = self.root / "data" / "engine" / "all" / "status.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def ends(self) -> dict[str, tuple[str, int]]:
        """Returns a mapping of each server to the end of its binlog: the file and the offset."""
        found = {}
        for name, server in self.servers.items():
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SHOW MASTER STATUS")
                file, offset, *_ = cursor.fetchone()
                found[name] = (str(file), int(offset))
        return found

    def kept(self, ends: dict[str, tuple[str, int]]) -> bool:
        """Returns whether the ledger's cursor has reached the end of every server in `ends`."""
        (consumer,) = read_ledger(self.root / "data" / "engine" / "all").group_consumers
        reached = {name: (position.file, position.offset) for name, position in consumer.cursor.members}
        return all(reached[name] >= end for name, end in ends.items())

    def client(self) -> CanalClient:
        """Connects a client as soon as the group is served."""

        def subscribed() -> CanalClient | None:
            client = CanalClient("all", port=self.port)
            try:
                client.connect()
            except CanalError:
                return None
            return client

        return wait_for("the group is served", subscribed)


def run(server: DatabaseServer, *statements: str) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def rows_of(batch: Any) -> list[Got]:
    return [(change.row["note"], int(change.row["n"])) for change in batch.changes()]


def taken(client: CanalClient, count: int) -> list[Got]:
    """Takes `count` rows, and acks each batch."""
    found: list[Got] = []

    def enough() -> bool:
        batch = client.get(wait_seconds=0.5)
        if batch:
            found.extend(rows_of(batch))
            batch.ack()
        return len(found) >= count

    wait_for(f"{count} rows", enough)
    return found


@pytest.fixture
def installation(mysql80: DatabaseServer, fresh_mysql80: ServerFactory, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path, {"east": mysql80, "west": fresh_mysql80({"server_id": WEST})})
    yield made
    made.process.kill()
    run(mysql80, f"DROP DATABASE {DATABASE}")


def test_group_one_consumer_gets_the_rows_of_two_servers_once_and_in_the_order_of_their_commits(
    installation: Installation,
) -> None:
    client = installation.client()
    installation.write(*["east", "west", "west"] * 4)
    assert taken(client, 12) == installation.written

    installation.write("east", "east")  # An idle source delays nobody.
    assert taken(client, 2) == installation.written[-2:]

    acked = installation.ends()
    installation.write("west", "east", "west")
    batch = wait_for("a batch", lambda: client.get(wait_seconds=1.0) or None)
    got = rows_of(batch)
    servers = [{"east": EAST, "west": WEST}[name] for name, _ in got]
    assert servers == _servers(batch), "each entry has its own source in its header"
    wait_for("what was acked before is kept", lambda: installation.kept(acked))
    installation.killed_and_begun()  # The kill comes between get and ack.
    client = installation.client()
    again = taken(client, 3)
    assert again[: len(got)] == got
    assert again == installation.written[-3:]

    _one_member_is_away(installation, client)
    _its_file_goes_and_comes_back(installation)


def _servers(batch: Any) -> list[int]:
    """Returns which server wrote each row's entry."""
    return [entry.header.serverId for entry in batch.entries if entry.entryType == 2]


def _one_member_is_away(installation: Installation, client: CanalClient) -> None:
    """Kills the server of one member. Newer changes of the other member wait for this server, and `status` names the member for which the
    group waits.
    """
    installation.servers["west"].kill()
    installation.write("east")
    assert not client.get(wait_seconds=1.5)
    report = wait_for(
        "status says who is away",
        lambda: next((s for s in _problems(installation) if s.startswith("all: the member west")), ""),
    )
    assert "the group waits" in report
    assert [each["waits_for"].partition(":")[0] for each in installation.status()["consumers"]] == ["west"]
    installation.servers["west"].start()
    installation.write("west")
    assert taken(client, 2) == installation.written[-2:]
    assert installation.status()["group"]["late"] == 0


def _problems(installation: Installation) -> list[str]:
    return read_status(load_config(installation.root / "conf")).problems


def _its_file_goes_and_comes_back(installation: Installation) -> None:
    """Removes the file of the group, and writes it again. The ledger keeps the cursors of both members in one record, so the consumer
    continues.
    """
    installation.group_file.unlink()

    def gone() -> bool:
        client = CanalClient("all", port=installation.port)
        try:
            client.connect()
        except CanalError:
            return True
        client.close()
        return False

    wait_for("the group is served no more", gone)
    installation.write("west", "east")
    ledger = read_ledger(installation.root / "data" / "engine" / "all")
    (consumer,) = ledger.group_consumers
    assert [member for member, _ in consumer.cursor.members] == ["east", "west"]
    installation.describe_group()
    assert taken(installation.client(), 2) == installation.written[-2:]
