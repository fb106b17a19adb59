"""Takes the lease and the run lock of a destination, so that no engine runs and no run merges while other modules of this package change
the ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from sluice.cdc_engine.destination_files import lease_holder, run_lock, run_lock_held
from sluice.cdc_engine.errors import CanalServiceError, LeaseLostError
from sluice.cdc_engine.ha.leases import POLL_SECONDS, acquired_within, open_lease
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.meta.managers import open_meta
from sluice.cdc_engine.ports import Lease
from sluice.cdc_engine.records.location import as_location


@dataclasses.dataclass(frozen=True)
class StoppedDestination:
    """A destination whose lease and run lock this process holds, so that no engine and no run works on it. `lease.check` raises
    LeaseLostError when the lease is lost.
    """

    meta: MetaManager
    lease: Lease


@contextlib.contextmanager
def stopped_destination(directory: Path) -> Iterator[StoppedDestination]:
    """Holds the lease and the run lock of a destination during the block, and yields the ledger and the lease. Raises LeaseLostError if an
    engine runs or a run merges, and MetaError if the ledger cannot be read.
    """
    name, lease = directory.name, open_lease(directory)
    try:
        if not acquired_within(lease, _watch_seconds(directory)):
            holder = lease_holder(directory)
            who = f"process {holder.pid} on {holder.host}" if holder else "another process"
            raise LeaseLostError(
                f"the engine of {name} runs ({who}); stop the engine with `sluice down`, then try "
                f"again{_once_killed(directory)}"
            )
        with no_run(directory):
            meta = open_meta(directory, lease)
            try:
                yield StoppedDestination(meta, lease)
            finally:
                meta.close()
    finally:
        lease.release()


def _watch_seconds(directory: Path) -> float:
    """Returns for how many seconds to try to take the lease. With `meta.kind: sql`, this is a little more than `meta.session_seconds`,
    because the lease of a dead process becomes free only after this time without a renewal. With other ledgers, this is 0.
    """
    location = as_location(directory)
    return location.session_seconds + POLL_SECONDS if location.kind == "sql" else 0.0


def _once_killed(directory: Path) -> str:
    """Returns the end of a sentence that says when the lease of a killed engine becomes free. Returns "" for a lease in files, which the
    operating system releases at once.
    """
    location = as_location(directory)
    if not location.is_shared:
        return ""
    return f"; if the engine was killed, its lease is free after {location.session_seconds:.0f} s"


@contextlib.contextmanager
def no_run(directory: Path) -> Iterator[None]:
    """Holds the run lock of a destination during the block, so that no run merges. Raises LeaseLostError if a run merges now."""
    if run_lock_held(directory):
        raise LeaseLostError(
            f"a run still merges a batch of {directory.name}; wait until the run has ended, then try again"
        )
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(run_lock(directory))
        except CanalServiceError as error:
            raise LeaseLostError(str(error)) from error
        yield
