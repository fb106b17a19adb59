"""Tests `sluice up` with the real Dagster and Spark. Both are killed during the start, and everything runs in the end. `down` leaves
nothing.

The test searches everything that this stack wrote, also errors, for the secrets that it used.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from sluice.cdc_engine.config import load_config
from sluice.console.stack.processes import ENGINE, ProcessFile
from sluice.console.stack.stack import CODE_SERVER, SPARK, STOP_ORDER, Stack
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.kernels import compile_kernels
from sluice.console.toolchain.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.secret]

SECONDS_MAX = 500.0
SOURCE, LEDGER, STORE, ALARM, SALT = (f"{name}-secret-{name}-9317" for name in ("so", "le", "st", "al", "sa"))
WRONG = "wrong-secret-wrong-9317"
SECRETS = (SOURCE, LEDGER, STORE, ALARM, SALT, WRONG)


class SecretStack:
    """A stack whose secrets are in a file, a command's output, a URL and a variable. It stores what its commands printed."""

    def __init__(self, root: Path, server: DatabaseServer) -> None:
        self.root, self.server, self.said = root, server, root / "said"
        self.processes = ProcessFile(root / "data" / "processes.json")
        self.secret_files = root / "places"
        self.secret_files.mkdir()
        self.conf = root / "conf"
        (self.conf / "destinations").mkdir(parents=True)
        for name, secret in {"source": SOURCE, "ledger": LEDGER, "store": STORE, "alarm": ALARM}.items():
            (self.secret_files / name).write_text(secret)
        self.environment = {**os.environ, "SLUICE_CONF": str(self.conf), "SLUICE_MASK_SALT": SALT}
        self._write()

    def _write(self) -> None:
        spark = free_port()
        port = self.server.port
        record = {
            "ports": {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark},
            "spark": {"remote": f"sc://127.0.0.1:{spark}"},
            "meta": {
                "kind": "sql",
                "url": f"mysql://ledger_user@127.0.0.1:{port}/secret_ledger",
                "password": {"command": ["cat", str(self.secret_files / "ledger")]},
            },
            "storage_options": {"aws_secret_access_key": {"file": "places/store"}},
            "alarms": [
                {"kind": "webhook", "url": "http://127.0.0.1:1/", "headers": {"X-Token": {"file": "places/alarm"}}}
            ],
        }
        shop = {
            "source": {"user": "secret_user", "port": port, "password": {"file": "places/source"}},
            "include": r"secret_shop\..*",
            "snapshot": "initial",
            "tables": {"secret_shop.people": {"masks": {"name": "hash"}}},
        }
        (self.conf / "sluice.yaml").write_text(yaml.safe_dump(record))
        (self.conf / "destinations" / "shop.yaml").write_text(yaml.safe_dump(shop))

    def run(self, *statements: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def sluice(self, *words: str) -> str:
        """Runs a command, and returns and keeps what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "sluice.console.main", *words],
            env=self.environment, capture_output=True, text=True, check=False, timeout=SECONDS_MAX,
        )  # fmt: skip
        with self.said.open("a") as file:
            file.write(done.stdout + done.stderr)
        return done.stdout + done.stderr

    def up_though_parts_die(self) -> None:
        """Runs `sluice up`, and kills Spark and the code server while Spark warms up."""
        command = [sys.executable, "-m", "sluice.console.main", "up"]
        with self.said.open("ab") as output:
            up = subprocess.Popen(command, stdout=output, stderr=output, env=self.environment)
        try:
            wait_for("the warm-up", lambda: "starting the warm-up" in self.said.read_text(), SECONDS_MAX)
            for name in (SPARK, CODE_SERVER):
                os.kill(self.processes.running()[name].pid, signal.SIGKILL)
            assert up.wait(SECONDS_MAX) == 0, self.said.read_text()
        finally:
            up.kill()
            up.wait()
        assert self.said.read_text().count("ended (signal 9)") >= 2
        # An engine is a process of its own only if engine.remote names one.
        assert set(self.processes.running()) == set(STOP_ORDER) - {ENGINE}

    def state(self) -> str:
        try:
            found = json.loads((self.root / "data" / "engine" / "shop" / "status.json").read_text())
        except FileNotFoundError:
            return ""
        return str(found["state"])

    def break_connections(self) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = 'secret_user'")
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")

    def records(self) -> str:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM secret_ledger.sluice_meta")
            return str(cursor.fetchall())


@pytest.fixture
def stack(mysql80: DatabaseServer, tmp_path: Path) -> Iterator[SecretStack]:
    made = SecretStack(tmp_path, mysql80)
    made.run(
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("secret_shop", "secret_ledger")),
        *(f"CREATE DATABASE {name}" for name in ("secret_shop", "secret_ledger")),
        "CREATE TABLE secret_shop.people (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO secret_shop.people VALUES (1, 'Ada')",
        "DROP USER IF EXISTS secret_user, ledger_user",
        f"CREATE USER secret_user IDENTIFIED BY '{SOURCE}'",
        f"CREATE USER ledger_user IDENTIFIED BY '{LEDGER}'",
        "GRANT SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO secret_user",
        "GRANT ALL ON secret_ledger.* TO ledger_user",
    )
    yield made
    made.sluice("down")
    assert Stack(load_config(made.conf), made.conf, print).down() == []
    made.run("DROP USER secret_user, ledger_user", "DROP DATABASE secret_shop", "DROP DATABASE secret_ledger")


@pytest.mark.timeout(600)
def test_fault_up_continues_when_parts_die_in_its_start_and_nothing_that_it_wrote_contains_a_secret(
    stack: SecretStack,
) -> None:
    # Otherwise `sluice up` would first compile the kernels, for minutes.
    compile_kernels(open_cache(), print)
    stack.sluice("check")
    stack.up_though_parts_die()
    lake = stack.root / "data" / "lake" / "secret_shop" / "people" / "_delta_log"
    wait_for("the snapshot is in the lake", lambda: list(lake.glob("*.json")), SECONDS_MAX)
    commits = len(list(lake.glob("*.json")))
    stack.run("INSERT INTO secret_shop.people VALUES (2, 'Grace')")
    wait_for("the change is in the lake", lambda: len(list(lake.glob("*.json"))) > commits, SECONDS_MAX)
    (stack.secret_files / "source").write_text(WRONG)
    stack.break_connections()
    wait_for("the account is refused", lambda: stack.state() == "CONFIGURATION", SECONDS_MAX)
    commands = " ".join(word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or ())
    for words in (("status",), ("status", "--json"), ("check", "--verbose"), ("snapshot", "status"), ("equal", "shop")):
        stack.sluice(*words)
    stack.sluice("down")
    assert stack.processes.load() == []
    written = {"records": stack.records().encode(), "commands": commands.encode()}
    written |= {str(path): path.read_bytes() for path in stack.root.rglob("*") if path.is_file()}
    written = {name: content for name, content in written.items() if not name.startswith(str(stack.secret_files))}
    assert any(name.endswith(".db") for name in written), "Dagster's runs and tags are among them"
    assert b"secret_user" in written[str(stack.said)]
    found = [
        f"{secret[:2]}… in {name}"
        for name, content in written.items()
        for secret in SECRETS
        if secret.encode() in content
    ]
    assert found == []
