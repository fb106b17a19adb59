"""Tests a real ZooKeeper with SASL and TLS: who may use the records, which certificates are refused, and that no secret is shown."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from benchmarks.servers.zookeeper import ZooKeeperServer
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import ZooKeeperServers
from sluice.cdc_engine.errors import NotSharedError, SluiceError
from sluice.cdc_engine.ha.zookeeper_lock import Nodes, ZooKeeperLock
from sluice.cdc_engine.records import zookeeper_client
from sluice.cdc_engine.records.contract import NOT_THERE
from sluice.cdc_engine.records.zookeeper import ZooKeeperRecordStore
from sluice.console.toolchain.ports import LOOPBACK
from tests.certificates import write_certificate
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.secret]

SECRET, OTHER = "sasl-secret-61", "sasl-secret-62"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZooKeeperServer]:
    monkeypatch.setattr(zookeeper_client, "CONNECT_SECONDS_MAX", 5.0)
    made = ZooKeeperServer(tmp_path / "zookeeper")
    try:
        yield made
    finally:
        zookeeper_client.end_shared_clients()
        made.kill()


def sasl(server: ZooKeeperServer, tmp_path: Path, password: str = SECRET, user: str = "sluice") -> ZooKeeperServers:
    file = tmp_path / f"password-{user}"
    file.write_text(f"{password}\n")
    return ZooKeeperServers(hosts=server.hosts, user=user, password=f"$file:{file}", sasl="DIGEST-MD5")


def test_sasl_nodes_are_for_their_user_and_a_rotated_password_is_read_again(
    server: ZooKeeperServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.permit({"sluice": SECRET, "stranger": OTHER})
    server.start()
    servers = sasl(server, tmp_path)
    store = ZooKeeperRecordStore(servers, "guarded", 4.0)
    version = store.write("ledger", "one", version=NOT_THERE)
    other_user = ZooKeeperRecordStore(sasl(server, tmp_path, OTHER, "stranger"), "guarded", 4.0)
    with pytest.raises(NotSharedError, match="NoAuthError") as refused:
        other_user.read("ledger")
    nobody = KazooClient(hosts=server.hosts)
    nobody.start()
    with pytest.raises(NoAuthError):
        nobody.get("/otter/canal/destinations/guarded/sluice/ledger")
    nobody.stop()
    nobody.close()
    zookeeper_client.end_shared_clients()
    (tmp_path / "password-sluice").write_text(OTHER)
    with pytest.raises(NotSharedError, match="the login") as wrong:
        store.read("ledger")
    (tmp_path / "password-sluice").write_text(SECRET)
    assert store.write("ledger", "two", version=version) == version + 1, (
        "the user, and not the password, owns the nodes"
    )
    shown = f"{refused.value} {wrong.value} {servers!r} {caplog.text} {server.log.read_text()}"
    assert SECRET not in shown
    assert OTHER not in shown


def test_a_lease_with_sasl_is_held_and_released(server: ZooKeeperServer, tmp_path: Path) -> None:
    server.permit({"sluice": SECRET})
    server.start()
    servers = sasl(server, tmp_path)
    nodes = Nodes(servers=servers, held="/lock/held", counter="/lock/counter", payload="one")
    one, two = ZooKeeperLock(nodes, 2.0), ZooKeeperLock(nodes, 2.0)
    try:
        assert one.try_acquire()
        assert not two.try_acquire()
        one.release()
        wait_for("the other one takes it", two.try_acquire)
    finally:
        one.release()
        two.release()


def refused_by(servers: ZooKeeperServers) -> str:
    with pytest.raises(SluiceError) as refused:
        zookeeper_client.new_client(servers, 4.0)
    return str(refused.value)


def test_tls_verifies_the_server_and_shows_it_a_certificate(server: ZooKeeperServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "wrong").mkdir()
    files, other = write_certificate(tmp_path, LOOPBACK), write_certificate(tmp_path / "other", LOOPBACK)
    server.permit({"sluice": SECRET})
    port = server.secure(files["server"], files["server_key"], authority=files["ca"])
    server.start()
    known = dataclasses.replace(
        sasl(server, tmp_path),
        hosts=f"{LOOPBACK}:{port}",
        tls=True,
        ca_file=files["ca"],
        certificate_file=files["server"],
        key_file=files["server_key"],
    )
    store = ZooKeeperRecordStore(known, "guarded", 4.0)
    _ = store.write("ledger", "one", version=NOT_THERE)
    stored = store.read("ledger")
    assert stored is not None
    assert stored.text == "one"
    assert "certificates" in refused_by(dataclasses.replace(known, ca_file=other["ca"])), "another authority"
    nameless = dataclasses.replace(known, certificate_file=None, key_file=None)
    assert "certificates" in refused_by(nameless), "the server wants a certificate"
    foreign = dataclasses.replace(known, certificate_file=other["server"], key_file=other["server_key"])
    assert "certificates" in refused_by(foreign), "a certificate of another authority"
    assert "certificates" in refused_by(dataclasses.replace(known, tls=False)), "no TLS at the port for it"
    missing = refused_by(dataclasses.replace(known, ca_file=tmp_path / "none.pem"))
    assert "none.pem" in missing


def test_tls_refuses_a_certificate_of_another_host(server: ZooKeeperServer, tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "192.0.2.7")
    port = server.secure(files["server"], files["server_key"])
    server.start()
    assert "certificates" in refused_by(ZooKeeperServers(hosts=f"{LOOPBACK}:{port}", tls=True, ca_file=files["ca"]))


def test_conf_names_all_of_it(server: ZooKeeperServer, tmp_path: Path) -> None:
    files = write_certificate(tmp_path, LOOPBACK)
    server.permit({"sluice": SECRET})
    port = server.secure(files["server"], files["server_key"])
    server.start()
    (tmp_path / "keeper").write_text(SECRET)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "sluice.yaml").write_text(
        f"data_dir: {tmp_path}/data\nlake: {tmp_path}/lake\nmeta:\n  kind: zookeeper\n  hosts: {LOOPBACK}:{port}\n"
        "  user: sluice\n  password: {file: keeper}\n  sasl: DIGEST-MD5\n  tls: {ca_file: ca.pem}\n"
    )
    config = load_config(tmp_path / "conf")
    store = ZooKeeperRecordStore(config.meta.zookeeper, "shop", 4.0)
    assert store.write("ledger", "one", version=NOT_THERE) >= 0
    assert SECRET not in repr(config)
