"""Stores operators' requests to forget a consumer, one record per consumer, named by its number. `acts` writes them, the engine removes
them.
"""

from __future__ import annotations

import json
from pathlib import Path

from sluice.cdc_engine.records.location import record_store

FOLDER = "forget-requests"


def request_forget(destination_dir: Path, client_id: int) -> None:
    """Requests that the destination's engine forgets the consumer, now or when it runs next. Raises MetaError."""
    record_store(destination_dir).put(_name(client_id), json.dumps({"client_id": client_id}))


def forgets_requested(destination_dir: Path) -> tuple[int, ...]:
    """Returns the numbers of the consumers that are to be forgotten. Raises MetaError."""
    stems = (Path(name).stem for name in record_store(destination_dir).all(FOLDER))
    return tuple(sorted(int(stem) for stem in stems if stem.isdigit()))


def forget_done(destination_dir: Path, client_id: int) -> None:
    """Removes the request. Raises MetaError."""
    record_store(destination_dir).remove(_name(client_id))


def _name(client_id: int) -> str:
    return f"{FOLDER}/{client_id}.json"
