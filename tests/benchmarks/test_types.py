"""Tests that `bench types` measures the staging of a column type on each server that it uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.types import run

ROWS = 40


@pytest.mark.servers
def test_bench_types_measures_the_staging_of_types_of_both_servers(tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    run(file, runs=1, rows=ROWS, names=("enum", "inet4"))
    record = json.loads(file.read_text())
    assert set(record["types"]) == {"enum", "inet4"}
    assert all(figure > 0 for figures in record["types"].values() for figure in figures.values())
