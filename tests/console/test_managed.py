"""Tests `init` and `check` at imitated servers of providers: an unsafe setting causes a warning, and following the warning ends it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.check import Finding, check_destination
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from tests.fix_servers import ServerFactory
from tests.parser.fix_shop import run
from tests.parser.providers.imitation import AURORA_MARKS, RDS_MARKS, SECRET, account, amazon, greeting
from tests.parser.recording import capturing, source_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.managed, pytest.mark.servers]

RUNNER = CliRunner()
VARIABLE = "SLUICE_MANAGED_PASSWORD"
EVERYTHING = "SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.*"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv(VARIABLE, SECRET)
    return tmp_path / "conf"


@pytest.fixture
def retention(mysql80: DatabaseServer) -> Iterator[DatabaseServer]:
    """Returns a server whose retention a test may change."""
    yield mysql80
    run(mysql80, "SET GLOBAL binlog_expire_logs_seconds = DEFAULT")


def init(port: int, name: str = "managed_shop") -> str:
    words = ["init", f"mysql://managed@127.0.0.1:{port}/managed_shop", "--password-env", VARIABLE, "--name", name]
    answer = RUNNER.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    return " ".join(answer.stdout.split())


def check(conf: Path, name: str = "managed_shop") -> Finding:
    return check_destination(load_config(conf).destinations[name])


@pytest.mark.parametrize(("marks", "most"), [(RDS_MARKS, "168 is the maximum"), (AURORA_MARKS, "2160 is the maximum")])
def test_no_retention_at_amazon_is_a_warning_until_the_printed_call_is_made(
    marks: dict[str, str], most: str, mysql80: DatabaseServer, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`binlog_expire_logs_seconds` is 30 days, but has no effect at Amazon."""
    account(mysql80, EVERYTHING)
    with amazon(mysql80, monkeypatch, marks):
        reported = init(mysql80.port)
        assert "note: `binlog retention hours` is NULL" in reported
        assert most in reported
        (warning,) = check(conf).warnings
        assert "`binlog retention hours` is NULL" in warning
        call = re.search(r"CALL mysql\.rds_set_configuration\([^)]*\)", warning)
        assert call
        run(mysql80, call[0])
        assert "note: " not in init(mysql80.port, "again")
        assert not check(conf).warnings
        run(mysql80, "CALL mysql.rds_set_configuration('binlog retention hours', 3)")
        assert "keeps its binlog for 3 h only" in check(conf).warnings[0]


@pytest.mark.parametrize(
    "printed",
    ["SELECT ON mysql.rds_configuration", "EXECUTE ON PROCEDURE mysql.rds_show_configuration"],
)
def test_a_retention_that_the_account_may_not_read_is_a_warning_until_it_may(
    printed: str, mysql80: DatabaseServer, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account(mysql80, "REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT, LOCK TABLES ON managed_shop.*")
    with amazon(mysql80, monkeypatch, RDS_MARKS):
        run(mysql80, "CALL mysql.rds_set_configuration('binlog retention hours', 168)")
        assert "GRANT SELECT ON mysql.rds_configuration" in init(mysql80.port)
        assert "could not be read" in check(conf).warnings[0]
        run(mysql80, f"GRANT {printed} TO managed@'%'")
        assert not check(conf).warnings


def test_zero_at_azure_is_no_retention_and_not_one_without_end(retention: DatabaseServer, conf: Path) -> None:
    account(retention, EVERYTHING)
    run(retention, "SET GLOBAL binlog_expire_logs_seconds = 0")
    with greeting(retention, "-azure") as port:
        assert "binlog_expire_logs_seconds is 0: Azure Database for MySQL deletes a binlog file" in init(port)
        (warning,) = check(conf).warnings
        assert "set the server parameter binlog_expire_logs_seconds to 604800" in warning
        run(retention, "SET GLOBAL binlog_expire_logs_seconds = 604800")
        assert not check(conf).warnings


def test_a_short_flag_at_cloud_sql_is_reported_as_a_flag(retention: DatabaseServer, conf: Path) -> None:
    account(retention, EVERYTHING)
    run(retention, "SET GLOBAL binlog_expire_logs_seconds = 3600")
    with greeting(retention, "-google") as port:
        assert "8.0.31-google" in init(port)
        (warning,) = check(conf).warnings
        assert "Google Cloud SQL keeps its binlog for 1.0 h only" in warning
        assert "set the database flag binlog_expire_logs_seconds" in warning
        run(retention, "SET GLOBAL binlog_expire_logs_seconds = 86400")
        assert not check(conf).warnings


def test_the_age_of_the_oldest_binlog_file_is_shown(mysql80: DatabaseServer, conf: Path) -> None:
    account(mysql80, EVERYTHING)
    assert re.search(r"its oldest binlog file binlog\.\d+ is \d+\.\d h old", init(mysql80.port))
    assert "its oldest binlog file" in check(conf).what


PROVIDERS = {
    "self-managed": ("by SET GLOBAL, and both in the server's option file", "SET GLOBAL binlog_format = 'ROW'"),
    "rds": ("in the instance's DB parameter group", "binlog_format = ROW in the instance's DB parameter group"),
    "aurora": ("in the DB cluster parameter group", "binlog_format = ROW in the DB cluster parameter group"),
    "-google": ("no database flag sets gtid_mode", "set the database flag binlog_format = ROW"),
    "-azure": ("set the server parameters enforce_gtid_consistency", "set the server parameter binlog_format = ROW"),
}


@contextlib.contextmanager
def imitated(server: DatabaseServer, provider: str, patch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yields the port of a server that imitates the server of a provider."""
    if provider.startswith("-"):
        with greeting(server, provider) as port:
            yield port
    elif provider == "self-managed":
        yield server.port
    else:
        with patch.context() as marks, amazon(server, marks, RDS_MARKS if provider == "rds" else AURORA_MARKS):
            yield server.port


def test_a_failover_and_its_settings_are_described_in_the_terms_of_the_provider(
    fresh_mysql80: ServerFactory, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mysql80({"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    account(server, EVERYTHING)
    for provider, (gtids, _) in PROVIDERS.items():
        with imitated(server, provider, monkeypatch) as port:
            name = provider.strip("-").replace("-", "_")
            reported = init(port, name)
            warnings = " ".join(check(conf, name).warnings)
        for said in (reported, warnings):
            assert "the stream ends as POSITION_LOST" in said, provider
            assert gtids in said, provider
    run(server, "SET GLOBAL binlog_format = 'STATEMENT'")
    for provider, (_, setting) in PROVIDERS.items():
        name = provider.strip("-").replace("-", "_")
        with imitated(server, provider, monkeypatch) as port:
            url = f"mysql://managed@127.0.0.1:{port}/managed_shop"
            answer = RUNNER.invoke(app, ["init", url, "--password-env", VARIABLE, "--name", f"{name}_format"])
        assert answer.exit_code == 1
        assert "missing: binlog_format is STATEMENT" in answer.stdout
        assert setting in " ".join(answer.stdout.split()), provider
    run(server, "SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL enforce_gtid_consistency = ON")
    run(server, *(f"SET GLOBAL gtid_mode = {mode}" for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")))
    found = check(conf, "self_managed")
    assert not found.warnings, "what init printed was done"
    assert "if the address moves to another server, the stream continues by GTID" in found.what


def test_a_server_whose_position_is_found_by_time_needs_no_gtids(fresh_mysql80: ServerFactory, conf: Path) -> None:
    server = fresh_mysql80({"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    account(server, EVERYTHING)
    init(server.port)
    file = conf / "destinations" / "managed_shop.yaml"
    file.write_text(f"{file.read_text()}failover: by_time\n")
    assert not check(conf).warnings


@pytest.mark.parametrize(
    ("version", "privileges"),
    [
        ("mysql80", "REPLICATION SLAVE, REPLICATION CLIENT"),
        ("mariadb114", "REPLICATION SLAVE, BINLOG MONITOR"),
        ("mariadb1011", "REPLICATION SLAVE, BINLOG MONITOR"),
    ],
)
def test_the_printed_grant_has_the_names_of_the_manual_and_streams_without_super(
    version: str, privileges: str, conf: Path, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(version)
    account(server, "SELECT, LOCK TABLES ON *.*")
    url = f"mysql://managed@127.0.0.1:{server.port}/managed_shop"
    answer = RUNNER.invoke(app, ["init", url, "--password-env", VARIABLE])
    assert answer.exit_code == 1
    assert "run as an administrator of the server" in answer.stdout
    statement = re.search(r"^ +(GRANT .*);$", answer.stdout, re.MULTILINE)
    assert statement
    assert statement[1].startswith(f"GRANT {privileges} ON *.* TO ")
    run(server, statement[1])
    assert not check(conf).problems
    with capturing(source_of(server, user="managed", password=lambda: SECRET)) as capture:
        assert capture.parser.state == "STREAMING"


# For each provider: what the owner of the server must set, as `init` prints it, and the statement with the same effect on the test's
# server.
RETENTIONS = {
    "self-managed": ("", "SET GLOBAL binlog_expire_logs_seconds = 604800"),
    "rds": ("CALL mysql.rds_set_configuration('binlog retention hours', 168)",) * 2,
    "aurora": ("CALL mysql.rds_set_configuration('binlog retention hours', 168)",) * 2,
    "-google": (
        "set the database flag binlog_expire_logs_seconds",
        "SET GLOBAL binlog_expire_logs_seconds = 604800",
    ),
    "-azure": (
        "set the server parameter binlog_expire_logs_seconds to 604800",
        "SET GLOBAL binlog_expire_logs_seconds = 604800",
    ),
}
UNSAFE = {"-google": 3600, "-azure": 0}  # the value of binlog_expire_logs_seconds before the change


@pytest.mark.parametrize("provider", list(PROVIDERS))
def test_doing_what_init_prints_is_enough_for_rows_to_arrive(
    provider: str, retention: DatabaseServer, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account(retention, "SELECT, LOCK TABLES ON *.*")
    run(retention, "TRUNCATE managed_shop.orders")
    run(retention, f"SET GLOBAL binlog_expire_logs_seconds = {UNSAFE.get(provider, 2592000)}")
    printed, obeyed = RETENTIONS[provider]
    with imitated(retention, provider, monkeypatch) as port:
        words = ["init", f"mysql://managed@127.0.0.1:{port}/managed_shop", "--password-env", VARIABLE]
        answer = RUNNER.invoke(app, words)
        assert answer.exit_code == 1
        grant = re.search(r"^ +(GRANT .*);$", answer.stdout, re.MULTILINE)
        assert grant
        assert printed in " ".join(answer.stdout.split())
        run(retention, grant[1], obeyed)
        found = check(conf)
        assert (found.problems, found.warnings) == ((), ())
        file = conf / "destinations" / "managed_shop.yaml"
        file.write_text(f"{file.read_text()}snapshot: never\n")
        config = load_config(conf)
        engine = Engine(config, "managed_shop")
        engine.start()
        try:
            run(retention, "INSERT INTO managed_shop.orders VALUES (7)")
            batch = wait_for("a batch is out", lambda: engine.hand_out(0.5))
            files = (config.destination_dir("managed_shop") / batch.path).glob("*.parquet")
            assert [pq.read_table(each)["id"].to_pylist() for each in files] == [[7]]
            assert engine.status().troubles == ()
        finally:
            engine.stop()
