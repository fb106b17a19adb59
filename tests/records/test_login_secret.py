"""Shared records whose password is in a file: a rotated one needs no restart, and in ZooKeeper nobody else uses the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from benchmarks.servers.zookeeper import ZooKeeperServer
from sluice.cdc_engine.contracts import ZooKeeperServers
from sluice.cdc_engine.errors import ConfigurationError, NotSharedError, SecretUnavailableError
from sluice.cdc_engine.records import zookeeper_client
from sluice.cdc_engine.records.contract import NOT_THERE
from sluice.cdc_engine.records.sql import SqlRecordStore
from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore
from sluice.console.toolchain.database.server import DatabaseServer

pytestmark = [pytest.mark.servers, pytest.mark.secret]

FIRST, SECOND = "first-secret-51", "second-secret-52"
USER, DATABASE = "ledger_login", "ledger_login"


def in_server(server: DatabaseServer, password: str) -> None:
    """Gives the account this password, and breaks its connections."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER IF NOT EXISTS {USER}")
        cursor.execute(f"ALTER USER {USER} IDENTIFIED BY '{password}'")
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        cursor.execute(f"GRANT ALL ON {DATABASE}.* TO {USER}")
        cursor.execute(f"SELECT id FROM information_schema.processlist WHERE user = '{USER}'")
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {number}")


@pytest.mark.parametrize("within", [True, False], ids=["in-url", "password"])
def test_a_rotated_password_of_the_ledger_needs_no_restart(
    mysql80: DatabaseServer, tmp_path: Path, within: bool
) -> None:
    file = tmp_path / "ledger"
    file.write_text(FIRST)
    in_server(mysql80, FIRST)
    reference = f"$file:{file}"
    login = f"{USER}:{reference.replace('/', '%2F').replace(':', '%3A')}" if within else USER
    url = f"mysql://{login}@127.0.0.1:{mysql80.port}/{DATABASE}"
    store = SqlRecordStore(url, f"shop{within}", "" if within else reference)
    version = store.write("ledger", "one", version=NOT_THERE)
    in_server(mysql80, SECOND)
    with pytest.raises(NotSharedError) as refused:
        store.read("ledger")
    file.unlink()
    with pytest.raises(NotSharedError, match=f"the file {file} cannot be read") as missing:
        store.read("ledger")
    file.write_text(SECOND)
    assert store.write("ledger", "two", version=version) == version + 1
    for shown in (refused.value, missing.value, store):
        assert "secret" not in str(shown).replace("test_login_secret", "")
    file.unlink()
    with pytest.raises(SecretUnavailableError, match="cannot be read"):
        SqlRecordStore(f"{url}?charset=utf8mb4", "shop", "" if within else reference)


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of this test alone: also the nodes that all destinations share are for one user."""
    server = ZooKeeperServer(tmp_path / "zookeeper")
    try:
        yield server.start()
    finally:
        zookeeper_client.end_shared_clients()
        server.kill()


def test_nodes_of_a_user_of_zookeeper_are_for_that_user_only(own_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    file = tmp_path / "keeper"
    file.write_text(FIRST)
    servers = ZooKeeperServers(hosts=own_zookeeper.hosts, user="sluice", password=f"$file:{file}")
    store = ZooKeeperRecordStore(servers, "guarded", 4.0)
    _ = store.write("ledger", "one", version=NOT_THERE)
    stored = store.read("ledger")
    assert stored is not None
    assert stored.text == "one"
    stranger = KazooClient(hosts=own_zookeeper.hosts)
    stranger.start()
    try:
        with pytest.raises(NoAuthError):
            stranger.get("/otter/canal/destinations/guarded/sluice/ledger")
    finally:
        stranger.stop()
        stranger.close()
    other = ZooKeeperRecordStore(ZooKeeperServers(hosts=own_zookeeper.hosts), "guarded", 4.0)
    with pytest.raises(NotSharedError) as refused:
        other.read("ledger")
    assert FIRST not in f"{refused.value} {servers!r}"
    file.unlink()
    with pytest.raises(SecretUnavailableError, match=r"meta\.password: the file"):
        zookeeper_client.new_client(servers, 4.0)


def test_sasl_without_its_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_client, "find_spec", lambda _: None)
    servers = ZooKeeperServers(hosts="127.0.0.1:1", sasl="GSSAPI")
    with pytest.raises(ConfigurationError, match=r"pip install 'sluice\[sasl\]'"):
        zookeeper_client.new_client(servers, 4.0)
