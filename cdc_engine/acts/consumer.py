"""Makes the engine forget a consumer and its cursor, when an operator requests it."""

from __future__ import annotations

from pathlib import Path

from sluice.cdc_engine.contracts import Consumer
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.forget_requests import forgets_requested, request_forget
from sluice.cdc_engine.meta.ledger import GroupConsumer


def consumer_of(directory: Path, client_id: int) -> Consumer | GroupConsumer:
    """Returns a consumer of a destination or group. Raises ActRefusedError if the ledger has no consumer with this number."""
    ledger = read_ledger(directory)
    consumer = ledger.consumer(client_id) or ledger.group_consumer(client_id)
    if consumer is None:
        raise ActRefusedError(
            f"{directory.name} has no consumer {client_id}; `sluice status` shows the consumers of the "
            "destination with their numbers"
        )
    return consumer


def forgotten_next(directory: Path) -> tuple[int, ...]:
    """Returns the numbers of the consumers that operators requested to forget and that the engine has not forgotten yet. Raises MetaError
    if the requests cannot be read.
    """
    return forgets_requested(directory)


def forget(directory: Path, client_id: int) -> None:
    """Requests that the engine forgets a consumer, now or when the engine runs next. Raises ActRefusedError if the consumer does not exist,
    and MetaError if the request cannot be stored.
    """
    consumer_of(directory, client_id)
    request_forget(directory, client_id)
