"""What `sluice check` says of dagster.yaml: the package's file needs nothing, and each setting that Sluice needs has its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.servers.postgres import PostgresServer
from sluice.cdc_engine.config import SluiceConfig
from sluice.console.dagster_check import check_dagster, findings_of, storage_problem
from sluice.package_files import package_file
from tests.orchestration.fix_location import make_config

SHIPPED: dict[str, Any] = yaml.safe_load(package_file("conf/dagster.yaml").read_text())
LAUNCHER = {"run_launcher": {"module": "dagster_docker", "class": "DockerRunLauncher"}}
SCHEME = "postgresql+psycopg2"
POSTGRES = {"storage": {"postgres": {"postgres_url": {"env": "DAGSTER_TEST_URL"}}}}


def several(config: SluiceConfig) -> SluiceConfig:
    shop = config.destinations["shop"]
    return config.model_copy(update={"destinations": {"shop": shop, "other": shop}})


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
        ({"python_logs": {"managed_python_loggers": ["orchestration"]}}, "managed_python_loggers"),
    ],
)
def test_a_setting_that_sluice_needs_is_said_in_one_sentence(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    (sentence,) = findings_of({**SHIPPED, **changed}, several(make_config(tmp_path)))
    assert why in sentence


def test_a_launcher_that_starts_runs_on_other_hosts_needs_a_storage_that_they_reach(tmp_path: Path) -> None:
    config = make_config(tmp_path, runs="drain")
    told = list(findings_of({**SHIPPED, **LAUNCHER, "run_monitoring": {}}, config))
    words = ("SQLite", "run_monitoring", "meta.kind file", "one batch")
    assert all(word in each for word, each in zip(words, told, strict=True))
    shared = config.model_copy(update={"meta": config.meta.model_copy(update={"kind": "sql"})})
    assert len(list(findings_of({**SHIPPED, **LAUNCHER, **POSTGRES}, shared))) == 1, "of runs: drain"


def test_a_file_of_the_users_is_checked_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    file = conf / "dagster.yaml"
    file.write_text(yaml.safe_dump({**SHIPPED, **LAUNCHER, **POSTGRES}))
    found = check_dagster(conf, make_config(tmp_path))
    assert found.file == file
    unset, missing = found.problems
    assert unset == "storage.postgres.postgres_url: the environment variable DAGSTER_TEST_URL is not set"
    assert "dagster_docker cannot be imported" in missing
    file.write_text("- a list")
    assert "must be a mapping" in check_dagster(conf, make_config(tmp_path)).problems[0]
    file.write_text("a: [")
    assert "cannot be read" in check_dagster(conf, make_config(tmp_path)).problems[0]


def test_a_postgres_that_does_not_answer_is_said_without_its_password() -> None:
    wanted = {
        "username": "u",
        "password": "geheim",
        "hostname": "127.0.0.1",
        "port": 1,
        "db_name": "d",
        "scheme": SCHEME,
    }
    why = storage_problem({"storage": {"postgres": {"postgres_db": wanted}}})
    assert "refuses or does not answer" in why
    assert "geheim" not in why
    odd = storage_problem({"storage": {"postgres": {"postgres_url": "geheim"}}})
    assert "cannot be used" in odd
    assert "geheim" not in odd


@pytest.mark.servers
def test_a_postgres_that_answers_is_no_problem(postgres16: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_TEST_URL", postgres16.url)
    assert "begin it with postgresql+psycopg2://" in storage_problem({**SHIPPED, **POSTGRES})
    monkeypatch.setenv("DAGSTER_TEST_URL", postgres16.url.replace("postgresql", SCHEME, 1))
    assert storage_problem({**SHIPPED, **POSTGRES}) == ""
    own = {
        "module": "dagster_postgres.storage",
        "class": "DagsterPostgresStorage",
        "config": POSTGRES["storage"]["postgres"],
    }
    assert storage_problem({"storage": own}) == ""
