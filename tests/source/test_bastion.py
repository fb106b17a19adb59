"""Tests a source behind a real bastion. The stream, snapshots and queries go through the bastion, which may end, return and refuse."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.servers.sshd import SshServer
from sluice.cdc_engine.errors import AccessDeniedError, ConfigurationError, SourceConnectionError
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.tunnel import Bastion
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.managed]


@pytest.fixture(scope="module")
def bastion() -> Iterator[SshServer]:
    """Starts an SSH server in a folder that every account may read. pytest's own folders are readable only for the current user."""
    with tempfile.TemporaryDirectory(prefix="sluice-sshd-") as folder, socket.create_server(("127.0.0.1", 0)) as free:
        Path(folder).chmod(0o755)
        made = SshServer(Path(folder), free.getsockname()[1])
        free.close()
        made.start()
        yield made
        made.stop()


@pytest.fixture
def source(bastion: SshServer, mysql80: DatabaseServer) -> Source:
    through = Bastion(
        host="127.0.0.1",
        port=bastion.port,
        user=bastion.user,
        key_file=bastion.key_file,
        known_hosts_file=bastion.known_hosts_file,
    )
    return Source(destination="shop", host="127.0.0.1", port=mysql80.port, user="root", bastion=through)


def described(bastion: SshServer, server: DatabaseServer) -> str:
    """Returns the source of a conf/."""
    names = f"key_file: {bastion.key_file}, known_hosts_file: {bastion.known_hosts_file}"
    ssh = f"{{host: 127.0.0.1, port: {bastion.port}, user: {bastion.user}, {names}}}"
    return f"{{user: root, port: {server.port}, ssh: {ssh}}}"


def tunnels() -> list[psutil.Process]:
    """Returns the processes of ssh that this process has started."""
    found = psutil.Process().children()
    return [each for each in found if each.name() == "ssh" and each.status() != psutil.STATUS_ZOMBIE]


def test_the_stream_continues_after_the_bastion_was_lost(
    bastion: SshServer, mysql80: DatabaseServer, tmp_path: Path
) -> None:
    captured = Captured(tmp_path, mysql80)
    captured.describe(source=described(bastion, mysql80))
    with running(captured) as engine:
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
        bastion.disconnect()
        captured.insert(range(3, 5))
        assert captured.take(engine, 2) == [3, 4]
        bastion.stop()
        wait_for("the reason names the bastion", lambda: f"the bastion {bastion.user}@" in engine.status().reason)
        captured.insert([5])
        bastion.start()
        assert captured.take(engine, 1) == [5]
    wait_for("no ssh is left", lambda: not tunnels())


def test_rows_are_read_through_it(source: Source) -> None:
    with contextlib.closing(open_reader(source)) as reader:
        ((filler,),) = reader.texts("SELECT REPEAT('x', 3000000)")
        assert len(filler or "") == 3_000_000
    with contextlib.closing(SourceConnection(dataclasses.replace(source, tls_mode="REQUIRED"))) as connection:
        assert connection.encrypted
    assert not tunnels()


def test_an_unknown_host_key_is_refused(source: Source, tmp_path: Path) -> None:
    assert source.bastion is not None
    unknown = dataclasses.replace(source.bastion, known_hosts_file=tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"host key of the bastion .* is not in .*none"):
        SourceConnection(dataclasses.replace(source, bastion=unknown))
    assert not tunnels()


def test_another_key_is_refused_by_name(source: Source, tmp_path: Path) -> None:
    assert source.bastion is not None
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    other = dataclasses.replace(source.bastion, key_file=tmp_path / "other")
    with pytest.raises(AccessDeniedError, match=r"refused the private key \(.*other\)"):
        SourceConnection(dataclasses.replace(source, bastion=other))


def test_errors_of_the_server_stay_its_own(source: Source) -> None:
    with pytest.raises(AccessDeniedError, match=r"stranger@127.0.0.1:\d+ was refused"):
        SourceConnection(dataclasses.replace(source, user="stranger"))
    with pytest.raises(SourceConnectionError, match=r"the bastion .* did not connect"):
        SourceConnection(dataclasses.replace(source, port=1))
    assert not tunnels()
