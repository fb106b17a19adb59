"""Tests that the programs that the compose file and the chart start exist, and that Sluice accepts their conf/."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from sluice import __version__
from sluice.cdc_engine.config import load_config
from sluice.console.dagster_check import findings_of
from sluice.console.main import app
from sluice.console.stack.spark_server import several_sparks
from sluice.package_files import package_file
from tests.style.sources import ROOT

COMPOSE = ROOT / "deploy" / "compose"
CHART = ROOT / "deploy" / "chart"
SERVICES: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"] == "sluice" and name != "certificate"}
PROGRAMS: dict[str, Callable[[], Any]] = {
    "sluice": lambda: typer.main.get_command(app),
    "dagster": lambda: importlib.import_module("dagster._cli").cli,
    "dagster-daemon": lambda: importlib.import_module("dagster._daemon.cli").cli,
    "dagster-webserver": lambda: importlib.import_module("dagster_webserver.cli").cli,
}
# Text in double quotes may contain commas. A value of the chart is one word.
WORD = re.compile(r'"([^"]*)"|\{\{.*?\}\}|([^\s,\[\]]+)')
LINE = re.compile(r"(?:args|command): (\[.*\])")


DAEMON = ["python", "-m", "sluice.orchestration.daemon"]


def problem_of(words: list[str]) -> str:
    """Returns why a command would not start, or an empty text if it would."""
    if words[:3] == DAEMON:  # This command has the arguments of Dagster's daemon.
        return problem_of(["dagster-daemon", *words[3:]])
    if words[:2] == ["python", "-m"]:
        return "" if importlib.util.find_spec(words[2]) else f"there is no module {words[2]}"
    if words[0] in {"bash", "python"}:
        return ""
    if words[0] not in PROGRAMS:
        return f"there is no program {words[0]}"
    command, rest = PROGRAMS[words[0]](), words[1:]
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        name, *rest = rest
        command = command.get_command(None, name)
        if command is None:
            return f"{words[0]} has no command {name}"
    known = {option for parameter in command.params for option in parameter.opts}
    unknown = [word for word in rest if word.startswith("-") and word not in known]
    return f"{' '.join(words)}: no option {', '.join(unknown)}" if unknown else ""


def commands_of_the_chart() -> list[list[str]]:
    texts = [path.read_text() for path in sorted(CHART.glob("templates/*.yaml"))]
    found = [LINE.findall(text) for text in texts]
    return [[quoted or bare or "value" for quoted, bare in WORD.findall(line)] for lines in found for line in lines]


def test_each_command_of_the_compose_file_exists() -> None:
    assert set(OURS) == {"engine", "code-server", "webserver", "daemon", "spark"}
    commands = [
        [*map(str, words)] for each in OURS.values() for words in (each["command"], each["healthcheck"]["test"][1:])
    ]
    assert [problem_of(words) for words in commands] == [""] * 10


def test_each_command_of_the_chart_exists() -> None:
    commands = commands_of_the_chart()
    assert {tuple(words[:2]) for words in commands} >= {("sluice", "engine"), ("sluice", "spark")}
    assert [problem_of(words) for words in commands] == [""] * len(commands)
    assert len(commands) == 5 + 2  # Five commands, and two probes of the daemon.


def test_the_daemon_is_the_one_whose_loops_wake_each_other() -> None:
    """With Dagster's own daemon, a destination under constant load has only one batch in five seconds."""
    assert SERVICES["daemon"]["command"][:3] == DAEMON
    assert [words[:3] for words in commands_of_the_chart() if words[-3:-1] == ["run", "-w"]] == [DAEMON]
    assert importlib.util.find_spec(DAEMON[-1])


@pytest.mark.parametrize(
    "words",
    [
        "sluice sparks",
        "sluice spark --port 1",
        "dagster-daemon alive",
        "dagit",
        "python -m sluice.nothing",
        "python -m sluice.orchestration.daemon runs",
    ],
)
def test_a_command_that_does_not_exist_is_found(words: str) -> None:
    assert problem_of(words.split())


def test_the_compose_files_conf_is_read_and_each_secret_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    example = dict(line.split("=") for line in (COMPOSE / "env.example").read_text().splitlines() if "=" in line)
    assert set(example) == set(OURS["engine"]["environment"])
    for name, value in example.items():
        monkeypatch.setenv(name, value)
    config = load_config(COMPOSE / "conf")
    assert list(config.destinations) == ["shop"]
    assert not several_sparks(config, COMPOSE / "conf")
    named = {
        found
        for file in COMPOSE.glob("conf/**/*.yaml")
        for found in re.findall(r"(?:\$|env: |_env: )([A-Z_]{5,})", file.read_text())
    }
    assert named == set(example)
    for host in ("engine", "spark", "postgres", "store", "mysql", "code-server"):
        assert host in SERVICES


def test_dagster_has_the_packages_settings_and_a_storage_that_all_reach() -> None:
    shipped = yaml.safe_load(package_file("conf/dagster.yaml").read_text())
    ours = yaml.safe_load((COMPOSE / "conf" / "dagster.yaml").read_text())
    assert {**shipped, "storage": ours["storage"]} == ours
    assert yaml.safe_load((CHART / "files" / "dagster.yaml").read_text()) == shipped
    assert list(findings_of(ours, load_config(COMPOSE / "conf"))) == []


def test_the_charts_values_are_those_of_its_schema_and_its_conf_is_read(tmp_path: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    for name, part in schema["properties"].items():
        if part.get("type") == "object" and "properties" in part:
            assert set(values[name]) == set(part["properties"]), name
    (tmp_path / "destinations").mkdir()
    (tmp_path / "sluice.yaml").write_text(
        yaml.safe_dump({**values["conf"]["sluice"], "spark": {"remote": "sc://spark:1"}})
    )
    for name, settings in values["conf"]["destinations"].items():
        (tmp_path / "destinations" / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    assert list(load_config(tmp_path).destinations) == ["shop"]


def test_the_chart_has_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
