"""Tests that the sums of comparisons are kept only for tables that the source still has."""

from __future__ import annotations

import json
from pathlib import Path

from sluice.equality.kept import FILE_NAME, FORMAT, KeptSums


def test_the_sums_of_dropped_tables_are_removed(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    for number in range(100):
        there = json.loads(file.read_text())["tables"] if file.exists() else {}
        file.write_text(json.dumps({"format": FORMAT, "tables": {**there, f"shop.t{number}": {"sums": []}}}))
        KeptSums(tmp_path).keep_only({f"shop.t{number}", f"shop.t{number - 1}"})
    assert set(json.loads(file.read_text())["tables"]) == {"shop.t98", "shop.t99"}
