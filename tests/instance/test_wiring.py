"""Tests that a failed start leaves nothing open."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.ha.file_lease import FileLease
from sluice.cdc_engine.instance.engine import wiring
from tests.fix_ledgers import MemoryLedger


def test_fault_the_ledger_is_closed_where_the_rest_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Meta(MemoryLedger):
        def close(self) -> None:
            closed.append(self)

    def refuse(*_: object) -> None:
        raise MetaError("the schema history cannot be read")

    monkeypatch.setattr(wiring, "open_meta", lambda *_: Meta())
    monkeypatch.setattr(wiring, "history_kept", refuse)
    config = DestinationConfig.model_validate({"name": "shop", "source": {"user": "root"}, "include": "shop\\..*"})
    with pytest.raises(MetaError, match="schema history"):
        wiring.make_parts(config, tmp_path, FileLease(tmp_path), on_state=print, on_start=print)
    assert len(closed) == 1
