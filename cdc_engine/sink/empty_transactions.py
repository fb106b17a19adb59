"""Decides which empty transactions (without captured rows) go to the store, so that they move the cursor. As in Canal. Used by
`event_sink`.

If a server has few captured tables, all its empty transactions would flood the store. Without any, the cursor would not move, and the
source could purge the cursor's binlog file.
"""

from __future__ import annotations

import dataclasses

# The shortest time between two empty transactions that go to the store, on the source's clock.
EVENT_TIME_US_MAX = 5_000_000
# After this number of skipped transactions, the next one goes to the store at any time.
SKIPPED_TRANSACTIONS_MAX = 8192


@dataclasses.dataclass(frozen=True)
class Thinning:
    """The last empty transaction that went to the store: its commit time `last_time_us` (0 if there is none) and its binlog file.
    `skipped` counts the empty transactions that were skipped since.
    """

    last_time_us: int = 0
    skipped: int = 0
    file: str = ""

    def after(self, time_us: int, transaction_count: int, file: str) -> tuple[bool, Thinning]:
        """Decides about the last transaction of a block of empty transactions, which was committed at `time_us`. Returns (whether it goes
        to the store, the state after the block).

        It goes to the store if its commit time is far from that of the last one. A much earlier time counts as far too, because a source
        may replay old events. It also goes there if its file is another one, because the source may purge the files before.
        """
        skipped = self.skipped + transaction_count
        far = abs(time_us - self.last_time_us) > EVENT_TIME_US_MAX or file != self.file
        if far or skipped > SKIPPED_TRANSACTIONS_MAX:
            return True, Thinning(time_us, 0, file)
        return False, Thinning(self.last_time_us, skipped, self.file)
