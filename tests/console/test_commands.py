"""Tests `sluice check` and `sluice position`: output, exit codes, JSON."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sluice.cdc_engine.acts.position import SetPosition, choose, next_epoch, set_position
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ConfigurationError, LeaseLostError, PositionLostError, SourceCheckError
from sluice.cdc_engine.ha.file_lease import LOCK_NAME, FileLease
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import StartChoice
from sluice.cdc_engine.position import Position
from sluice.console.acts.position import request
from sluice.console.check import Finding, problems_first
from sluice.console.main import app, exit_code
from sluice.console.stack.processes import ProcessFile
from sluice.console.stack.stack import Stack
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.errors import ServerError, SetupError
from tests.console.conftest import RUNNER, SECRET, Installation
from tests.style.sources import ROOT as PROJECT_ROOT


@pytest.fixture(scope="module")
def source(mysql80: DatabaseServer) -> DatabaseServer:
    """Returns the shared server with two accounts: one has the documented grants, and one has none."""
    with mysql80.connect() as connection, connection.cursor() as cursor:
        for user in ("sluice", "poor"):
            cursor.execute(f"CREATE USER IF NOT EXISTS {user}@'%%' IDENTIFIED BY %s", (SECRET,))
        cursor.execute("GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO sluice@'%'")
        cursor.execute("CREATE DATABASE IF NOT EXISTS commands")
    return mysql80


# ── up ──


def test_fault_up_ends_what_runs_on_a_storage_that_was_removed(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installation.destination(1)
    stack = Stack(load_config(installation.conf), installation.conf, print)
    began: list[str] = []

    def start_missing() -> list[str]:
        began.extend(stack.file.running())
        return began

    monkeypatch.setattr(stack, "_start_missing", start_missing)
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        stack.file.add("daemon", daemon.pid)
        assert stack.up() == ["daemon"], "it has only just begun"
        began.clear()
        monkeypatch.setattr("sluice.console.stack.dagster_storage.MAKING_SECONDS_MAX", 0.0)
        assert stack.up() == []
        assert "storage was removed while Dagster runs" in capsys.readouterr().out
        assert daemon.wait(20) != 0
    finally:
        daemon.kill()


# ── check ──


@pytest.mark.servers
def test_check_of_a_good_source_passes_and_shows_no_secret(installation: Installation, source: DatabaseServer) -> None:
    installation.destination(source.port)
    answer = RUNNER.invoke(app, ["check"])
    assert answer.exit_code == 0, answer.stdout
    assert "8.0.31" in answer.stdout
    assert SECRET not in answer.output


@pytest.mark.found
def test_check_counts_details_and_shows_problems_first() -> None:
    """Test for defect 28: `check` shows problems first, and shows the details of a finding only with `--verbose`."""
    found = [
        Finding("a long line", brief="short", warnings=("1", "2", "3", "4")),
        Finding("good"),
        Finding("bad", ("why",)),
    ]
    assert [each.what for each in problems_first(found)] == ["bad", "a long line", "good"]
    assert found[0].lines(verbose=False) == ("short", "1", "2", "3", "… and 1 more: `sluice check --verbose`")
    assert found[0].lines(verbose=True) == ("a long line", "1", "2", "3", "4")
    assert Finding("bad", ("why",)).lines(verbose=False) == ("bad", "why")


@pytest.mark.servers
def test_check_says_all_that_is_wrong_with_a_source(installation: Installation, source: DatabaseServer) -> None:
    installation.destination(source.port, user="poor")
    answer = RUNNER.invoke(app, ["check"])
    assert answer.exit_code == 1
    for privilege in ("REPLICATION SLAVE", "REPLICATION CLIENT", "SELECT"):
        assert f"lacks {privilege}" in answer.stdout


def test_check_says_everything_that_is_wrong_in_conf_at_once(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_TEST_PASSWORD")
    installation.destination(1)
    installation.write("destinations/Bad-Name.yaml", {"source": {"user": "u"}})
    source = {"user": "u", "password": "$SLUICE_OTHER_PASSWORD", "prot": 1}
    installation.write(
        "destinations/other.yaml", {"source": source, "include": "shop.(,a", "column_exclude": "no colon"}
    )
    answer = RUNNER.invoke(app, ["check"])
    assert answer.exit_code == 1
    for sentence in (
        "destinations/Bad-Name.yaml: name",
        "destinations/other.yaml: source.prot",
        "include: the pattern 'shop.(,a' is not a regular expression",
        "column_include, column_exclude: ",
        "SLUICE_OTHER_PASSWORD is not set",
        "SLUICE_TEST_PASSWORD is not set",
    ):
        assert sentence in answer.stdout


@pytest.mark.servers
@pytest.mark.parametrize("password", ["wrong", None])
def test_check_says_which_credentials_are_refused(
    installation: Installation, source: DatabaseServer, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    installation.destination(source.port)
    if password is None:
        monkeypatch.delenv("SLUICE_TEST_PASSWORD")
    else:
        monkeypatch.setenv("SLUICE_TEST_PASSWORD", password)
    answer = RUNNER.invoke(app, ["check"])
    assert answer.exit_code == 1
    assert ("was refused" if password else "SLUICE_TEST_PASSWORD") in answer.stdout


def test_check_finds_every_mistake_in_conf_and_another_program_on_a_port(installation: Installation) -> None:
    installation.destination(1)
    installation.write("destinations/other.yaml", {"source": {"port": "many"}, "nonsense": 1})
    answer = RUNNER.invoke(app, ["check"])
    assert answer.exit_code == 1
    for words in ("other.yaml: nonsense", "other.yaml: source.port", "other.yaml: source.user"):
        assert words in answer.stdout
    (installation.conf / "destinations" / "other.yaml").unlink()
    with socket.socket() as other:
        other.bind(
            ("127.0.0.1", yaml.safe_load((installation.conf / "sluice.yaml").read_text())["ports"]["spark_connect"])
        )
        other.listen()
        assert "another program listens" in RUNNER.invoke(app, ["check"]).stdout


def test_check_and_up_say_that_no_run_could_start_without_semaphores(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(multiprocessing, "Lock", refused)
    installation.destination(1)
    answer = RUNNER.invoke(app, ["check"])
    assert answer.exit_code == 1
    assert "semaphores cannot be created in /dev/shm (Permission denied)" in answer.stdout
    with pytest.raises(ServerError, match=r"No run can start: semaphores .* mode=1777"):
        Stack(load_config(installation.conf), installation.conf, print).up()


@pytest.mark.servers
@pytest.mark.spark
def test_usage_says_sluice() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "sluice.console.main", "up", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: sluice up" in said.stdout


# ── position ──


@pytest.mark.servers
def test_position_is_set_shown_and_refused_while_an_engine_runs(
    installation: Installation, source: DatabaseServer
) -> None:
    directory = installation.destination(source.port)
    set_it = RUNNER.invoke(app, ["position", "set", "shop", "--latest", "--yes"])
    assert set_it.exit_code == 0, set_it.exception
    cursor = read_ledger(directory).cursor
    assert cursor is not None
    shown = json.loads(RUNNER.invoke(app, ["position", "show", "shop", "--json"]).stdout)
    assert shown["shop"]["cursor"]["offset"] == cursor.offset
    assert cursor.file in RUNNER.invoke(app, ["position", "show"]).stdout
    lease = FileLease(directory)
    assert lease.try_acquire()
    try:
        refused = RUNNER.invoke(app, ["position", "set", "shop", f"{cursor.file}:4", "--yes"])
    finally:
        lease.release()
    assert isinstance(refused.exception, LeaseLostError)
    assert f"process {os.getpid()}" in str(refused.exception)
    assert read_ledger(directory).cursor == cursor


@pytest.mark.servers
def test_a_position_that_the_source_does_not_have_is_refused(
    installation: Installation, source: DatabaseServer
) -> None:
    directory = installation.destination(source.port)
    for wanted in (
        ["binlog.999999:4"],
        ["binlog.000001:4294967295"],
        ["--gtid", f"{'0' * 8}-0000-0000-0000-{'0' * 12}:1-5"],
    ):
        answer = RUNNER.invoke(app, ["position", "set", "shop", *wanted, "--yes"])
        assert isinstance(answer.exception, PositionLostError), wanted
    assert read_ledger(directory).cursor is None


@pytest.mark.servers
def test_a_time_is_a_position_and_one_that_is_gone_names_the_earliest_backfill(
    installation: Installation, source: DatabaseServer
) -> None:
    directory = installation.destination(source.port)
    far = ["position", "set", "shop", "--yes", "--json", "--time"]
    answer = RUNNER.invoke(app, [*far, "2100-01-01T00:00:00+01:00"])
    assert answer.exit_code == 0, answer.exception
    cursor = read_ledger(directory).cursor
    assert cursor is not None
    assert json.loads(answer.stdout) == {"destination": "shop", "position": cursor.to_json()}
    with source.connect() as connection, connection.cursor() as own_cursor:
        own_cursor.execute("SHOW MASTER STATUS")
        row = own_cursor.fetchone()
    assert row
    assert (cursor.file, cursor.offset, cursor.gtid_set) == (row[0], row[1], row[4].replace("\n", "")), "the end"
    gone = RUNNER.invoke(app, [*far, "2001-01-01T00:00:00Z"])
    assert isinstance(gone.exception, PositionLostError)
    assert "the earliest time that can be read is 20" in str(gone.exception)
    without = RUNNER.invoke(app, [*far, "2100-01-01T00:00:00"])
    assert isinstance(without.exception, ConfigurationError)
    assert read_ledger(directory).cursor == cursor


@pytest.mark.servers
def test_a_gtid_set_is_a_position_whose_order_key_is_below_what_follows(
    installation: Installation, source: DatabaseServer
) -> None:
    directory = installation.destination(source.port)
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.gtid_executed")
        row = cursor.fetchone()
    assert row
    answer = RUNNER.invoke(app, ["position", "set", "shop", "--gtid", row[0], "--yes"])
    assert answer.exit_code == 0, answer.exception
    ledger = read_ledger(directory)
    assert ledger.cursor is not None
    assert ledger.cursor.gtid_set == row[0].replace("\n", "")
    assert ledger.cursor.order_key > 0


@pytest.mark.servers
def test_without_a_yes_nothing_changes(installation: Installation, source: DatabaseServer) -> None:
    directory = installation.destination(source.port)
    answer = RUNNER.invoke(app, ["position", "set", "shop", "--latest"], input="n\n")
    assert isinstance(answer.exception, SetupError)
    assert read_ledger(directory).cursor is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "", False, ""),
        ("binlog.1:4", "", True, ""),
        ("binlog", "", False, ""),
        ("binlog.1:x", "", False, ""),
        ("", "", True, "-10m"),
        ("", "", False, "noon"),
    ],
)
def test_a_request_is_exactly_one_well_formed_position(arguments: tuple[str, str, bool, str]) -> None:
    text, gtid, latest, moment = arguments
    with pytest.raises(ConfigurationError):
        request(text, gtid, latest=latest, moment=moment)


def facts(uuid: str, last: int, size_bytes: int = 1000) -> ServerFacts:
    logs = tuple(BinaryLog(file=f"binlog.{number:06}", size_bytes=size_bytes) for number in range(1, last + 1))
    return ServerFacts(
        version="8.0.31",
        mariadb=False,
        server_uuid=uuid,
        gtid_enabled=False,
        file=logs[-1].file,
        offset=size_bytes,
        logs=logs,
    )


def test_the_epoch_grows_only_where_positions_cannot_be_compared() -> None:
    cursor = Position(epoch=3, file="binlog.000004", offset=500, server_uuid="one")
    ledger = Ledger(epoch=3, cursor=cursor, server_uuid="one")
    assert next_epoch(Ledger(), facts("one", 5)) == 1
    assert next_epoch(ledger, facts("one", 5)) == 3
    assert next_epoch(ledger, facts("two", 5)) == 4, "another server"
    assert next_epoch(ledger, facts("one", 2)) == 4, "RESET MASTER: the numbers began anew"
    assert next_epoch(ledger, facts("one", 4, size_bytes=400)) == 4, "reset, and grown again to the same file"
    chosen = choose(ledger, StartChoice(file="binlog.000001", offset=4), facts("two", 5))
    assert chosen.epoch == 4
    assert chosen.order_key > cursor.order_key


# ── the command itself ──


def test_errors_have_exit_codes() -> None:
    assert exit_code(ConfigurationError("conf")) == 2
    assert exit_code(SourceCheckError(["log_bin is OFF"])) == 1
    assert exit_code(SetupError("disk")) == 1


@pytest.fixture
def environment(installation: Installation) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "SLUICE_DEBUG": ""}


def test_a_mistake_in_conf_is_one_sentence_and_exit_code_2(
    installation: Installation, environment: dict[str, str]
) -> None:
    installation.write("sluice.yaml", {"data_dirr": "x"})
    done = subprocess.run(
        [sys.executable, "-m", "sluice.console.main", "status"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "data_dirr" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.servers
@pytest.mark.spark
def test_a_taken_port_is_named_with_its_owner(installation: Installation, environment: dict[str, str]) -> None:
    ports = yaml.safe_load((installation.conf / "sluice.yaml").read_text())["ports"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports["webserver"]))
        other.listen()
        done = subprocess.run(
            [sys.executable, "-m", "sluice.console.main", "up"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert f"Port {ports['webserver']}" in done.stderr
    assert f"pid {os.getpid()}" in done.stderr
    assert not ProcessFile(installation.data / "processes.json").load(), "`sluice up` has not started anything"


def test_a_position_is_not_set_under_the_lease_of_a_successor(tmp_path: Path) -> None:
    """The command waited so long for the operator's answer that another host took the destination. Nothing of the other host's stream is
    removed.
    """
    directory, removed = tmp_path / "shop", list[int]()

    def answered(_: str) -> bool:
        (directory / LOCK_NAME).unlink()  # This simulates an expired lease, which another process can take.
        return True

    act = SetPosition(
        directory=directory,
        find=lambda _: StartChoice(file="binlog.000001", offset=4),
        query_source=lambda: facts("one", 5),
        confirm=answered,
        forget_history=removed.append,
        lake_epoch=lambda: 0,
        take_over=lambda _: None,
    )
    directory.mkdir()
    with pytest.raises(LeaseLostError):
        set_position(act)
    assert not removed
    assert read_ledger(directory).cursor is None
