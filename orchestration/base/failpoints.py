"""Defines named points at which a test can hold a process and kill something: before, between and after the steps that must survive a
crash.

Each point costs one look at the environment; without SLUICE_FAILPOINTS nothing happens. With it, a process that reaches a point whose
gate (a file of that name in the directory) exists writes `<name>.reached` and waits until the gate is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "SLUICE_FAILPOINTS"
BEFORE_CLAIM = "before_claim"  # A run that drains got its next batch; its tags do not name the batch yet.
BEFORE_TAKE = "before_take"  # The run holds the run lock and has not taken its batch, whose end may not be fixed.
AFTER_TAKE = "after_take"  # The ledger has the end of the batch, and the run does not know it.
BEFORE_MERGE = "before_merge"  # The run holds the run lock and has taken the oldest batch; nothing is written.
BETWEEN_TABLES = "between_tables"  # Some tables have their Delta commit; others are being merged.
AFTER_MERGE = "after_merge"  # Every Delta commit exists, and the run has not ended.
BEFORE_ACK = "before_ack"  # The run is a SUCCESS, or has reported its batch as merged; the ledger does not know it yet.
AFTER_ACK = "after_ack"  # The ledger's cursor has moved; the next batch is not handed out.
AFTER_CHUNK = "after_chunk"  # A chunk of a snapshot is complete.
# All rows are read, and the stream has passed their position; the lake has none of them.
BEFORE_PUBLISH = "before_publish"
AFTER_PUBLISH = "after_publish"  # The lake has the table; the snapshot's record does not say so yet.
BEFORE_ROWS = "before_rows"  # A backfill or a repair has read everything; nothing is written, and no lock is requested.
BETWEEN_ROWS = "between_rows"  # One table has the operation's commit; others do not.
AFTER_ROWS = "after_rows"  # Every table has its commit; the files are still there, and nothing was compared again.
BEFORE_MAINTENANCE = "before_maintenance"  # The run holds the run lock; nothing is written.
BETWEEN_MAINTAINED = "between_maintained"  # One table was rewritten or vacuumed; others were not.
AFTER_MAINTENANCE = "after_maintenance"  # All tables are done; the run has not ended.
POLL_SECONDS = 0.05


def reach(name: str) -> None:
    """Waits at a failpoint while a test holds it."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    gate = Path(directory) / name
    if gate.exists():
        gate.with_suffix(".reached").write_text(str(os.getpid()))
        while gate.exists():
            time.sleep(POLL_SECONDS)
