"""Tests that the tests that docs/pains.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "pains.md").read_text())


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_promised_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()


def test_every_line_of_the_table_names_one() -> None:
    lines = [line for line in (ROOT / "docs" / "pains.md").read_text().splitlines() if line.startswith("| ")]
    assert len(NAMED) - 1 == len(lines) - 1, "this file itself is named above the table, and the table has a head"
