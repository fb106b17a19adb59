"""Tests that each secret of conf/ may be in a variable, a file or the output of a command, and never in conf/ itself."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from sluice.cdc_engine.brokers import kafka, rabbitmq, rocketmq
from sluice.cdc_engine.brokers.settings import KafkaConfig, RabbitConfig, RocketConfig
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.config.conf_files import mapping_of
from sluice.cdc_engine.config.sluice import SparkConfig
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, SecretUnavailableError
from sluice.cdc_engine.server.protocol.session import Access
from sluice.cdc_engine.source.iam import iam_token
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.console.conf_check import conf_problems
from sluice.object_stores import options
from sluice.orchestration.base.lake_settings import lake_error_line, storage_options
from sluice.secret_values import SecretLocation
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.session import with_token

pytestmark = pytest.mark.secret

SECRET = "open-sesame-42"  # noqa: S105


def written(root: Path, record: dict[str, Any], shop: dict[str, Any] | None = None) -> Path:
    (root / "conf" / "destinations").mkdir(parents=True)
    (root / "secret").write_text(f"{SECRET}\n")
    (root / "conf" / "sluice.yaml").write_text(yaml.safe_dump(record))
    if shop is not None:
        (root / "conf" / "destinations" / "shop.yaml").write_text(yaml.safe_dump(shop))
    return root / "conf"


FILE = {"file": "secret"}
EVERYWHERE: dict[str, Any] = {
    "meta": {"kind": "zookeeper", "hosts": "zk:2181", "user": "sluice", "password": FILE},
    "spark": {"remote": "sc://spark.example:443/;use_ssl=true", "token": FILE},
    "engine": {"kind": "remote", "token": FILE},
    "alarms": [{"kind": "webhook", "url": FILE, "headers": {"X-Token": {"command": ["cat", "/dev/null"]}}}],
    "storage_options": {"AWS_SECRET_ACCESS_KEY": FILE},
}
SHOP: dict[str, Any] = {
    "source": {"user": "sluice", "password": FILE},
    "canal_server": {"port": 11111, "user": "canal", "password_hash": FILE},
    "brokers": [
        {"kind": "kafka", "servers": "k:9092", "topic": "t", "options": {"sasl.password": FILE}},
        {"kind": "rabbitmq", "servers": "r", "topic": "t", "client_id": 2, "password": FILE},
    ],
    "tables": {"shop.a": {"masks": {"email": {"kind": "hash", "salt": FILE}}}},
}


def test_a_file_of_conf_is_read_from_the_folder_that_holds_conf(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, EVERYWHERE, SHOP))
    location = config.ledger_location("shop")
    assert SECRET not in f"{config!r} {location!r} {location.zookeeper!r}"
    for reference in (
        location.zookeeper.password,
        config.alarms[0].url,
        config.storage_options["AWS_SECRET_ACCESS_KEY"],
    ):
        assert reference == f"$file:{tmp_path}/secret"
        assert filled(reference, "setting") == SECRET
    assert storage_options(config.storage_options) == {"AWS_SECRET_ACCESS_KEY": SECRET}
    assert lake_error_line(config, f"the store said {SECRET}") == "the store said ***"
    assert config.destinations["shop"].source.password_now() == SECRET
    (tmp_path / "secret").write_text("another")
    assert config.destinations["shop"].source.password_now() == "another"


def test_an_error_hides_a_secret_of_the_store_that_was_rotated_and_reads_none_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGION_OF_TEST", "eu-somewhere")
    script = f"echo run >> {tmp_path}/runs; cat {tmp_path}/secret"
    given = {"AWS_SECRET_ACCESS_KEY": {"command": ["sh", "-c", script]}, "AWS_REGION": "$REGION_OF_TEST"}
    config = load_config(written(tmp_path, {"storage_options": given}))
    secrets = ["before-rotation/71", "after-rotation/72"]
    for secret in secrets:
        (tmp_path / "secret").write_text(secret)
        assert storage_options(config.storage_options)["AWS_SECRET_ACCESS_KEY"] == secret
    (tmp_path / "secret").unlink()
    error = "refused before-rotation/71, before-rotation%2F71 and after-rotation/72 in eu-somewhere"
    assert lake_error_line(config, error) == "refused ***, *** and *** in eu-somewhere"
    assert (tmp_path / "runs").read_text().split() == ["run"] * len(secrets)


def test_a_process_remembers_the_newest_secrets_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(options.RESOLVED_MAX + 1):
        for name in ("OFTEN_SENT", "SENT_ONCE"):
            monkeypatch.setenv(name, f"token-{number:03}" if name == "SENT_ONCE" else "token-often")
        _ = options.resolved({"token": "$OFTEN_SENT"})
        _ = options.resolved({"token": "$SENT_ONCE"})
    assert options.without_secrets("token-often token-000 token-001 token-256", {}) == "*** token-000 token-001 ***"
    assert options.without_secrets("token-002", {}) == "***"


def test_a_volume_of_kubernetes_is_rotated_by_a_link_whose_earlier_target_is_removed(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    for number, secret in enumerate((SECRET, "another")):
        (volume / f"..{number}").mkdir(parents=True)
        (volume / f"..{number}" / "password").write_text(secret)
    (volume / "..data").symlink_to("..0")
    (volume / "password").symlink_to("..data/password")
    source = {"user": "sluice", "password": {"file": "volume/password"}}
    given = {"alarms": [{"kind": "webhook", "url": {"file": f"{volume}/password"}}]}
    config = load_config(written(tmp_path, given, {"source": source}))
    assert config.destinations["shop"].source.password_now() == filled(config.alarms[0].url, "alarms.url") == SECRET
    (volume / "..new").symlink_to("..1")
    (volume / "..new").replace(volume / "..data")
    (volume / "..0" / "password").unlink()
    assert config.destinations["shop"].source.password_now() == filled(config.alarms[0].url, "alarms.url") == "another"


def test_each_login_at_a_broker_and_of_a_canal_client_reads_the_secret_again(tmp_path: Path) -> None:
    """A rotated secret needs no restart for these logins. Kafka's client gets the secret when it is created again after a failure."""
    first, second = "1" * 40, "2" * 40
    secret = {"file": str(tmp_path / "secret")}
    names = {"servers": "b:1", "topic": "t"}
    (tmp_path / "secret").write_text(first)
    rabbit = rabbitmq.target_of(RabbitConfig.model_validate({"kind": "rabbitmq", "password": secret, **names}))
    rocket = rocketmq.target_of(
        RocketConfig.model_validate({"kind": "rocketmq", "access_key": "sluice", "secret_key": secret, **names})
    )
    kafka_config = KafkaConfig.model_validate({"kind": "kafka", "options": {"sasl.password": secret}, **names})
    canal = Access(user="canal", password_hash=SecretLocation(file=tmp_path / "secret").reference)

    def given() -> list[str]:
        (parameters,) = rabbit.parameters()
        assert rocket.key is not None
        sent = kafka.settings_of(kafka_config.servers, kafka_config.options)["sasl.password"]
        credentials: Any = parameters.credentials
        return [credentials.password, rocket.key[1], sent, canal.hash_now()]

    assert given() == [first] * 4
    (tmp_path / "secret").write_text(second)
    assert given() == [second] * 4


def test_the_token_of_spark_is_in_its_address_only_when_a_run_attaches(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, EVERYWHERE))
    assert SECRET not in config.spark.address
    assert with_token(config.spark.address) == f"sc://spark.example:443/;use_ssl=true;token={SECRET}"
    assert with_token("sc://127.0.0.1:15002") == "sc://127.0.0.1:15002"
    (tmp_path / "secret").write_text("a;b=c")
    assert with_token(config.spark.address).endswith(";token=a%3Bb%3Dc")
    (tmp_path / "secret").unlink()
    with pytest.raises(SparkUnavailableError, match=r"spark.token: the file .* cannot be read: No such file"):
        with_token(config.spark.address)


def test_a_variable_in_the_address_of_spark_is_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_TOKEN", SECRET)
    config = SluiceConfig.model_validate(
        {"data_dir": "/d", "lake": "/l", "spark": {"remote": "sc://s:443/;token=$SPARK_TOKEN;user_id=me"}}
    )
    assert with_token(config.spark.address) == f"sc://s:443/;token={SECRET};user_id=me"


@pytest.mark.parametrize(
    "record",
    [
        {"spark": {"remote": f"sc://s:443/;token={SECRET}"}},
        {"spark": {"token": SECRET}},
        {"meta": {"kind": "zookeeper", "hosts": "zk:1", "user": "sluice", "password": SECRET}},
        {"storage_options": {"AWS_SECRET_ACCESS_KEY": SECRET}},
        {"engine": {"token": SECRET}},
        {"alarms": [{"kind": "email", "server": "m", "user": "u", "password": SECRET, "sender": "a@b", "to": ["c@d"]}]},
    ],
)
def test_a_secret_in_conf_itself_is_refused_without_showing_it(record: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\$NAME") as raised:
        load_config(written(tmp_path, record))
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("text", ["$", f"${SECRET}!", "$command:[]", f"$command:{SECRET}", {"command": [SECRET, ""]}])
def test_a_text_that_names_no_location_is_refused_by_conf_and_check_without_showing_it(
    text: Any, tmp_path: Path
) -> None:
    conf = written(tmp_path, {"alarms": [{"kind": "webhook", "url": text}]})
    with pytest.raises(ConfigurationError, match=r"alarms\.0") as raised:
        load_config(conf)
    assert SECRET not in f"{raised.value} {conf_problems(conf)}"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"password": {"command": ["cat"], "file": "secret"}}, "source.password: set exactly one of env"),
        ({"password": "$A B"}, "source.password: the name of an environment variable may have"),
        ({"password": {"command": ["cat", ""]}}, "source.password: a command is a list of strings"),
        ({"password_env": "A"}, r"password_env was removed: write `password: \$NAME`"),
        ({"password_file": "a"}, "password_file was removed: write `password: {file: PATH}`"),
        (
            {"password_command": ["a"]},
            r"password_command was removed: write `password: {command: \[PROGRAM, ARGUMENT\]}`",
        ),
        ({"auth": "aws-iam"}, "set tls.mode to VERIFY_IDENTITY"),
        ({"auth": "aws-iam", "tls": {"mode": "REQUIRED"}}, "set tls.mode to VERIFY_IDENTITY"),
        ({"auth": "aws-iam", "password": FILE, "tls": {"mode": "VERIFY_CA"}}, "needs no password"),
    ],
)
def test_a_login_that_is_not_safe_or_not_clear_is_refused(source: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load_config(written(tmp_path, {}, {"source": {"user": "sluice", **source}}))


def test_check_names_each_file_and_command_that_gives_no_secret(tmp_path: Path) -> None:
    conf = written(tmp_path, EVERYWHERE, SHOP)
    (tmp_path / "secret").unlink()
    problems = conf_problems(conf)
    missing = [each for each in problems if "secret cannot be read: No such file" in each]
    named = {each.split(": ")[1] for each in missing}
    assert named == {
        "meta.password.file", "spark.token.file", "engine.token.file", "alarms.0.url.file", "source.password.file",
        "canal_server.password_hash.file", "brokers.0.options.sasl.password.file", "brokers.1.password.file",
        "tables.shop.a.masks.email",
    }  # fmt: skip
    assert any("the output of the command cat is empty" in each for each in problems)


def test_boto3_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SourceConfig.model_validate({"user": "sluice", "auth": "aws-iam", "tls": {"mode": "VERIFY_CA"}})

    def missing(_name: str) -> None:
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"auth aws-iam needs a package .*: pip install 'sluice\[aws\]'"):
        iam_token(source)

    class Unable:
        def client(self, *_: object, **__: object) -> None:
            raise RuntimeError(SECRET)

    monkeypatch.setattr(importlib, "import_module", lambda _: Unable())
    with pytest.raises(SecretUnavailableError, match=r"AWS gave no token for sluice@127\.0\.0\.1:3306") as raised:
        iam_token(source)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("shop.c0ffee.eu-west-1.rds.amazonaws.com", "eu-west-1"),
        ("Shop.cluster-c0ffee.us-gov-west-1.RDS.amazonaws.com", "us-gov-west-1"),
        ("shop.c0ffee.rds.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("db.example.com", None),
    ],
)
def test_a_token_of_aws_is_for_the_region_in_the_name_of_the_host(
    host: str, region: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Aws:
        regions: ClassVar[list[str | None]] = []

        def client(self, _service: str, region_name: str | None) -> Aws:
            self.regions.append(region_name)
            return self

        def generate_db_auth_token(self, **names: object) -> str:
            return f"{names['DBHostname']} {names['DBUsername']}"

    monkeypatch.setattr(importlib, "import_module", lambda _: Aws())
    source = SourceConfig.model_validate(
        {"host": host, "user": "sluice", "auth": "aws-iam", "tls": {"mode": "VERIFY_CA"}}
    )
    assert iam_token(source) == f"{host} sluice"
    assert Aws.regions == [region]


@pytest.mark.found
@pytest.mark.parametrize(
    "value", ["*open-sesame-41", "!open-sesame-41 x", "'open-sesame-41", "a: open-sesame-41: b", "%open-sesame-41"]
)
def test_an_error_of_yaml_names_the_line_and_shows_no_part_of_the_file(value: str) -> None:
    """Defect 29: the parser's error quoted the value, which may be a password, or the lines around it."""
    problems: list[str] = []
    assert not mapping_of("sluice.yaml", f"lake: data\npassword: {value}\n", problems)
    (problem,) = problems
    assert problem.startswith("sluice.yaml cannot be read: ")
    assert "line " in problem
    assert "open-sesame" not in problem


@pytest.mark.found
@pytest.mark.parametrize(
    "remote",
    [
        "sc://h:15002;token=open-sesame-41",
        "sc://h:15002/;TOKEN=open-sesame-41",
        "sc://h:15002/;x-access-token=open-sesame-41",
        "sc://h:15002?token=open-sesame-41",
        "sc://u:open-sesame-41@h:15002",
        "sc://u:open/sesame-41@h:15002",
        "sc://h:65536",
        "sc://h:port",
        "h:15002",
    ],
)
def test_a_remote_of_spark_that_cannot_be_read_is_refused_without_a_part_of_it(tmp_path: Path, remote: str) -> None:
    """Defect 29: `check` showed a password in the address of Spark, or "Port could not be cast to integer value as 'open'"."""
    (tmp_path / "destinations").mkdir()
    (tmp_path / "sluice.yaml").write_text(yaml.safe_dump({"spark": {"remote": remote}}))
    with pytest.raises(ConfigurationError) as raised:
        load_config(tmp_path)
    assert "remote m" in str(raised.value)
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    "remote", ["sc://h", "sc://h:443/", "sc://[::1]:15002", "sc://h:1/;token=$T;use_ssl=true", "sc://h/;user_id=a"]
)
def test_other_remotes_of_spark_are_accepted(remote: str) -> None:
    assert SparkConfig(remote=remote).remote == remote


@pytest.mark.found
@pytest.mark.parametrize(
    "url", [f"https://me:{SECRET}/x@far", f"https://me:1/{SECRET}@far", f"https://me:{SECRET}@far"]
)
def test_no_part_of_a_password_in_the_url_of_a_registry_is_in_an_error(url: str, tmp_path: Path) -> None:
    """Defect 1167: the error showed the password before its slash: "Port could not be cast to integer value as …"."""
    broker = {"kind": "kafka", "servers": "k:9092", "topic": "t", "format": "avro", "registry": {"url": url}}
    conf = written(tmp_path, {}, {"source": {"user": "root"}, "brokers": [broker]})
    (problem,) = conf_problems(conf)
    assert "brokers" in problem
    assert "url: " in problem
    assert SECRET not in problem


@pytest.mark.found
def test_an_option_of_kafka_without_a_value_is_refused(tmp_path: Path) -> None:
    """Defect 1168: an empty `ssl.endpoint.identification.algorithm` became "None", with which librdkafka verifies no host name."""
    options = {
        "ssl.endpoint.identification.algorithm": None,
        "debug": ["msg"],
        "linger.ms": 5,
        "enable.idempotence": True,
    }
    broker = {"kind": "kafka", "servers": "k:9092", "topic": "t", "options": options}
    problems = conf_problems(written(tmp_path, {}, {"source": {"user": "root"}, "brokers": [broker]}))
    keys = ("ssl.endpoint.identification.algorithm", "debug")
    assert [[key in problem for key in keys] for problem in problems] == [[False, True], [True, False]]
