"""Tests that the files of a destination stop growing, however many years its engine runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.years import growing, live
from sluice.cdc_engine.instance import published_history

pytestmark = pytest.mark.scale

DAYS = 360
ANSWERS_KEPT = 20


@pytest.fixture(autouse=True)
def lower_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the bound of the schema history, so that a year reaches it."""
    monkeypatch.setattr(published_history, "COMPACTED_RECORDS_MIN", 40)


def test_disk_and_memory_stay_as_they_are_while_tables_come_and_go(tmp_path: Path) -> None:
    assert growing(live(tmp_path, days=DAYS, seed=1, answers_kept=ANSWERS_KEPT)) == []


def test_the_soak_notices_answers_without_a_bound(tmp_path: Path) -> None:
    assert "files" in growing(live(tmp_path, days=DAYS // 3, seed=1, answers_kept=DAYS))
