"""Provides the Dagster project of a user: a component with Sluice's assets, and a downstream asset of the user."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.style.sources import ROOT

PYPROJECT = """
[project]
name = "shop-project"
version = "0.0.1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop_project"
code_location_name = "shop-project"

[tool.dagster]
module_name = "shop_project.definitions"
code_location_name = "shop-project"
"""
DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
# The user's asset, which counts the rows of a table of Sluice whenever the table has changed.
REPORT = """
from pathlib import Path

import dagster as dg
import pyarrow
import sluice
from deltalake import DeltaTable, QueryBuilder

LAKE = Path(__file__).parents[3] / "lake"


@dg.asset(deps=[dg.AssetKey(["raw", "orders"])], automation_condition=sluice.on_updates())
def order_report():
    # not to_pyarrow_table(), which does not read deletion vectors
    table = DeltaTable(str(LAKE / DATABASE / "orders"))
    found = pyarrow.table(QueryBuilder().register("orders", table).execute("SELECT count(*) AS n FROM orders").read_all())
    (LAKE.parent / "report").write_text(str(found["n"][0].as_py()))


automation = dg.AutomationConditionSensorDefinition(
    "automation", target=[order_report], default_status=dg.DefaultSensorStatus.RUNNING
)
"""
FOREIGN_VARIABLES = ("SLUICE_CONF", "SLUICE_CONF_IN_USE", "DAGSTER_HOME", "PYTEST_CURRENT_TEST")


@dataclasses.dataclass(frozen=True)
class Project:
    """The folder of the project, and the commands that a person runs in it."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
        path = f"{self.root / 'src'}:{self.root / 'site'}"
        return {**clean, "DAGSTER_HOME": str(self.root / "home"), "PYTHONPATH": path, "DG_CLI_CONFIG": os.devnull}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).parent / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def describe(self, attributes: dict[str, Any]) -> None:
        record = {"type": "sluice.SluiceComponent", "attributes": attributes}
        folder = self.root / "src" / "shop_project" / "defs" / "sluice"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "defs.yaml").write_text(yaml.safe_dump(record))


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    """Creates the project. Its downstream asset reads the table `orders` of a database."""

    def make(database: str) -> Project:
        root = tmp_path / "project"
        package = root / "src" / "shop_project"
        (package / "defs").mkdir(parents=True)
        (root / "home").mkdir()
        (root / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        (root / "pyproject.toml").write_text(PYPROJECT)
        (package / "__init__.py").touch()
        (package / "defs" / "__init__.py").touch()
        (package / "definitions.py").write_text(DEFINITIONS)
        (package / "defs" / "report.py").write_text(REPORT.replace("DATABASE", repr(database)))
        _register(root / "site")
        return Project(root)

    return make


def _register(site: Path) -> None:
    """Registers the entry points of pyproject.toml with Python, as the metadata of an installed wheel does."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    information = site / "sluice-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sluice\nVersion: 0\n")
    text = "".join(
        textwrap.dedent(f"[{group}]\n") + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in declared.items()
    )
    (information / "entry_points.txt").write_text(text)
