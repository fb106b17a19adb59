"""Tests that the stream continues while a password of a real MySQL is rotated: without a restart, and without a lost change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from tests.certificates import write_certificate
from tests.fix_servers import ServerFactory
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.secret]

USER = "rotated"
FIRST, SECOND, THIRD = "first-secret-17", "second-secret-18", "third-secret-19"


class Rotated:
    """Provides an account whose password is in a file, from which an engine reads the password."""

    def __init__(self, captured: Captured, file: Path) -> None:
        self.captured, self.file = captured, file
        captured.run(f"DROP USER IF EXISTS {USER}", f"CREATE USER {USER} IDENTIFIED BY '{FIRST}'")
        captured.run(f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {USER}")

    def in_server(self, password: str) -> None:
        """Changes the password in the server, and breaks each connection of the account."""
        self.captured.run(f"ALTER USER {USER} IDENTIFIED BY '{password}'")
        with self.captured.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM information_schema.processlist WHERE user = '{USER}'")
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")


@pytest.fixture
def rotated(mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rotated]:
    monkeypatch.setattr(limits, "REVIVE_SECONDS", 0.5)
    monkeypatch.setattr(limits, "REVIVE_SECONDS_MAX", 1.0)
    made = Rotated(Captured(tmp_path, mysql80), tmp_path / "password")
    yield made
    made.captured.run(f"DROP USER {USER}")


@pytest.mark.parametrize("location", ["file: {file}", "command: [cat, {file}]"])
def test_a_rotated_password_needs_no_restart(rotated: Rotated, location: str) -> None:
    captured, file = rotated.captured, rotated.file
    file.write_text(FIRST)
    captured.describe(
        source=f"{{user: {USER}, port: {captured.server.port}, password: {{{location.format(file=file)}}}}}"
    )
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert([0])
        assert captured.take(engine, 1) == [0]
        file.write_text(SECOND)
        rotated.in_server(SECOND)
        captured.insert([1])
        assert captured.take(engine, 1) == [1], "the file changed before the server"
        rotated.in_server(THIRD)
        captured.insert([2])
        wait_for("it is refused by name", lambda: engine.status().state == "CONFIGURATION")
        assert f"{USER}@" in engine.status().reason
        file.unlink()
        wait_for("the missing file is named", lambda: _is_reported(engine, location.partition(":")[0], file))
        file.write_text(THIRD)
        assert captured.take(engine, 1) == [2], "it continues by itself once file and server agree"
        wait_for("it runs", lambda: engine.status().state == "RUNNING")
    finally:
        engine.stop()
    for path in captured.directory.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(secret.encode() in content for secret in (FIRST, SECOND, THIRD)), path


def _is_reported(engine: Engine, setting: str, file: Path) -> bool:
    reason = engine.status().reason
    return f"the file {file} cannot be read" in reason if setting == "file" else "the command cat" in reason


class Aws:
    """Imitates boto3 with one service, whose tokens are the current password of the account."""

    def __init__(self) -> None:
        self.password, self.requested = FIRST, list[object]()

    def client(self, service: str, region_name: str | None) -> Aws:
        self.requested.append((service, region_name))
        return self

    def generate_db_auth_token(self, **names: object) -> str:
        self.requested.append(names)
        return self.password


def test_each_connection_logs_in_with_a_token_of_its_own(
    fresh_mysql80: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_certificate(tmp_path, "127.0.0.1")
    options = {"ssl_ca": files["ca"], "ssl_cert": files["server"], "ssl_key": files["server_key"]}
    captured = Captured(tmp_path, fresh_mysql80({name: str(path) for name, path in options.items()}))
    rotated, aws = Rotated(captured, tmp_path / "none"), Aws()
    monkeypatch.setitem(sys.modules, "boto3", aws)
    tls = f"tls: {{mode: VERIFY_IDENTITY, ca_file: {files['ca']}}}"
    port = captured.server.port
    captured.describe(source=f"{{user: {USER}, port: {port}, auth: aws-iam, {tls}}}")
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert([0])
        assert captured.take(engine, 1) == [0]
        aws.password = SECOND
        rotated.in_server(SECOND)
        captured.insert([1])
        assert captured.take(engine, 1) == [1]
    finally:
        engine.stop()
    assert ("rds", None) in aws.requested, "the host names no region"
    assert {"DBHostname": "127.0.0.1", "Port": port, "DBUsername": USER} in aws.requested
