"""Named points at which a test can hold a process and kill something: before, between and after the steps that must survive a crash.

Each point costs one look at the environment; without SLUICE_FAILPOINTS nothing happens. With it, a process that reaches a point whose
gate (a file of that name in the directory) exists writes `<name>.reached` and waits until the gate is removed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "SLUICE_FAILPOINTS"
BEFORE_CLAIM = "before_claim"  # a run that drains got its next batch; no run's tags name it
BEFORE_TAKE = "before_take"  # the run holds the lock and has not requested its batch; its end may not be fixed
AFTER_TAKE = "after_take"  # the ledger has the end of the batch; its run does not know it
BEFORE_MERGE = "before_merge"  # the run holds the lock and has the oldest batch; nothing is written
BETWEEN_TABLES = "between_tables"  # some tables have their Delta commit, others are being merged
AFTER_MERGE = "after_merge"  # every Delta commit exists; the run has not ended
BEFORE_ACK = "before_ack"  # the run is a SUCCESS, or reports that its batch is merged; not in the ledger yet
AFTER_ACK = "after_ack"  # the ledger's cursor has moved; the next batch is not handed out
AFTER_CHUNK = "after_chunk"  # a chunk of a snapshot is complete
BEFORE_PUBLISH = "before_publish"  # all rows are read and the stream has passed their position; none in the lake
AFTER_PUBLISH = "after_publish"  # the lake has the table; the snapshot's record is not updated
BEFORE_BACKFILL = "before_backfill"  # the whole interval is read; nothing is written, no lock is requested
BETWEEN_BACKFILLED = "between_backfilled"  # a table has the backfill's commit, others have not
AFTER_BACKFILL = "after_backfill"  # every table has its commit; the files are still there
BEFORE_REPAIR = "before_repair"  # the rows are read and the lake has passed their position; nothing is written
BETWEEN_REPAIRED = "between_repaired"  # a table has the repair's commit, others have not
AFTER_REPAIR = "after_repair"  # every table has its commit; nothing was compared again
BEFORE_MAINTENANCE = "before_maintenance"  # the run holds the lock; nothing is written
BETWEEN_MAINTAINED = "between_maintained"  # a table was rewritten or vacuumed, others were not
AFTER_MAINTENANCE = "after_maintenance"  # all tables are done; the run has not ended
POLL_SECONDS = 0.05


def reach(name: str) -> None:
    """Waits while the gate of this point exists."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    gate = Path(directory) / name
    if gate.exists():
        gate.with_suffix(".reached").write_text(str(os.getpid()))
        while gate.exists():
            time.sleep(POLL_SECONDS)
