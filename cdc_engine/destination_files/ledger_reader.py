"""What a destination's ledger says, wherever it is kept: the batch whose turn it is; and who holds the lease. Reads only, without a lock.

The ledger is replaced whole at each change, so a reader sees one state or the next, never a mixture.
"""

from __future__ import annotations

from cdc_engine.contracts import Holder, OutstandingBatch
from cdc_engine.destination_files.run_lock import refuse_if_lost
from cdc_engine.documents.places import Place
from cdc_engine.ha.leases import read_holder
from cdc_engine.meta.managers import ledger_text, read_ledger

__all__ = ["head_of_line", "lease_holder", "ledger_text", "read_ledger"]


def head_of_line(place: Place) -> OutstandingBatch | None:
    """The batch whose ack is next, which alone may be merged now; None when nothing waits. Raises MetaError as `read_ledger`.

    A process that has lost its run lock is told so (RunLockLostError).

    A run compares its own (epoch, end, delivery) with it right before it writes: a batch that was rolled back has another delivery.
    """
    refuse_if_lost(place)
    return read_ledger(place).head


def lease_holder(place: Place) -> Holder | None:
    """The process that reads this destination, or read it last (`held` tells); None where there never was one."""
    return read_holder(place)
