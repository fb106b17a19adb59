"""Reads from the ledger of a destination, in any kind of store, which batch may be merged next and who holds the lease. Takes no lock.

The ledger is replaced as a whole at each change, so a reader never sees a half-written state.
"""

from __future__ import annotations

from sluice.cdc_engine.contracts import Holder, OutstandingBatch
from sluice.cdc_engine.destination_files.run_lock import refuse_if_lost
from sluice.cdc_engine.ha.leases import read_holder
from sluice.cdc_engine.meta.managers import ledger_text, read_ledger
from sluice.cdc_engine.records.location import Location

__all__ = ["head_of_line", "lease_holder", "ledger_text", "read_ledger"]


def head_of_line(location: Location) -> OutstandingBatch | None:
    """Returns the oldest batch in flight, the only batch that may be merged now, or None if none is in flight. Directly before it writes, a
    run compares (epoch, end, delivery) of its batch with the result: after a rollback, the batch has another delivery number.

    Raises RunLockLostError in a process that has lost its run lock, and MetaError if the ledger cannot be read.
    """
    refuse_if_lost(location)
    return read_ledger(location).head


def lease_holder(location: Location) -> Holder | None:
    """Returns the process that holds the lease or held it last (see `Holder.held`), or None if there never was one."""
    return read_holder(location)
