"""Lets a run store several events, for example reports about many tables, in one transaction, if Dagster's storage can do this."""

from __future__ import annotations

import contextlib
from typing import Protocol, runtime_checkable

import dagster as dg


@runtime_checkable
class StoresTogether(Protocol):
    """A storage that can store the events of a `with` block in one transaction, such as `orchestration.storage.KeptEvents`."""

    def together(self) -> contextlib.AbstractContextManager[None]: ...
    def store_now(self) -> None: ...


def stored_together(instance: dg.DagsterInstance) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the events of this thread are stored in one transaction. If the instance's storage cannot do this, each
    event is stored at once.
    """
    events = instance.event_log_storage
    return events.together() if isinstance(events, StoresTogether) else contextlib.nullcontext()


def store_now(instance: dg.DagsterInstance) -> None:
    """Stores the events that the `with` block of `stored_together` has not stored yet. Call this in the `with` block before slow work,
    because other processes cannot store events while the `with` block has unstored events.
    """
    events = instance.event_log_storage
    if isinstance(events, StoresTogether):
        events.store_now()
