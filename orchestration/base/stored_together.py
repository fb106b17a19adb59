"""Lets a run store the events that it reports about many tables together, if Dagster's storage can do this."""

from __future__ import annotations

import contextlib
from typing import Protocol, runtime_checkable

import dagster as dg


@runtime_checkable
class StoresTogether(Protocol):
    """A storage of events that stores the events of a block together, such as `orchestration.storage.KeptEvents`."""

    def together(self) -> contextlib.AbstractContextManager[None]: ...
    def store_now(self) -> None: ...


def stored_together(instance: dg.DagsterInstance) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this thread stores its events together. If the instance's storage cannot do this, it stores each event at
    once.
    """
    events = instance.event_log_storage
    return events.together() if isinstance(events, StoresTogether) else contextlib.nullcontext()


def store_now(instance: dg.DagsterInstance) -> None:
    """Stores the events that a block of `stored_together` has not stored yet. Call this in such a block before slow work, because other
    processes cannot store events while the block has unstored events.
    """
    events = instance.event_log_storage
    if isinstance(events, StoresTogether):
        events.store_now()
