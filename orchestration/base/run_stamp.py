"""Finds out without a query whether any run in Dagster's storage may have changed. A stamp is a value that changes when a run is stored or
changed. The daemon and ticks query the storage again only when its stamp differs from that of their last query.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dagster import DagsterInstance


@runtime_checkable
class StampedRuns(Protocol):
    """A storage of runs that returns a stamp of its content. `orchestration.storage.KeptRuns` implements this protocol. Dagster's own
    storages do not.
    """

    def stamp(self) -> object:
        """Returns a value that changes when a process stores or changes a run. Returns None if the value may not reflect a recent change
        yet.
        """


def stamp_of_runs(instance: DagsterInstance) -> object:
    """Returns the stamp of the instance's run storage. Returns None if the storage has no stamps, or if its stamp may not reflect a recent
    change yet. With None, the caller must query the storage.
    """
    runs = instance.run_storage
    return runs.stamp() if isinstance(runs, StampedRuns) else None
