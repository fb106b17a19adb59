"""Stores an operator's orders for an engine in records of its destination: to stay stopped, or to do something once.

`sluice instance` and a job in Dagster's UI write the orders, and processes that run engines read them. The order in `stopped.json` (stay
stopped) remains until an operator starts the engine. This order survives restarts, and is valid for every host that shares the ledger or
the folder. The process that executes the order in `requested.json` (do something once) removes it.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import platform
import time
from pathlib import Path
from typing import Literal

from sluice.cdc_engine.records.location import record_store

STOPPED_FILE, REQUESTED_FILE = "stopped.json", "requested.json"
OrderKind = Literal["restart", "release"]
# An order to do something once is ignored after this time, because its operator no longer waits for it.
REQUEST_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """An operator's order for an engine. `by` is the user and host that gave the order, and `at` the time in seconds since 1970. `kind` is
    what the engine must do once, or empty if the engine must stay stopped.
    """

    by: str
    at: float
    kind: str = ""

    def when(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))


def stopped(directory: Path) -> Order | None:
    """Returns the order to stay stopped, or None if there is no such order. If the record cannot be parsed, returns an order of "somebody",
    so that the engine stays stopped. Raises MetaError if the store does not answer.
    """
    text = record_store(directory).get(STOPPED_FILE)
    return None if text is None else _parsed(text) or Order(by="somebody", at=0.0)


def stay_stopped(directory: Path, by: str = "") -> Order:
    """Orders the engine to stop and to stay stopped. When the call returns, the order is durable. Raises MetaError if it cannot be
    stored.
    """
    return _write(directory, STOPPED_FILE, Order(by=by or somebody(), at=time.time()))


def may_run(directory: Path) -> bool:
    """Removes the order to stay stopped. Returns whether there was such an order. Raises MetaError if the store does not answer."""
    return record_store(directory).remove(STOPPED_FILE)


def requested(directory: Path, now: float | None = None) -> Order | None:
    """Returns the order to do something once. Returns None if there is no such order, or if it is older than REQUEST_SECONDS_MAX. Raises
    MetaError if the store does not answer.
    """
    order = _parsed(record_store(directory).get(REQUESTED_FILE) or "")
    age = (time.time() if now is None else now) - order.at if order else 0.0
    return order if order and order.kind in {"restart", "release"} and abs(age) <= REQUEST_SECONDS_MAX else None


def request(directory: Path, kind: OrderKind, by: str = "") -> Order:
    """Orders the engine to restart, or to release the destination, once. Raises MetaError if the order cannot be stored."""
    return _write(directory, REQUESTED_FILE, Order(by=by or somebody(), at=time.time(), kind=kind))


def done(directory: Path) -> None:
    """Removes the order to do something once, because it is being executed. Raises MetaError if the store does not answer."""
    record_store(directory).remove(REQUESTED_FILE)


def somebody() -> str:
    """Returns the user and host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # The user of a container may have no name.
        user = "somebody"
    return f"{user}@{platform.node()}"


def _parsed(text: str) -> Order | None:
    try:
        return Order(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _write(directory: Path, name: str, order: Order) -> Order:
    record_store(directory).put(name, json.dumps(dataclasses.asdict(order)))
    return order
