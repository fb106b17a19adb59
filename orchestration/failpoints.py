"""Named places where a test may hold a process still and kill something: before, between and after what must survive a crash.

Costs a look at the environment each; without SLUICE_FAILPOINTS nothing happens. With it, a process that comes to a place whose gate (a
file of that name in the directory) is shut says so in `<name>.reached` and waits until the gate is gone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "SLUICE_FAILPOINTS"
BEFORE_CLAIM = "before_claim"  # a run was handed its next batch, or its own has grown; no run's tags name it
BEFORE_MERGE = "before_merge"  # the run holds the lock and is the head of the line; nothing is written
BETWEEN_TABLES = "between_tables"  # some tables have their Delta commit, others are being merged
AFTER_MERGE = "after_merge"  # every Delta commit is there; the run has not ended
BEFORE_ACK = "before_ack"  # the run is a SUCCESS, or says that it merged its batch; the ledger does not know
AFTER_ACK = "after_ack"  # the ledger's cursor has moved; the next batch is not handed out
AFTER_CHUNK = "after_chunk"  # a chunk of a snapshot is whole
BEFORE_PUBLISH = "before_publish"  # all rows are read and the stream is past them; the lake has none
AFTER_PUBLISH = "after_publish"  # the lake has the table; the snapshot's record does not know
BEFORE_BACKFILL = "before_backfill"  # all of the interval is read; nothing is written, nobody waits
BETWEEN_BACKFILLED = "between_backfilled"  # a table has the backfill's commit, others have not
AFTER_BACKFILL = "after_backfill"  # every table has its commit; the files are still there
BEFORE_REPAIR = "before_repair"  # the rows are read and the lake is past them; nothing is written, nobody waits
BETWEEN_REPAIRED = "between_repaired"  # a table has the repair's commit, others have not
AFTER_REPAIR = "after_repair"  # every table has its commit; nothing was compared again
BEFORE_MAINTENANCE = "before_maintenance"  # the run holds the lock; nothing is written
BETWEEN_MAINTAINED = "between_maintained"  # a table was written anew or vacuumed, others were not
AFTER_MAINTENANCE = "after_maintenance"  # all are; the run has not ended
POLL_SECONDS = 0.05


def reach(name: str) -> None:
    """Waits here while the gate is shut."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    gate = Path(directory) / name
    if gate.exists():
        gate.with_suffix(".reached").write_text(str(os.getpid()))
        while gate.exists():
            time.sleep(POLL_SECONDS)
