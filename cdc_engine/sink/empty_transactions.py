"""Decides which empty transactions (transactions without captured rows) go to the store, by Canal's rules. Used by `event_sink`.

If few tables of a server are captured, most transactions are empty and would flood the store. But if no empty transaction went to the
store, the cursor would not move, and the source could purge the binlog file of the cursor.
"""

from __future__ import annotations

import dataclasses

# Most empty transactions are skipped. One goes to the store if its commit time differs by more than this many µs from the commit time of
# the last empty transaction in the store.
EVENT_TIME_US_MAX = 5_000_000
# After this number of skipped transactions, the next empty transaction goes to the store, whatever its commit time is.
SKIPPED_TRANSACTIONS_MAX = 8192


@dataclasses.dataclass(frozen=True)
class Thinning:
    """The state from which `after` decides whether an empty transaction goes to the store. `last_time_us` and `file` are the commit time
    and the binlog file of the last empty transaction that went to the store, or 0 and "". `skipped` is how many empty transactions were
    skipped after it.
    """

    last_time_us: int = 0
    skipped: int = 0
    file: str = ""

    def after(self, time_us: int, transaction_count: int, file: str) -> tuple[bool, Thinning]:
        """Decides whether the last transaction of a block of empty transactions goes to the store. The block has `transaction_count`
        transactions, and `time_us` is the commit time of the last one. Returns the decision, and the state after the block.

        The transaction goes to the store in three cases. Its commit time is more than EVENT_TIME_US_MAX later or earlier than
        `last_time_us`. Or it is in another binlog file than `file`, because the source may purge the earlier file. Or more than
        SKIPPED_TRANSACTIONS_MAX empty transactions have been skipped since the last one in the store.
        """
        skipped = self.skipped + transaction_count
        far = abs(time_us - self.last_time_us) > EVENT_TIME_US_MAX or file != self.file
        if far or skipped > SKIPPED_TRANSACTIONS_MAX:
            return True, Thinning(time_us, 0, file)
        return False, Thinning(self.last_time_us, skipped, self.file)
