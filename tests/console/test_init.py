"""Tests that `sluice init URL` prints a statement for each thing that the source lacks, and writes conf/ without the password."""

from __future__ import annotations

import errno
import re
import shlex
import shutil
import subprocess
import tempfile
import traceback
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from benchmarks.servers.sshd import SshServer
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.records.sql import database_url
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.chunks import Chunk
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.console import init_conf
from sluice.console.canal_import.properties import ImportReport, Settings
from sluice.console.canal_import.rabbitmq import rabbitmq_of
from sluice.console.check import check_destination, check_keyless
from sluice.console.conf_check import conf_problems
from sluice.console.init_conf import SourceLogin, parse_url
from sluice.console.main import app, exit_code
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.ports import free_port
from tests.style.sources import ROOT as PROJECT_ROOT

RUNNER = CliRunner()
SECRET = "init-secret-42"  # noqa: S105
VARIABLE = "SLUICE_INIT_PASSWORD"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv(VARIABLE, SECRET)
    spark = free_port()
    ports = f"webserver: {free_port()}, code_server: {free_port()}, spark_connect: {spark}"
    # The usual ports may be used by another Sluice on this machine.
    own = f"ports: {{{ports}}}\nspark: {{remote: 'sc://127.0.0.1:{spark}'}}\n"
    monkeypatch.setattr(init_conf, "SLUICE_YAML", f"{init_conf.SLUICE_YAML}{own}")
    return tmp_path / "conf"


@pytest.fixture(params=["mysql80", "mariadb114"])
def poor(request: pytest.FixtureRequest) -> DatabaseServer:
    """Returns a server with an account that may only log in."""
    server: DatabaseServer = request.getfixturevalue(request.param)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS init_shop")
        cursor.execute("CREATE DATABASE init_shop")
        cursor.execute("CREATE TABLE init_shop.log (n int)")
        cursor.execute("CREATE TABLE init_shop.orders (id int PRIMARY KEY)")
        cursor.execute("DROP USER IF EXISTS init_poor@'%'")
        cursor.execute("CREATE USER init_poor@'%%' IDENTIFIED BY %s", (SECRET,))
    return server


def url(server: DatabaseServer) -> str:
    return f"mysql://init_poor@127.0.0.1:{server.port}/init_shop"


@pytest.mark.found
@pytest.mark.parametrize("password", ["secret/word", "12/secret", "secret[word"])
def test_no_part_of_a_password_is_in_an_error(password: str) -> None:
    """Defect 29: the error about a URL with a password printed a part of it: "Port could not be cast to integer value as 'w'"."""
    text = f"mysql://root:{password}@db:3306/shop"
    amqp = Settings(({"canal.mq.servers": text.replace("mysql", "amqp")},), {})
    readers: dict[str, Callable[[], object]] = {
        "init": lambda: parse_url(text),
        "a database of conf/": lambda: database_url(text),
        "import-canal": lambda: rabbitmq_of("shop", amqp, ImportReport()),
    }
    for name, read in readers.items():
        reported = ""
        try:
            read()
        except ConfigurationError as error:
            reported = f"{error} {''.join(traceback.format_exception(error)).count('ValueError')}"
        assert "secret" not in reported, name
        assert not reported or reported.endswith(" 0"), "the library's sentence is no cause that a log shows"


@pytest.mark.servers
def test_the_grant_that_is_missing_is_printed_and_is_enough(poor: DatabaseServer, conf: Path) -> None:
    answer = RUNNER.invoke(app, ["init", url(poor)], input=f"{VARIABLE}\n")
    assert answer.exit_code == 1, answer.output
    statement = re.search(r"GRANT .*;", answer.stdout)
    assert statement
    mariadb = "mariadb" in answer.stdout.lower()
    # The privilege is named BINLOG MONITOR in MariaDB 10.5 and above, and REPLICATION CLIENT in MySQL.
    client = "BINLOG MONITOR" if mariadb else "REPLICATION CLIENT"
    assert f"REPLICATION SLAVE, {client}, SELECT, LOCK TABLES ON *.* TO" in statement[0]
    with poor.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement[0].rstrip(";"))
    again = RUNNER.invoke(app, ["init", url(poor), "--name", "again", "--password-env", VARIABLE])
    assert again.exit_code == 0, again.output
    assert "missing: " not in again.stdout
    assert "✓ configuration in" in again.stdout, "init continues with check"
    assert again.stdout.rstrip().endswith("next: `sluice up`")
    (conf / "destinations" / "again.yaml").unlink()
    (conf / "destinations" / "silent.yaml").write_text("source: {user: u, port: 1}\n")
    refused = RUNNER.invoke(app, ["init", url(poor), "--name", "again", "--password-env", VARIABLE])
    assert refused.stdout.rstrip().endswith("next: correct the problems above, then run `sluice check`")
    (conf / "destinations" / "silent.yaml").unlink()
    shop = load_config(conf).destinations["init_shop"]
    assert shop.snapshot == "initial"
    assert (shop.source.user, shop.source.password, shop.include) == ("init_poor", f"${VARIABLE}", r"init_shop\..*")
    assert SECRET not in answer.output + "".join(file.read_text() for file in conf.rglob("*.yaml"))


@pytest.mark.servers
@pytest.mark.found
def test_a_table_without_a_key_is_read_with_the_grant_that_is_printed(
    poor: DatabaseServer, conf: Path, tmp_path: Path
) -> None:
    """Test for defect 24: `init` names tables without a key, and prints the GRANT with which their rows can be read.
    This GRANT is enough.
    """
    with poor.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO init_shop.log VALUES (1), (2)")
        connection.commit()
        cursor.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO init_poor@'%'")
    answer = RUNNER.invoke(app, ["init", url(poor), "--password-env", VARIABLE])
    assert (
        "1 table(s) of init_shop have no primary key (init_shop.log): the lake keeps each as a change log"
        in answer.stdout
    )
    settings = load_config(conf).destinations["init_shop"]
    mysql = "mariadb" not in answer.stdout.lower()  # MariaDB tells the position of a read without a lock
    assert ("note: the user init_poor may not lock tables of init_shop" in answer.stdout) == mysql
    if mysql:
        assert (
            "a snapshot of a table without a key may need several attempts"
            in check_keyless(SourceSchema(settings)).warnings[1]
        )
        with poor.connect() as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE init_shop.log ENGINE = MyISAM")
        assert "may not lock init_shop.log" in check_keyless(SourceSchema(settings)).problems[0]
        again = RUNNER.invoke(app, ["init", url(poor), "--password-env", VARIABLE, "--name", "again"])
        assert again.exit_code == 1
        statement = re.search(r"^ +GRANT (.*);$", again.stdout, re.MULTILINE)
        assert statement
        assert "GRANT LOCK TABLES ON *.*" in statement[0]
        with poor.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement[0].strip().rstrip(";"))
    finding = check_keyless(SourceSchema(settings))
    assert not finding.problems
    assert "change log" in finding.warnings[0]
    (log,) = (each for each in SourceSchema(settings).captured if each.table == "log")
    table = SourceTable(lambda: open_reader(source_of(settings)), log, chunk_rows=10)
    try:
        table.read(Chunk(number=1), tmp_path / "rows.parquet")
    finally:
        table.close()
    assert sorted(str(n) for n in pq.read_table(tmp_path / "rows.parquet")["n"].to_pylist()) == ["1", "2"]


@pytest.mark.servers
@pytest.mark.found
def test_a_database_that_does_not_exist_is_refused(mysql80: DatabaseServer, conf: Path) -> None:
    """Test for defect 28: `init` refuses a database that the server does not have, and writes nothing."""
    monkey = f"mysql://root@127.0.0.1:{mysql80.port}/no_such_shop"
    answer = RUNNER.invoke(app, ["init", monkey, "--password-env", "SLUICE_INIT_EMPTY"], env={"SLUICE_INIT_EMPTY": ""})
    assert isinstance(answer.exception, ConfigurationError), answer.output
    assert "has no database 'no_such_shop'" in str(answer.exception)
    assert not conf.exists()


@pytest.mark.servers
@pytest.mark.found
def test_the_commands_of_the_readme_work_in_a_clean_clone(
    mysql80: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test for defect 23: README's `init mysql://…/shop` writes shop.yaml next to the conf/ that a clone has, and `check` reads it."""
    listed = subprocess.run(["git", "ls-files", "conf"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT_ROOT / name, tmp_path / name)
    readme = (PROJECT_ROOT / "README.md").read_text()
    granted = re.search(r"GRANT [^`]*", readme)
    assert granted
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS shop")
        cursor.execute("DROP USER IF EXISTS readme@'%'")
        cursor.execute("CREATE USER readme@'%%' IDENTIFIED BY %s", (SECRET,))
        cursor.execute(granted[0].replace("'sluice'", "'readme'"))
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv("SLUICE_SHOP_PASSWORD", SECRET)
    reported = re.search(r"^\./sluice (init .*)$", readme, re.MULTILINE)
    assert reported
    words = shlex.split(reported[1].replace("sluice@db.example.com", f"readme@127.0.0.1:{mysql80.port}"))
    answer = RUNNER.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert list(load_config(tmp_path / "conf").destinations) == ["shop"]
    assert not conf_problems(tmp_path / "conf")
    found = check_destination(load_config(tmp_path / "conf").destinations["shop"])
    assert not found.problems


def test_the_example_of_a_destination_is_valid() -> None:
    assert list(load_config(PROJECT_ROOT / "conf" / "examples").destinations) == ["shop"]


@pytest.mark.servers
def test_what_is_there_is_never_written_over(mysql80: DatabaseServer, conf: Path) -> None:
    (conf / "destinations").mkdir(parents=True)
    (conf / "destinations" / "init_shop.yaml").write_text("mine")
    answer = RUNNER.invoke(app, ["init", url(mysql80), "--password-env", VARIABLE])
    assert isinstance(answer.exception, ConfigurationError)
    assert "exists already" in str(answer.exception)
    assert (conf / "destinations" / "init_shop.yaml").read_text() == "mine"


@pytest.mark.servers
@pytest.mark.found
def test_an_invalid_conf_leaves_no_file_of_a_new_destination(poor: DatabaseServer, conf: Path) -> None:
    """Defect 82: the file of the new destination stayed, and the next `sluice init` refused the name."""
    (conf / "destinations").mkdir(parents=True)
    other = conf / "destinations" / "other.yaml"
    other.write_text("include: 7\n")
    answer = RUNNER.invoke(app, ["init", url(poor), "--password-env", VARIABLE])
    assert isinstance(answer.exception, ConfigurationError)
    assert "other.yaml" in str(answer.exception)
    assert [path for path in conf.rglob("*") if path.is_file()] == [other]


@pytest.mark.found
@pytest.mark.parametrize("last", ["sluice.yaml", "shop.yaml"])
def test_a_full_disk_leaves_no_file_of_a_new_destination(
    conf: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Defect 1171: if the disk was full, an empty file of the new destination stayed, and the next `sluice init` refused the name."""
    write = Path.write_text

    def until_full(path: Path, text: str) -> int:
        if path.name != last:
            return write(path, text)
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", until_full)
        with pytest.raises(OSError, match="No space left on device"):
            written(conf)
    assert not [path for path in conf.rglob("*") if path.is_file()]
    assert list(written(conf).destinations) == ["shop"]


def written(conf: Path) -> SluiceConfig:
    """Writes conf/ for a source that has answered."""
    file = conf / "destinations" / "shop.yaml"
    return init_conf._write(conf, file, parse_url("mysql://u@h/shop"), SourceLogin(variable=VARIABLE))


@pytest.mark.found
def test_without_standard_input_the_options_instead_of_an_answer_are_named(conf: Path) -> None:
    """Defect 1174: `sluice init` in a script without standard input ended with "Aborted." and did not say what to do."""
    answer = RUNNER.invoke(app, ["init", "mysql://u@127.0.0.1:1/d"], input="")
    assert isinstance(answer.exception, SetupError)
    assert "--password-env NAME" in str(answer.exception)
    assert "--password-file FILE" in str(answer.exception)
    assert exit_code(answer.exception) == 1
    assert not conf.exists()


def test_without_an_answer_nothing_is_written(conf: Path) -> None:
    answer = RUNNER.invoke(app, ["init", "mysql://u@127.0.0.1:1/d", "--password-env", VARIABLE])
    assert answer.exit_code == 1
    assert not conf.exists()


def test_a_variable_that_is_not_set_is_named(conf: Path) -> None:
    answer = RUNNER.invoke(app, ["init", "mysql://u@127.0.0.1:1/d", "--password-env", "SLUICE_NOT_SET"])
    assert isinstance(answer.exception, ConfigurationError)
    assert "SLUICE_NOT_SET" in str(answer.exception)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"mysql://u:{SECRET}@h/d", "history"),
        ("postgres://u@h/d", "MySQL or MariaDB"),
        ("mysql://h/d", "does not name a user"),
        ("mysql://u@h:port/d", "cannot be read"),
        ("mysql://u@h/9d", "--name"),
    ],
)
def test_an_invalid_url_is_reported_without_its_password(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        parse_url(text)
    assert SECRET not in str(refused.value)


def test_parts_of_a_url() -> None:
    wanted = parse_url("mariadb://a%40b@db.example:3307/My-Shop")
    assert (wanted.name, wanted.user, wanted.port, wanted.variable) == (
        "my_shop",
        "a@b",
        3307,
        "SLUICE_MY_SHOP_PASSWORD",
    )
    assert parse_url("mysql://u@h").include == r".*\..*"


@pytest.mark.found
@pytest.mark.parametrize(
    ("name", "captured"),
    [
        ("_orders_gho", False),
        ("_orders_ghc", False),
        ("_orders_20260101120000_del", False),
        ("__orders_new", False),
        ("_orders_old", False),
        ("orders_new", True),
        ("orders", True),
    ],
)
def test_tables_of_online_schema_tools_are_excluded(name: str, captured: bool) -> None:
    """Defect 26: the `include` that `init` writes captured ghost tables."""
    for url_of, database in (("mysql://u@h/my-shop", "my-shop"), ("mysql://u@h", "any")):
        wanted = parse_url(url_of)
        assert TableFilter(wanted.include, wanted.exclude).keeps(database, name) is captured


@pytest.mark.found
@pytest.mark.parametrize("name", ["mysql.user", "sys.sys_config", "information_schema.x", "performance_schema.x"])
def test_a_url_without_a_database_does_not_capture_databases_of_the_server(name: str) -> None:
    """Defect 1161: the `exclude` that `init` wrote replaced the default, so the lake got mysql.user with the hashes of passwords."""
    wanted = parse_url("mysql://u@h")
    captured = TableFilter(wanted.include, wanted.exclude)
    assert not captured.keeps(*name.split("."))
    assert captured.keeps("shop", "orders")
    assert not captured.keeps("shop", "_orders_gho")


@pytest.mark.found
@pytest.mark.parametrize("database", ["a,b", "a,,b", "{a,b", r"a\,b", "a.b", "a b"])
def test_the_patterns_of_a_database_match_only_this_database(database: str) -> None:
    """Defect 1162: for a database `a,b`, `init` wrote an `include` that captured the database `b` instead."""
    wanted = parse_url(f"mysql://u@h/{urllib.parse.quote(database)}", "named")
    captured = TableFilter(wanted.include, wanted.exclude)
    assert captured.keeps(database, "orders")
    assert not captured.keeps(database, "_orders_gho")
    assert not captured.keeps("b", "orders")


@pytest.mark.found
@pytest.mark.parametrize("rest", ["?ssl-mode=VERIFY_IDENTITY", f"?password={SECRET}", f"#{SECRET}"])
def test_a_part_of_the_url_that_init_does_not_read_is_refused(rest: str) -> None:
    """Defect 1163: `init` ignored `?ssl-mode=VERIFY_IDENTITY` silently, so the connection was not verified."""
    with pytest.raises(ConfigurationError, match="set `tls` under `source`") as refused:
        parse_url(f"mysql://u@h/shop{rest}")
    assert SECRET not in str(refused.value)


@pytest.mark.servers
@pytest.mark.secret
def test_the_password_is_read_from_a_file_through_a_bastion(
    mysql80: DatabaseServer, conf: Path, tmp_path: Path
) -> None:
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS init_shop")
        cursor.execute("DROP USER IF EXISTS init_filed@'%'")
        cursor.execute("CREATE USER init_filed@'%%' IDENTIFIED BY %s", (SECRET,))
        cursor.execute("GRANT SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO init_filed@'%'")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "shop").write_text(f"{SECRET}\n")
    with tempfile.TemporaryDirectory(prefix="sluice-sshd-") as folder:
        Path(folder).chmod(0o755)
        bastion = SshServer(Path(folder), free_port())
        bastion.start()
        named = ["init", f"mysql://init_filed@127.0.0.1:{mysql80.port}/init_shop", "--password-file", "secrets/shop"]
        through = ["--ssh", f"{bastion.user}@127.0.0.1:{bastion.port}", "--ssh-key", str(bastion.key_file)]
        known = ["--ssh-known-hosts", str(bastion.known_hosts_file)]
        try:
            answer = RUNNER.invoke(app, [*named, *through, *known])
            assert answer.exit_code == 0, answer.output
            source = load_config(conf).destinations["init_shop"].source
            assert source.ssh is not None
            assert (source.ssh.host, source.ssh.port, source.ssh.user) == ("127.0.0.1", bastion.port, bastion.user)
            assert source.password_now() == SECRET
            written = (conf / "destinations" / "init_shop.yaml").read_text()
            assert "password:\n    file: secrets/shop" in written
            assert SECRET not in written + answer.output
            (tmp_path / "secrets" / "shop").unlink()
            gone = RUNNER.invoke(app, [*named, *through, *known, "--name", "gone"])
            assert "secrets/shop" in str(gone.exception)
            assert not (conf / "destinations" / "gone.yaml").exists()
        finally:
            bastion.stop()


@pytest.mark.secret
@pytest.mark.parametrize(
    ("login", "refused"),
    [
        (SourceLogin(variable="A", file="b"), "--password-env and --password-file both name the location"),
        (SourceLogin(variable="A", key_file="key"), "name the bastion with --ssh user@host"),
        (SourceLogin(variable="A", bastion="host-alone"), "is not the address of a bastion: write --ssh user@host"),
        (SourceLogin(variable="A", bastion="-oProxyCommand=x@host"), "is not the address of a bastion"),
        (SourceLogin(variable="A", bastion="user@host:99999"), "less than or equal to 65535"),
    ],
)
def test_a_login_that_cannot_be_is_refused(login: SourceLogin, refused: str, tmp_path: Path) -> None:
    wanted = parse_url("mysql://sluice@db.internal/shop")
    with pytest.raises(ConfigurationError, match=refused):
        wanted.destination(login, tmp_path)
