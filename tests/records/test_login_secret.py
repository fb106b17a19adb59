"""Tests shared records whose password is in a file. A changed password needs no restart, and in ZooKeeper no other user can use the
records.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, NoAuthError
from kazoo.protocol.states import KeeperState
from kazoo.security import make_acl

from benchmarks.servers.zookeeper import ZooKeeperServer
from sluice.cdc_engine.contracts import ZooKeeperServers
from sluice.cdc_engine.errors import ConfigurationError, NotSharedError, SecretUnavailableError
from sluice.cdc_engine.ha.zookeeper_lock import Nodes, ZooKeeperLock
from sluice.cdc_engine.records import zookeeper_client
from sluice.cdc_engine.records.contract import NOT_THERE
from sluice.cdc_engine.records.sql import SqlRecordStore
from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.extras import Extra
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.secret]

FIRST, SECOND = "first-secret-51", "second-secret-52"
USER, DATABASE = "ledger_login", "ledger_login"


def in_server(server: DatabaseServer, password: str) -> None:
    """Gives the account this password, and kills its connections."""
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
    """Starts a ZooKeeper for this test alone, because the test gives one user the nodes that all destinations share."""
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
    anonymous = KazooClient(hosts=own_zookeeper.hosts)
    anonymous.start()
    try:
        with pytest.raises(NoAuthError):
            anonymous.get("/otter/canal/destinations/guarded/sluice/ledger")
    finally:
        anonymous.stop()
        anonymous.close()
    other = ZooKeeperRecordStore(ZooKeeperServers(hosts=own_zookeeper.hosts), "guarded", 4.0)
    with pytest.raises(NotSharedError) as refused:
        other.read("ledger")
    assert FIRST not in f"{refused.value} {servers!r}"
    file.unlink()
    with pytest.raises(SecretUnavailableError, match=r"meta\.password: the file"):
        zookeeper_client.new_client(servers, 4.0)


def refuse_login_of(client: Any) -> None:
    """Makes ZooKeeper refuse the login of a client, by a scheme that does not exist. Waits until kazoo has given up."""
    with contextlib.suppress(AuthFailedError):
        client.add_auth("no-such-scheme", "")
    wait_for("the client is over", lambda: client.client_state == KeeperState.CLOSED)


def test_a_client_whose_login_was_refused_is_replaced_by_one_that_reads_the_password_again(
    own_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    file = tmp_path / "keeper"
    file.write_text(FIRST)
    servers = ZooKeeperServers(hosts=own_zookeeper.hosts, user="sluice", password=f"$file:{file}")
    refused = zookeeper_client.shared_client(servers, 4.0)
    assert zookeeper_client.shared_client(servers, 4.0) is refused
    refuse_login_of(refused)
    file.unlink()
    for _ in range(2):
        with pytest.raises(SecretUnavailableError, match=r"meta\.password: the file"):
            zookeeper_client.shared_client(servers, 4.0)
    file.write_text(SECOND)
    store = ZooKeeperRecordStore(servers, "replaced", 4.0)
    _ = store.write("ledger", "one", version=NOT_THERE)
    assert zookeeper_client.shared_client(servers, 4.0).auth_data == {("digest", f"sluice:{SECOND}")}


def test_a_lock_whose_login_was_refused_is_taken_again_with_a_new_client(own_zookeeper: ZooKeeperServer) -> None:
    nodes = Nodes(
        servers=ZooKeeperServers(hosts=own_zookeeper.hosts), held="/lock/held", counter="/lock/counter", payload="one"
    )
    lock = ZooKeeperLock(nodes, 2.0)
    try:
        assert lock.try_acquire()
        token = lock.token
        refuse_login_of(lock._client)
        assert not lock.held
        wait_for("the lock is free, and taken again", lock.try_acquire)
        assert lock.token > token
    finally:
        lock.release()


def test_another_password_of_zookeeper_needs_another_acl_first(own_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """In the scheme digest, the password is a part of the user's identity (docs/guides/rotate-a-password.md)."""
    file = tmp_path / "keeper"
    file.write_text(FIRST)
    servers = ZooKeeperServers(hosts=own_zookeeper.hosts, user="sluice", password=f"$file:{file}")
    store = ZooKeeperRecordStore(servers, "moved", 4.0)
    version = store.write("ledger", "one", version=NOT_THERE)
    zookeeper_client.end_shared_clients()
    file.write_text(SECOND)
    with pytest.raises(NotSharedError, match="NoAuthError"):
        store.read("ledger")
    old = KazooClient(hosts=own_zookeeper.hosts, auth_data=[("digest", f"sluice:{FIRST}")])
    old.start()
    digest = base64.b64encode(hashlib.sha1(f"sluice:{SECOND}".encode()).digest()).decode()  # noqa: S324  ZooKeeper's own
    paths = ["/otter"]
    try:
        for path in paths:
            paths += [f"{path}/{child}" for child in old.get_children(path)]
            old.set_acls(path, [make_acl("digest", f"sluice:{digest}", all=True)])
    finally:
        old.stop()
        old.close()
    assert store.write("ledger", "two", version=version) == version + 1


class Connected:
    client_state = KeeperState.CONNECTED

    def stop(self) -> None:
        """Does nothing, because there is no session."""

    close = stop


def test_a_zookeeper_that_does_not_answer_delays_no_request_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answers = threading.Event(), threading.Event()

    def connecting(servers: ZooKeeperServers, _seconds: float) -> Connected:
        if servers.hosts == "silent:1":
            begun.set()
            assert answers.wait(60)
        return Connected()

    monkeypatch.setattr(zookeeper_client, "new_client", connecting)
    silent = ZooKeeperServers(hosts="silent:1")
    with ThreadPoolExecutor(3) as pool:
        try:
            waiting = [pool.submit(zookeeper_client.shared_client, silent, 4.0) for _ in range(2)]
            assert begun.wait(60)
            other = pool.submit(zookeeper_client.shared_client, ZooKeeperServers(hosts="other:1"), 4.0)
            assert isinstance(other.result(60), Connected)
            assert not any(each.done() for each in waiting)
        finally:
            answers.set()
        assert waiting[0].result(60) is waiting[1].result(60), "both threads share one client"
    zookeeper_client.end_shared_clients()


def test_sasl_without_its_libraries_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = ZooKeeperServers(hosts="127.0.0.1:1", sasl="GSSAPI")
    monkeypatch.setattr(zookeeper_client, "KERBEROS", "no_such_package")
    with pytest.raises(ConfigurationError, match=r"GSSAPI needs .*pip install 'pure-sasl\[GSSAPI\]'"):
        zookeeper_client.new_client(servers, 4.0)
    monkeypatch.setattr(Extra.SASL, "modules", ("no_such_package",))
    with pytest.raises(ConfigurationError, match=r"pip install 'sluice\[sasl\]'"):
        zookeeper_client.new_client(servers, 4.0)
