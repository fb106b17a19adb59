"""Tests for which positions an engine keeps the schemas while it runs."""

from __future__ import annotations

from pathlib import Path

from sluice.cdc_engine.instance.engine.kept_state import positions_while_running
from sluice.cdc_engine.store.memory_store import MemoryEventStore
from sluice.cdc_engine.store.window.window import Window
from tests.fix_ledgers import MemoryLedger, at


def test_the_schemas_of_the_oldest_change_of_the_window_are_kept(tmp_path: Path) -> None:
    """A new consumer starts at the oldest change of the window. If the window no longer has this change, the consumer reads it from the
    source.
    """
    meta, store = MemoryLedger(), MemoryEventStore(tmp_path / "spill")
    meta.update(lambda ledger: ledger.set_cursor(at(50)))
    store.start_at(at(40))
    assert positions_while_running(meta, store, at(10), tmp_path, ()) == [at(50), at(40)]
    window = Window(at(10), bytes_max=1)
    assert positions_while_running(meta, store, at(10), tmp_path, (), window=window) == [at(50), at(40), at(10)]
