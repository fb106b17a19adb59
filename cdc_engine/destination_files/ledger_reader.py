"""Reads a destination's ledger, wherever it is stored: the next batch to be merged, and who holds the lease. Reads only, without a lock.

The ledger is replaced as a whole at each change, so a reader sees one state or the next, never a mixture.
"""

from __future__ import annotations

from sluice.cdc_engine.contracts import Holder, OutstandingBatch
from sluice.cdc_engine.destination_files.run_lock import refuse_if_lost
from sluice.cdc_engine.ha.leases import read_holder
from sluice.cdc_engine.meta.managers import ledger_text, read_ledger
from sluice.cdc_engine.records.location import Location

__all__ = ["head_of_line", "lease_holder", "ledger_text", "read_ledger"]


def head_of_line(location: Location) -> OutstandingBatch | None:
    """Returns the oldest batch in flight, the only one that may be merged now; None if there is none. Raises MetaError like `read_ledger`.

    Raises RunLockLostError in a process that has lost its run lock. A run compares (epoch, end, delivery) of its batch with the result
    right before it writes: a batch that was rolled back has another delivery.
    """
    refuse_if_lost(location)
    return read_ledger(location).head


def lease_holder(location: Location) -> Holder | None:
    """Returns the process that holds the lease, or that held it last (see `Holder.held`); None if there never was one."""
    return read_holder(location)
