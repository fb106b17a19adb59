"""Reads from the ledger of a destination, in any kind of store, which batch may be merged next and who holds the lease. Takes no lock.

The engine replaces the ledger as a whole at each change, so a reader never gets a part of a change.
"""

from __future__ import annotations

from sluice.cdc_engine.contracts import Holder, OutstandingBatch
from sluice.cdc_engine.destination_files.run_lock import refuse_if_lost
from sluice.cdc_engine.ha.leases import read_holder
from sluice.cdc_engine.meta.managers import ledger_text, read_ledger
from sluice.cdc_engine.records.location import Location

__all__ = ["head_of_line", "lease_holder", "ledger_text", "read_ledger"]


def head_of_line(location: Location) -> OutstandingBatch | None:
    """Returns the oldest batch in flight, which is the only batch that may be merged now, or None if no batch is in flight. A run calls
    this function directly before it writes, and compares the epoch, the end and the delivery number of its own batch with the result. The
    values differ if the run's batch was rolled back in the meantime.

    Raises RunLockLostError if this process took the run lock and has lost it, and MetaError if the ledger cannot be read.
    """
    refuse_if_lost(location)
    return read_ledger(location).head


def lease_holder(location: Location) -> Holder | None:
    """Returns the process that holds the lease or held it last (`held` of the result is then False), or None if no process ever held it."""
    return read_holder(location)
