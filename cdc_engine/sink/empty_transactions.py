"""How often a transaction of which nothing is captured still moves the cursor (canal.md §3.3); decided here, done by `event_sink`.

On a server where little is captured, handing on every empty transaction would flood the store; handing on none would leave the cursor
behind until its binlog is purged.
"""

from __future__ import annotations

import dataclasses

EVENT_TIME_US_MAX = 5_000_000  # of the source's clock between two that are handed on
SKIPPED_TRANSACTIONS_MAX = 8192  # after so many the next is handed on, however close


@dataclasses.dataclass(frozen=True)
class Thinning:
    """`last_time_us`: commit time of the last one handed on, 0 before the first, and `file`, in which it was. `skipped`: transactions left
    out since.
    """

    last_time_us: int = 0
    skipped: int = 0
    file: str = ""

    def after(self, time_us: int, transaction_count: int, file: str) -> tuple[bool, Thinning]:
        """Whether a block of empty transactions, the last committed at `time_us`, moves the cursor; and the state after it.

        Time counts in both directions: a source replaying old events moves the cursor as well. So does another file, whose beginning has
        no time of its own: those before it may be purged.
        """
        skipped = self.skipped + transaction_count
        far = abs(time_us - self.last_time_us) > EVENT_TIME_US_MAX or file != self.file
        if far or skipped > SKIPPED_TRANSACTIONS_MAX:
            return True, Thinning(time_us, 0, file)
        return False, Thinning(self.last_time_us, skipped, self.file)
