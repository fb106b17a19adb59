"""Tests the output of `sluice check` about dagster.yaml: the package's file lacks nothing, and there is a sentence for each setting that
Sluice needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers.postgres import PostgresServer
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.console.dagster_check import check_dagster, findings_of, storage_problem
from sluice.package_files import package_file
from tests.orchestration.fix_location import make_config

SHIPPED: dict[str, Any] = yaml.safe_load(package_file("conf/dagster.yaml").read_text())
LAUNCHER = {"run_launcher": {"module": "dagster_docker", "class": "DockerRunLauncher"}}
SCHEME = "postgresql+psycopg2"
POSTGRES = {"storage": {"postgres": {"postgres_url": {"env": "DAGSTER_TEST_URL"}}}}


def with_limit(tag: str) -> dict[str, Any]:
    """Returns the package's limits with another tag."""
    runs = SHIPPED["concurrency"]["runs"]
    limits = [*runs["tag_concurrency_limits"], {"key": tag, "limit": 1}]
    return {"concurrency": {"runs": {**runs, "tag_concurrency_limits": limits}}}


def several(config: SluiceConfig) -> SluiceConfig:
    shop = config.destinations["shop"]
    return config.model_copy(update={"destinations": {"shop": shop, "other": shop}})


def apart(config: SluiceConfig, **engine: str) -> SluiceConfig:
    """Returns the configuration with a ledger and engines that runs on other hosts can reach."""
    remote = config.engine.model_copy(update={"kind": "remote", "address": "engine:4267", **engine})
    return config.model_copy(update={"meta": config.meta.model_copy(update={"kind": "sql"}), "engine": remote})


def docker(names: list[str], **container: object) -> dict[str, Any]:
    settings = {"env_vars": names, "container_kwargs": container}
    return {"run_launcher": {**LAUNCHER["run_launcher"], "config": settings}}


def kubernetes(**settings: object) -> dict[str, Any]:
    return {"run_launcher": {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": settings}}


def test_the_packages_file_needs_nothing(tmp_path: Path) -> None:
    found = check_dagster(tmp_path / "conf", several(make_config(tmp_path)))
    assert (found.problems, found.warnings) == ((), ())
    assert found.file == package_file("conf/dagster.yaml")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"run_coordinator": {"module": "dagster", "class": "DefaultRunCoordinator"}}, "QueuedRunCoordinator"),
        ({"concurrency": {}}, "sluice/destination"),
        ({"run_retries": {"enabled": True}}, "run_retries.enabled"),
        ({"sensors": {}}, "sensors.use_threads"),
        (
            with_limit("sluice/repair"),
            "limits the tag sluice/repair, which runs no longer have: replace this tag by sluice/rows",
        ),
        ({"python_logs": {"managed_python_loggers": ["orchestration"]}}, "managed_python_loggers"),
    ],
)
def test_a_missing_setting_that_sluice_needs_is_reported_in_one_sentence(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    (sentence,) = findings_of({**SHIPPED, **changed}, several(make_config(tmp_path)))
    assert why in sentence


def test_a_launcher_that_starts_runs_on_other_hosts_needs_a_storage_that_they_reach(tmp_path: Path) -> None:
    config = make_config(tmp_path, runs="drain")
    reported = list(findings_of({**SHIPPED, **LAUNCHER, "run_monitoring": {}}, config))
    words = ("SQLite", "run_monitoring", "meta.kind file", "engine.kind embedded")
    assert all(word in each for word, each in zip(words, reported, strict=True))
    assert "runs: drain has no effect" in reported[-1]
    assert not list(findings_of({**SHIPPED, **docker(["DAGSTER_TEST_URL"]), **POSTGRES}, apart(config)))


def test_an_engine_on_the_loopback_address_is_not_reached_by_runs_on_other_hosts(tmp_path: Path) -> None:
    config = apart(make_config(tmp_path), address="127.0.0.1:4267")
    (sentence,) = findings_of({**SHIPPED, **docker(["DAGSTER_TEST_URL"]), **POSTGRES}, config)
    assert "do not reach the engine at 127.0.0.1:4267" in sentence


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (docker(["DAGSTER_TEST_URL", "LAKE_SECRET", "PASSWORD=x", "TOKEN"]), ""),
        (docker(["DAGSTER_TEST_URL", "LAKE_SECRET", "TOKEN"]), "lack PASSWORD, which"),
        (docker([], environment={"TOKEN": "x", "PASSWORD": "x"}), "lack DAGSTER_TEST_URL, LAKE_SECRET, which"),
        (kubernetes(), "lack DAGSTER_TEST_URL, LAKE_SECRET, PASSWORD, TOKEN, which"),
        (kubernetes(env_vars=["TOKEN", "LAKE_SECRET", "PASSWORD"]), "lack DAGSTER_TEST_URL, which"),
        (kubernetes(env_secrets=["sluice"]), ""),
        ({"run_launcher": {"module": "own", "class": "OwnLauncher"}}, ""),
    ],
)
def test_a_variable_that_containers_of_runs_lack_is_named(tmp_path: Path, launcher: dict[str, Any], said: str) -> None:
    config = apart(make_config(tmp_path), token="$TOKEN")  # noqa: S106  a name
    shop = config.destinations["shop"]
    source = shop.source.model_copy(update={"password": "$PASSWORD"})
    config = config.model_copy(
        update={
            "storage_options": {"aws_secret_access_key": "$LAKE_SECRET"},
            "destinations": {"shop": shop.model_copy(update={"source": source})},
            "alarms": (AlarmConfig(kind="webhook", url="$WEBHOOK"),),
        }
    )
    sentences = list(findings_of({**SHIPPED, **launcher, **POSTGRES}, config))
    assert [said in each for each in sentences] == ([True] if said else [])


def test_a_file_of_the_users_is_checked_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    file = conf / "dagster.yaml"
    file.write_text(yaml.safe_dump({**SHIPPED, **LAUNCHER, **POSTGRES}))
    found = check_dagster(conf, make_config(tmp_path))
    assert found.file == file
    unset, missing = found.problems
    assert unset.startswith("storage.postgres.postgres_url: the environment variable DAGSTER_TEST_URL is not set: ")
    assert "dagster_docker cannot be imported" in missing
    file.write_text("- a list")
    assert "is not a mapping" in check_dagster(conf, make_config(tmp_path)).problems[0]
    file.write_text("a: [")
    assert "cannot be read" in check_dagster(conf, make_config(tmp_path)).problems[0]


def test_checking_the_packages_file_imports_none_of_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing Dagster would take most of the time of `sluice check`."""
    monkeypatch.setattr("sluice.console.dagster_check.importlib.import_module", pytest.fail)
    assert not check_dagster(tmp_path, make_config(tmp_path)).problems


@pytest.mark.found
@pytest.mark.parametrize("value", ["*geheim-41", "!geheim-41 x", "'geheim-41", "a: geheim-41: b"])
def test_an_error_of_the_file_shows_no_part_of_it(tmp_path: Path, value: str) -> None:
    """Defect 29: the parser's error quoted a value of dagster.yaml, which may be the password of its storage."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "dagster.yaml").write_text(f"storage: {{}}\npassword: {value}\n")
    (problem,) = check_dagster(conf, make_config(tmp_path)).problems
    assert problem.startswith("dagster.yaml cannot be read: ")
    assert "line " in problem
    assert "geheim" not in problem


def test_a_postgres_that_does_not_answer_is_reported_without_its_password() -> None:
    wanted = {
        "username": "u",
        "password": "geheim",
        "hostname": "127.0.0.1",
        "port": 1,
        "db_name": "d",
        "scheme": SCHEME,
    }
    why = storage_problem({"storage": {"postgres": {"postgres_db": wanted}}})
    assert "refuses the connection or does not answer" in why
    assert "geheim" not in why
    odd = storage_problem({"storage": {"postgres": {"postgres_url": "geheim"}}})
    assert "cannot be used" in odd
    assert "geheim" not in odd


@pytest.mark.servers
def test_a_postgres_that_answers_is_no_problem(postgres16: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_TEST_URL", postgres16.url)
    assert "begin the address with postgresql+psycopg2://" in storage_problem({**SHIPPED, **POSTGRES})
    monkeypatch.setenv("DAGSTER_TEST_URL", postgres16.url.replace("postgresql", SCHEME, 1))
    assert storage_problem({**SHIPPED, **POSTGRES}) == ""
    own = {
        "module": "dagster_postgres.storage",
        "class": "DagsterPostgresStorage",
        "config": POSTGRES["storage"]["postgres"],
    }
    assert storage_problem({"storage": own}) == ""
