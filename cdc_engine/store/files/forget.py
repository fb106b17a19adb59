"""Removes the stored events of a destination, so that its engine reads them from the source again. Called if the events are no longer
usable: for example, an operator sets the position or resumes a table, or conf/ now sets another kind of store.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sluice.cdc_engine.durable_files import sync
from sluice.cdc_engine.errors import StoreFullError

EVENTS_DIRECTORY, GONE = "events", "events.gone"


def forget_events(destination_dir: Path, name: str = EVENTS_DIRECTORY) -> None:
    """Removes the folder `name` with the stored events of a destination, so that the engine reads the events from the source again. After a
    crash, either all events still exist or none. Raises StoreFullError if the files cannot be removed.
    """
    directory, gone = destination_dir / name, destination_dir / GONE
    try:
        shutil.rmtree(gone, ignore_errors=True)
        if directory.exists():
            directory.rename(gone)
            sync(destination_dir)
            shutil.rmtree(gone, ignore_errors=True)
    except OSError as error:
        raise store_full(directory, error) from error


def store_full(directory: Path, error: OSError) -> StoreFullError:
    """Returns the StoreFullError for an I/O error of the event files in `directory`. Its message says what the operator must correct."""
    return StoreFullError(
        f"events could not be stored in {directory} ({error.strerror or error}): free space in that folder or "
        "correct its permissions; no change is lost, and the stream then continues from the last stored "
        "transaction"
    )
