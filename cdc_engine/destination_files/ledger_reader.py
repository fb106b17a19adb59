"""What a destination's files say: its ledger, the batch whose turn it is, who holds its lease. Reads only, at any time, without a lock.

The ledger file is replaced whole at each change, so a reader sees one state or the next, never a mixture.
"""

from __future__ import annotations

from pathlib import Path

from cdc_engine.contracts import Holder, OutstandingBatch
from cdc_engine.ha.file_lease import read_holder
from cdc_engine.meta.file_meta import read_ledger

__all__ = ["head_of_line", "lease_holder", "read_ledger"]


def head_of_line(destination_dir: Path) -> OutstandingBatch | None:
    """The batch whose ack is next, which alone may be merged now; None when nothing waits. Raises MetaError as `read_ledger`.

    A run compares its own (epoch, end, delivery) with it right before it writes: a batch that was rolled back has another delivery.
    """
    return read_ledger(destination_dir).head


def lease_holder(destination_dir: Path) -> Holder | None:
    """The process that reads this destination, or read it last (`held` tells); None where there never was one."""
    return read_holder(destination_dir)
