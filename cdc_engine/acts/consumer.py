"""What an operator does to a consumer beside the lake: has it forgotten, with the place that is kept for it. Called by the console."""

from __future__ import annotations

from pathlib import Path

from cdc_engine.contracts import Consumer
from cdc_engine.destination_files import read_ledger
from cdc_engine.errors import ActRefusedError
from cdc_engine.meta.forget_requests import ask_forget
from cdc_engine.meta.ledger import GroupConsumer


def consumer_of(directory: Path, client_id: int) -> Consumer | GroupConsumer:
    """One of a destination or of a group. Raises ActRefusedError where the ledger has none of that number."""
    ledger = read_ledger(directory)
    consumer = ledger.consumer(client_id) or ledger.group_consumer(client_id)
    if consumer is None:
        raise ActRefusedError(
            f"{directory.name} has no consumer {client_id}; `sluice status` shows those that it has, with their numbers"
        )
    return consumer


def forget(directory: Path, client_id: int) -> None:
    """Asks the engine to forget it, now or when it runs. Raises ActRefusedError, MetaError."""
    consumer_of(directory, client_id)
    ask_forget(directory, client_id)
