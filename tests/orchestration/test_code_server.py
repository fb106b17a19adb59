"""Tests the warm code server, and the cost of importing the code location, which every run process has."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.orchestration.code_server import WARM_MODULES

ROOT = Path(__file__).parents[2]
HEAVY = (
    "pyspark",
    "pandas",
    "numba",
    "pymysqlreplication",
    "pymysql",
    "sqlglot",
    "sluice.cdc_engine.keeping.launcher",
    "deltalake",
)
IMPORT_DEFINITIONS = f"""
import json, sys, threading
import sluice.orchestration.definitions
loaded = [name for name in {HEAVY!r} if name in sys.modules]
keys = sluice.orchestration.definitions.defs.resolve_asset_graph().get_all_asset_keys()
print(json.dumps([loaded, threading.active_count(), [str(key) for key in keys]]))
"""


@pytest.mark.parametrize("module", WARM_MODULES)
def test_what_is_to_be_warm_exists(module: str) -> None:
    assert importlib.util.find_spec(module), "a name that is gone would be passed over, and runs would start cold"


def test_importing_the_definitions_is_pure(tmp_path: Path) -> None:
    destinations = tmp_path / "conf" / "destinations"
    destinations.mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\n")
    (destinations / "shop.yaml").write_text("source: {host: 192.0.2.1, user: sluice, password: $NOT_SET}\n")
    output = subprocess.run(
        [sys.executable, "-c", IMPORT_DEFINITIONS],
        cwd=ROOT,
        env={"SLUICE_CONF": str(tmp_path / "conf"), "PYTHONPATH": str(ROOT), "DAGSTER_HOME": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    loaded, threads, keys = json.loads(output)
    assert loaded == []
    assert threads == 1
    assert len(keys) == 1, "the engine's own asset; no table is known yet"
    assert not (tmp_path / "data").exists(), "nothing is written either"
