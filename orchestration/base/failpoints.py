"""Defines named points at which a test can pause a process and kill it there. The points are before, between and after the steps that must
survive a crash.

The environment variable SLUICE_FAILPOINTS names a directory. If the directory has a file with the name of a point (its gate), a process
that reaches the point writes `<name>.reached` and waits until the gate is removed. Without the variable, a point has no effect.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "SLUICE_FAILPOINTS"
BEFORE_CLAIM = "before_claim"  # The draining run has got its next batch, but its tags do not name the batch yet.
BEFORE_TAKE = "before_take"  # The run holds the run lock, but its batch is not taken and may still be appendable.
AFTER_TAKE = "after_take"  # The ledger contains the end of the batch, but the run has not read this end.
BEFORE_MERGE = "before_merge"  # The run holds the run lock and has taken the oldest batch, but has written nothing.
BETWEEN_TABLES = "between_tables"  # Some tables have their Delta commit. The other tables are being merged.
AFTER_MERGE = "after_merge"  # Every Delta commit exists, and the run has not ended.
# The run succeeded or reported its batch as merged, but the ledger does not contain the ack yet.
BEFORE_ACK = "before_ack"
AFTER_ACK = "after_ack"  # The ledger's cursor has moved, but the next batch is not handed out.
AFTER_CHUNK = "after_chunk"  # A chunk of a snapshot has been read and stored.
# The snapshot has read all rows, and the stream has passed their position, but the lake contains none of the rows.
BEFORE_PUBLISH = "before_publish"
AFTER_PUBLISH = "after_publish"  # The lake contains the table, but the snapshot's record is not updated yet.
# A backfill or a repair has read everything, but has written nothing and requested no lock.
BEFORE_ROWS = "before_rows"
BETWEEN_ROWS = "between_rows"  # One table has the operation's commit. The other tables do not have it.
# Every table has its commit. The files of the operation still exist, and the repaired rows are not compared again yet.
AFTER_ROWS = "after_rows"
BEFORE_MAINTENANCE = "before_maintenance"  # The run holds the run lock, but has written nothing.
BETWEEN_MAINTAINED = "between_maintained"  # One table was rewritten or vacuumed. The other tables were not.
AFTER_MAINTENANCE = "after_maintenance"  # All tables are done, but the run has not ended.
POLL_SECONDS = 0.05


def reach(name: str) -> None:
    """Waits at a failpoint until the test removes its gate. Returns at once if the test set no gate."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    gate = Path(directory) / name
    if gate.exists():
        gate.with_suffix(".reached").write_text(str(os.getpid()))
        while gate.exists():
            time.sleep(POLL_SECONDS)
