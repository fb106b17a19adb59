"""Stores the ledger, and copies its cursor to ZooKeeper for other programs. Used if `meta.kind` in conf/ is `mixed` or `period_mixed`.

`update` stores the changed ledger in the record store before it returns, so exactly-once does not depend on ZooKeeper. A separate thread
copies the newest cursor to ZooKeeper, after each change or once per period. So a ZooKeeper that does not answer does not delay the engine.
`close` copies the last cursor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.manager import MetaManager, Transition

log = structlog.get_logger()
AWAY_SECONDS = 1.0  # How long to wait before the next attempt, after ZooKeeper did not answer.
CLOSE_SECONDS_MAX = 15.0


class CursorCopyingMeta:
    """A `MetaManager` that also copies the cursor for other programs. `kept` stores the ledger. `write` writes the copy of a ledger's
    cursor, and raises MetaError if that fails. A thread calls `write` after a change of the cursor, but at most once per `period_seconds`.
    """

    def __init__(self, kept: MetaManager, write: Callable[[Ledger], None], period_seconds: float = 0.0) -> None:
        self._kept, self._write_copy, self._period = kept, write, period_seconds
        self._changed, self._closing = threading.Event(), threading.Event()
        self._written: Ledger | None = None
        self._thread = threading.Thread(target=self._run, name="cursor-copy", daemon=True)
        self._thread.start()

    @property
    def is_new(self) -> bool:
        return self._kept.is_new

    @property
    def ledger(self) -> Ledger:
        return self._kept.ledger

    def update(self, transition: Transition) -> Ledger:
        outcome = self._kept.update(transition)
        self._changed.set()
        return outcome

    def require_own(self) -> None:
        self._kept.require_own()

    def close(self) -> None:
        """Copies the last cursor. Waits until the copy was written or refused, up to CLOSE_SECONDS_MAX."""
        self._closing.set()
        self._changed.set()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            if not self._write():
                self._closing.wait(AWAY_SECONDS)
                self._changed.set()
            self._closing.wait(self._period)
        self._write()

    def _write(self) -> bool:
        ledger = self._kept.ledger
        if self._written is not None and self._written.cursor == ledger.cursor:
            return True
        try:
            self._write_copy(ledger)
        except MetaError as error:
            log.warning("cursor_not_copied", reason=str(error))
            return False
        self._written = ledger
        return True
