"""Tests an engine that is stopped while another thread requests a batch from it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.cdc_engine.errors import NotStartedError
from sluice.cdc_engine.instance.batches.hand_out import BatchLimits, HandOut


def test_admin_a_request_to_an_engine_that_ends_gets_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage: Any = None
    meta: Any = SimpleNamespace(ledger=SimpleNamespace(head=None))
    limits = BatchLimits(bytes_max=1, events_max=1)
    requested = HandOut("shop", stage, meta, stage=stage, limits=limits, directory=tmp_path)
    gate, heard = threading.Event(), list[Exception]()
    monkeypatch.setattr(requested, "_try_next", lambda **_: gate.wait(30) and None)
    assert requested.next(0.01) is None
    requested._running = None  # Another attempt waits behind the one that is running.

    def wait() -> None:
        with pytest.raises(NotStartedError) as refused:
            requested.next(30)
        heard.append(refused.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    threading.Timer(0.2, gate.set).start()
    requested.close()
    waiting.join(30)
    assert "the engine of shop was stopped during this call" in str(heard[0])
    with pytest.raises(NotStartedError, match="was stopped during this call"):
        requested.next(0.0)
