"""Stores operators' requests to forget a consumer, that is, to remove the consumer and its cursor from the ledger. Each request is a record
with the consumer's number as its name. `sluice consumer forget` writes the record, and the engine executes and removes it.
"""

from __future__ import annotations

import json
from pathlib import Path

from sluice.cdc_engine.records.location import record_store

FOLDER = "forget-requests"


def request_forget(destination_dir: Path, client_id: int) -> None:
    """Requests that the engine of a destination forgets a consumer, now or when the engine runs next. Raises MetaError if the record store
    does not answer.
    """
    record_store(destination_dir).put(_name(client_id), json.dumps({"client_id": client_id}))


def forgets_requested(destination_dir: Path) -> tuple[int, ...]:
    """Returns the numbers of the consumers that operators requested to forget. Raises MetaError if the record store does not answer."""
    stems = (Path(name).stem for name in record_store(destination_dir).all(FOLDER))
    return tuple(sorted(int(stem) for stem in stems if stem.isdigit()))


def forget_done(destination_dir: Path, client_id: int) -> None:
    """Removes the request to forget a consumer after the engine has executed the request. Raises MetaError if the record store does not
    answer.
    """
    record_store(destination_dir).remove(_name(client_id))


def _name(client_id: int) -> str:
    return f"{FOLDER}/{client_id}.json"
