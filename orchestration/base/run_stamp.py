"""Tells, without a query, whether any run in Dagster's storage may have changed since an earlier look."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dagster import DagsterInstance


@runtime_checkable
class StampedRuns(Protocol):
    """A storage of runs with a stamp. `storage.KeptRuns` implements it."""

    def stamp(self) -> object:
        """Returns a value that changes when a process stores or changes a run. Returns None if the value may not reflect a recent change
        yet.
        """


def stamp_of_runs(instance: DagsterInstance) -> object:
    """Returns the stamp of the instance's storage of runs, or None if the storage has none now."""
    runs = instance.run_storage
    return runs.stamp() if isinstance(runs, StampedRuns) else None
