"""Tests the chosen source with a ledger in files: the file is the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.source import in_use
from sluice.cdc_engine.source.in_use import address_chosen, use


def test_a_check_of_the_choice_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the check wrote back what it had read, and so undid a switch that happened in between."""

    def refuses(*_: object) -> None:
        raise AssertionError("written")

    use(tmp_path, "one:3306", "")
    monkeypatch.setattr(in_use, "_copy", refuses)
    monkeypatch.setattr(Path, "unlink", refuses)
    assert address_chosen(tmp_path) == "one:3306"
    assert not address_chosen(tmp_path / "another")
