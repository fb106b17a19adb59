"""Tests which files are downloaded: Delta's jars fit the Python package that uv.lock pins."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from sluice.console.toolchain.artifacts import DELTA, load_artifacts

ROOT = Path(__file__).parents[2]


def test_deltas_own_jars_have_the_version_of_its_package() -> None:
    locked = {
        each["name"]: each["version"]
        for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
        if "version" in each
    }
    own = [jar for jar in load_artifacts(DELTA) if jar.organisation == "io.delta"]
    assert {jar.revision for jar in own} == {locked["delta-spark"]} == {importlib.metadata.version("delta-spark")}
    assert "delta-spark_4.1_2.13" in {jar.module for jar in own}
