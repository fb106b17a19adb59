"""Tests the contents of the wheel, and the messages for missing parts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.servers.installing import built_wheels, uv
from sluice import __version__
from tests.package.conftest import Installed
from tests.style.sources import PRODUCT, ROOT

pytestmark = pytest.mark.package


def names(installed: Installed) -> set[str]:
    with zipfile.ZipFile(installed.wheel) as wheel:
        return set(wheel.namelist())


def test_sluice_is_the_only_name_at_the_top(installed: Installed) -> None:
    assert {name.partition("/")[0] for name in names(installed)} == {"sluice", f"sluice-{__version__}.dist-info"}


def test_every_file_of_the_packages_is_in_the_wheel(installed: Installed) -> None:
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {f"sluice/{name}" for name in listed.splitlines() if (ROOT / name).exists()}
    assert files <= names(installed)
    assert {"sluice/conf/dagster.yaml", "sluice/conf/spark-defaults.conf"} <= names(installed)


def test_version_is_that_of_the_distribution(installed: Installed, tmp_path: Path) -> None:
    assert installed.command(tmp_path, "--version").stdout == f"sluice {__version__}\n"


def test_uv_installs_and_runs_the_wheel_as_a_tool(installed: Installed, tmp_path: Path) -> None:
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    constraints = str(installed.environment.parent / "constraints.txt")
    # With other options than those of the installation, `run` would install another Sluice.
    options = ("-q", *built_wheels(), "--python", sys.executable)
    uv("tool", "install", *options, "--constraints", constraints, str(installed.wheel), **folders)
    assert uv("tool", "run", *options, "sluice", "--version", **folders) == f"sluice {__version__}\n"
    shutil.rmtree(tmp_path / "tools")


def test_dg_finds_the_component_of_the_distribution(installed: Installed, tmp_path: Path) -> None:
    program = (
        "from dagster.components.core.package_entry import discover_entry_point_package_objects as found\n"
        "print(*(f'{key.namespace}.{key.name}' for key in found()))"
    )
    assert "sluice.SluiceComponent" in installed.python(tmp_path, program).stdout.split()


@pytest.mark.seeds
def test_kinds_of_brokers_are_entry_points_of_the_distribution(installed: Installed, tmp_path: Path) -> None:
    program = "from sluice.cdc_engine.config.brokers import BROKERS\nprint(*BROKERS.names())"
    assert installed.python(tmp_path, program).stdout.split() == ["kafka", "pulsar", "rabbitmq", "rocketmq"]


@pytest.mark.parametrize("command", [("test", "--quick"), ("bench", "engine")])
def test_tests_and_benchmarks_need_a_checkout(installed: Installed, tmp_path: Path, command: tuple[str, str]) -> None:
    done = installed.command(tmp_path, *command)
    assert done.returncode == 1
    assert "clone the repository" in done.stderr


OPENS = {
    "kafka": """
from sluice.cdc_engine.brokers.kinds import Kafka
Kafka(kind="kafka", servers="a:1", topic="t").publisher()
""",
    "zookeeper": """
from sluice.cdc_engine.records.location import LedgerLocation, record_store
record_store(LedgerLocation(destination="shop", directory=None, kind="zookeeper"))
""",
    "postgres": """
from sluice.cdc_engine.records.sql import SqlRecordStore
SqlRecordStore("postgresql://user@host/database", "shop")
""",
    "otel": """
from sluice.cdc_engine.telemetry.otlp import OtlpSender
OtlpSender()
""",
}


@pytest.mark.parametrize("extra", OPENS)
def test_the_packages_of_an_extra_are_named(installed: Installed, tmp_path: Path, extra: str) -> None:
    done = installed.python(tmp_path, OPENS[extra])
    assert f"needs a package that is not installed: pip install 'sluice[{extra}]'" in done.stderr
