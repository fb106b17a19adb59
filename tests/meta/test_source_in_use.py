"""Tests the record of the chosen source if the ledger is in files. Then the file in the destination's folder is the only record."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.source import in_use
from sluice.cdc_engine.source.in_use import address_chosen, use


def test_a_check_of_the_choice_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an earlier version, the check wrote back what it had read. So it undid a switch to another source that happened in between."""

    def refuses(*_: object) -> None:
        raise AssertionError("written")

    use(tmp_path, "one:3306", "")
    monkeypatch.setattr(in_use, "_copy", refuses)
    monkeypatch.setattr(Path, "unlink", refuses)
    assert address_chosen(tmp_path) == "one:3306"
    assert not address_chosen(tmp_path / "another")
