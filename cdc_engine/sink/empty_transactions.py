"""Decides which empty transactions (without captured rows) go to the store, so that they move the cursor. The rules are those of Canal.
Used by `event_sink`.

If few tables of a server are captured, most transactions are empty and would flood the store. But if no empty transaction went to the
store, the cursor would not move, and the source could purge the cursor's binlog file.
"""

from __future__ import annotations

import dataclasses

# The shortest time between two empty transactions that go to the store, on the source's clock.
EVENT_TIME_US_MAX = 5_000_000
# After this number of skipped transactions, the next one goes to the store whatever its time is.
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

        The transaction goes to the store if its commit time is far from that of the last empty transaction in the store. A much earlier
        time counts as far too, because a source may replay old events. It also goes to the store if it is in another binlog file, because
        the source may purge the earlier files.
        """
        skipped = self.skipped + transaction_count
        far = abs(time_us - self.last_time_us) > EVENT_TIME_US_MAX or file != self.file
        if far or skipped > SKIPPED_TRANSACTIONS_MAX:
            return True, Thinning(time_us, 0, file)
        return False, Thinning(self.last_time_us, skipped, self.file)
