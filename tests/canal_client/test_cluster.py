"""Tests a cluster with ZooKeeper: clients find the active server and its successor, and clients with one id take over from each other."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from benchmarks.servers.zookeeper import ZooKeeperServer
from sluice.canal_client import CanalClient, CanalConnectionError, ClientSettings
from sluice.canal_client.servers import ClusterServers
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.server.protocol.session import Access
from tests.canal_client.fix_served import Destination, inserted, listening

PATH = "/otter/canal/destinations/example"


@pytest.fixture
def nodes(zookeeper39: ZooKeeperServer) -> Iterator[Any]:
    client = KazooClient(hosts=zookeeper39.hosts)
    client.start()
    client.delete(PATH, recursive=True)
    yield client
    client.delete(PATH, recursive=True)
    client.stop()
    client.close()


def reads(nodes: Any, port: int) -> None:
    """Writes which server reads the destination."""
    data = json.dumps({"active": True, "address": f"127.0.0.1:{port}"}).encode()
    nodes.ensure_path(f"{PATH}/running")
    nodes.set(f"{PATH}/running", data)


@pytest.mark.servers
def test_a_canal_client_follows_the_server_that_reads(zookeeper39: ZooKeeperServer, nodes: Any) -> None:
    destination = Destination(inserted(number) for number in range(1, 4))
    first, second = (listening(destination, Access()) for _ in range(2))
    standby = listening(destination, Access())
    standby.withdraw("example")
    reads(nodes, first.port)
    nodes.ensure_path(f"{PATH}/cluster/127.0.0.1:{standby.port}")
    found = []
    with contextlib.closing(second), contextlib.closing(standby):
        with CanalClient.cluster("example", zookeeper39.hosts, ClientSettings(retry_seconds=60.0)) as client:
            assert nodes.exists(f"{PATH}/1001/running")
            for batch in client.batches(idle_seconds=0.01):
                found += [change.row["id"] for change in batch.changes()]
                if found == [1]:
                    first.close()
                    reads(nodes, second.port)
        assert nodes.exists(f"{PATH}/1001/running") is None
    assert found == [1, 1, 2, 3]


@pytest.mark.servers
def test_of_canal_clients_with_one_id_one_reads_at_a_time(zookeeper39: ZooKeeperServer, nodes: Any) -> None:
    destination = Destination([inserted(1)])
    listener = listening(destination, Access())
    reads(nodes, listener.port)
    with contextlib.closing(listener), CanalClient.cluster("example", zookeeper39.hosts) as client:
        impatient = ClusterServers(zookeeper39.hosts, "example", 1001, wait_seconds=0.0)
        with (
            contextlib.closing(impatient),
            pytest.raises(CanalConnectionError, match="another client with the id 1001"),
        ):
            impatient.enter("here:1")
        second, came = CanalClient.cluster("example", zookeeper39.hosts), threading.Event()

        def wait() -> None:
            second.connect()
            came.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not came.is_set()
        client.close()
        waiting.join(60)
        assert came.is_set()
        assert [change.row["id"] for change in second.changes(idle_seconds=0.01)] == [1]
        second.close()


@pytest.mark.servers
def test_a_missing_zookeeper_and_a_missing_canal_server_in_it_are_reported(
    zookeeper39: ZooKeeperServer, nodes: Any
) -> None:
    client = CanalClient.cluster("example", zookeeper39.hosts)
    with contextlib.closing(client), pytest.raises(CanalConnectionError, match="no server of example"):
        client.connect()


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1", "127.0.0.1:11111"), ("0.0.0.0", ":11111")])  # noqa: S104
def test_the_node_of_the_canal_server_that_reads_names_where_it_listens(host: str, found: str) -> None:
    settings = {"source": {"user": "u"}, "name": "shop", "canal_server": {"port": 11111, "host": host}}
    folders = {"data_dir": "/data", "lake": "/lake"}
    config = SluiceConfig.model_validate({**folders, "destinations": {"shop": settings}})
    assert config.ledger_location("shop").address.endswith(found)
