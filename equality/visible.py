"""Waits until reads of the source show everything that the lake has. Without this wait, the equality check would report rows as different
if their commit waits for a semi-sync replica.

A transaction is in the binlog, and so in the lake, before the storage engine commits the transaction. With semi-sync AFTER_SYNC, the commit
waits until a replica acknowledges the transaction. Snapshots and repairs wait in the same way before they read rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.table_reader import SourceTable
from sluice.cdc_engine.source.server import Source

POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisibleSource:
    """Waits until reads of one table in the source show what the lake has. `directory` is the destination's directory, with its ledger.
    `say` is called with a sentence before a wait.
    """

    source: Source
    table: TableVersion
    directory: Path
    say: Callable[[str], None] | None = None

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds`. Returns whether a read of the source that begins after the wait shows everything that the lake had before
        this call.

        Also returns True if the answer cannot be determined: the server does not answer, the server's binlog was reset, or the destination
        reads the binlog of another server.
        """
        # The lake has no changes after this position.
        position = read_ledger(self.directory).resume_position
        if position is None:
            return True
        deadline, said = time.monotonic() + seconds, False
        try:
            with contextlib.closing(open_reader(self.source)) as reader:
                if position.server_uuid and reader.server() != position.server_uuid:
                    return True
            connect = functools.partial(open_reader, self.source)
            with contextlib.closing(SourceTable(connect, self.table, chunk_rows=1)) as table:
                while not table.shows(position):
                    if time.monotonic() >= deadline:
                        return False
                    if self.say is not None and not said:
                        self.say(f"waiting until reads of the source show all transactions up to {position}")
                    said = True
                    time.sleep(POLL_SECONDS)
        except SourceConnectionError:
            return True
        return True
