"""`sluice init URL`: what a source lacks is said as a statement that mends it, conf/ is written, the password never."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from cdc_engine.config import load_config
from cdc_engine.errors import ConfigurationError
from cdc_engine.sql_url import url_with_password
from console.canal_import.properties import Settings, Told
from console.canal_import.rabbitmq import rabbitmq_of
from console.init_conf import parse_url
from console.main import app
from console.toolchain.database.server import DatabaseServer

RUNNER = CliRunner()
SECRET = "init-secret-42"  # noqa: S105
VARIABLE = "SLUICE_INIT_PASSWORD"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv(VARIABLE, SECRET)
    return tmp_path / "conf"


@pytest.fixture(params=["mysql80", "mariadb114"])
def poor(request: pytest.FixtureRequest) -> DatabaseServer:
    """A server with an account that may only log in."""
    server: DatabaseServer = request.getfixturevalue(request.param)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS init_poor@'%'")
        cursor.execute("CREATE USER init_poor@'%%' IDENTIFIED BY %s", (SECRET,))
    return server


def url(server: DatabaseServer) -> str:
    return f"mysql://init_poor@127.0.0.1:{server.port}/init_shop"


@pytest.mark.found
@pytest.mark.parametrize("password", ["secret/word", "12/secret", "secret[word"])
def test_no_part_of_a_password_is_in_an_error(password: str) -> None:
    """Number 29: a URL with a password printed a part of it, "Port could not be cast to integer value as 'w'"."""
    text = f"mysql://root:{password}@db:3306/shop"
    amqp = cast("Settings", {"canal.mq.servers": text.replace("mysql", "amqp")})
    readers: dict[str, Callable[[], object]] = {
        "init": lambda: parse_url(text),
        "a database of conf/": lambda: url_with_password(text, "meta.url"),
        "import-canal": lambda: rabbitmq_of("shop", amqp, Told()),
    }
    for name, read in readers.items():
        told = ""
        try:
            read()
        except ConfigurationError as error:
            told = f"{error} {''.join(traceback.format_exception(error)).count('ValueError')}"
        assert "secret" not in told, name
        assert not told or told.endswith(" 0"), "the library's sentence is no cause that a log shows"


def test_the_grant_that_is_missing_is_printed_and_is_enough(poor: DatabaseServer, conf: Path) -> None:
    answer = RUNNER.invoke(app, ["init", url(poor)], input=f"{VARIABLE}\n")
    assert answer.exit_code == 1, answer.output
    statement = re.search(r"GRANT .*;", answer.stdout)
    assert statement
    assert "REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO" in statement[0]
    with poor.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement[0].rstrip(";"))
    again = RUNNER.invoke(app, ["init", url(poor), "--name", "again", "--password-env", VARIABLE])
    assert again.exit_code == 0, again.output
    assert "missing: " not in again.stdout
    shop = load_config(conf).destinations["init_shop"]
    assert shop.snapshot == "initial"
    assert (shop.source.user, shop.source.password_env, shop.include) == ("init_poor", VARIABLE, r"init_shop\..*")
    assert SECRET not in answer.output + "".join(file.read_text() for file in conf.rglob("*.yaml"))


def test_what_is_there_is_never_written_over(mysql80: DatabaseServer, conf: Path) -> None:
    (conf / "destinations").mkdir(parents=True)
    (conf / "destinations" / "init_shop.yaml").write_text("mine")
    answer = RUNNER.invoke(app, ["init", url(mysql80), "--password-env", VARIABLE])
    assert isinstance(answer.exception, ConfigurationError)
    assert "is there already" in str(answer.exception)
    assert (conf / "destinations" / "init_shop.yaml").read_text() == "mine"


def test_nobody_answers_and_nothing_is_written(conf: Path) -> None:
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
        ("mysql://h/d", "no user"),
        ("mysql://u@h:port/d", "cannot be read"),
        ("mysql://u@h/9d", "--name"),
    ],
)
def test_a_url_that_is_none_is_said_without_its_password(text: str, sentence: str) -> None:
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
