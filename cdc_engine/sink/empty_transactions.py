"""Determines which transactions without captured rows (empty transactions) go to the store, so that they move the cursor, as in Canal. Used
by `event_sink`.

On a server with few captured tables, all empty transactions would flood the store. Without any, the cursor would not move, and the source
could purge its binlog file.
"""

from __future__ import annotations

import dataclasses

# The least time, on the source's clock, between two empty transactions that go to the store.
EVENT_TIME_US_MAX = 5_000_000
# After this number of skipped transactions, the next one goes to the store regardless of its time.
SKIPPED_TRANSACTIONS_MAX = 8192


@dataclasses.dataclass(frozen=True)
class Thinning:
    """The last empty transaction that went to the store: `last_time_us`, its commit time (0 if none did), and `file`, its binlog file.
    `skipped`: number of empty transactions that were skipped since then.
    """

    last_time_us: int = 0
    skipped: int = 0
    file: str = ""

    def after(self, time_us: int, transaction_count: int, file: str) -> tuple[bool, Thinning]:
        """Returns (whether the last transaction of a block of empty transactions goes to the store, state after the block). `time_us`: its
        commit time.

        A commit time that is much earlier also moves the cursor, for a source that replays old events. So does a new file, because the
        source may purge the files before it.
        """
        skipped = self.skipped + transaction_count
        far = abs(time_us - self.last_time_us) > EVENT_TIME_US_MAX or file != self.file
        if far or skipped > SKIPPED_TRANSACTIONS_MAX:
            return True, Thinning(time_us, 0, file)
        return False, Thinning(self.last_time_us, skipped, self.file)
