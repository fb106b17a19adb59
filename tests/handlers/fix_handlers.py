"""Provides a handler that records its calls, and a distribution as pip installs it: a module, and a .dist-info with entry points."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.handlers import BatchHandler, HandledBatch
from sluice.cdc_engine.handlers.calls import LedgerExtract
from sluice.cdc_engine.position import Position

LEDGER = "3f2a91c04be7"


def at(offset: int) -> Position:
    return Position(epoch=1, file="mysql-bin.000001", offset=offset)


def batch(delivery: int = 7, end: int = 200) -> OutstandingBatch:
    return OutstandingBatch(
        ledger_id=LEDGER,
        batch_id=delivery,
        delivery=delivery,
        start=at(100),
        end=at(end),
        path=f"staging/{delivery}",
        rows=3,
        bytes=99,
        tables=("shop.orders",),
    )


def line(*outstanding: OutstandingBatch, cursor: int = 100, ledger: str = LEDGER) -> LedgerExtract:
    return LedgerExtract(ledger_id=ledger, cursor=at(cursor), outstanding=outstanding)


class Remembering(BatchHandler):
    """Records its calls. `failing`: the method that raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.failing = ""
        self.seen: list[HandledBatch] = []

    def before(self, batch: HandledBatch) -> None:
        self._note("before", batch)

    def after(self, batch: HandledBatch) -> None:
        self._note("after", batch)

    def retry(self, batch: HandledBatch, reason: str) -> None:
        self._note("retry", batch, reason)

    def _note(self, when: str, batch: HandledBatch, reason: str = "") -> None:
        self.seen.append(batch)
        self.calls.append((when, batch.delivery, reason))
        if self.failing == when:
            raise ConnectionError("the audit's server is away")


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    source: str,
    *,
    group: str = "sluice.handlers",
    **entries: str,
) -> None:
    """Puts a distribution `name`, with one module of the same name, on sys.path. `entries` has the object in the module for each entry
    point of the group.
    """
    module, site = name.replace("-", "_"), folder / f"site-{name}"
    reported = site / f"{module}-1.0.dist-info"
    reported.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (reported / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{entry} = {module}:{location}\n" for entry, location in entries.items())
    (reported / "entry_points.txt").write_text(f"[{group}]\n{points}")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
