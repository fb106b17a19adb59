"""Stores an operator's requests to an engine as records of its destination: to stay stopped, to restart once, or to release the destination
once, so that another host takes the destination over.

`sluice instance` and a job in Dagster's UI write the requests, and engine processes read them. `stopped.json` is the request to stay
stopped. It remains until an operator starts the engine, even if the engine process restarts, and is valid for all hosts that share the
ledger or the folder. `requested.json` is the request to restart or release once. The process that executes this request removes the record.
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
# A request to restart or release is ignored after this time, because its operator no longer waits for it.
REQUEST_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """An operator's request to an engine. `by` is the user and host that made it, `at` the time in seconds since 1970. `kind` is what the
    engine must do once; it is empty for a request to stay stopped.
    """

    by: str
    at: float
    kind: str = ""

    def when(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))


def stopped(directory: Path) -> Order | None:
    """Returns the request to stay stopped, or None if there is none. If the record cannot be parsed, returns a request of "somebody", so
    that the engine stays stopped. Raises MetaError if the record store does not answer.
    """
    text = record_store(directory).get(STOPPED_FILE)
    return None if text is None else _parsed(text) or Order(by="somebody", at=0.0)


def stay_stopped(directory: Path, by: str = "") -> Order:
    """Requests that the engine stops and stays stopped. `by` names who requests it; empty means the user of this process. When the call
    returns, the request is durable. Raises MetaError if it cannot be stored.
    """
    return _write(directory, STOPPED_FILE, Order(by=by or somebody(), at=time.time()))


def may_run(directory: Path) -> bool:
    """Removes the request to stay stopped. Returns whether there was one. Raises MetaError if the record store does not answer."""
    return record_store(directory).remove(STOPPED_FILE)


def requested(directory: Path, now: float | None = None) -> Order | None:
    """Returns the request to restart or release once. Returns None if there is none, or if it is older than REQUEST_SECONDS_MAX. Raises
    MetaError if the record store does not answer.
    """
    order = _parsed(record_store(directory).get(REQUESTED_FILE) or "")
    age = (time.time() if now is None else now) - order.at if order else 0.0
    return order if order and order.kind in {"restart", "release"} and abs(age) <= REQUEST_SECONDS_MAX else None


def request(directory: Path, kind: OrderKind, by: str = "") -> Order:
    """Requests that the engine restarts once, or releases its destination once (`kind`). `by` names who requests it; empty means the user
    of this process. Raises MetaError if the request cannot be stored.
    """
    return _write(directory, REQUESTED_FILE, Order(by=by or somebody(), at=time.time(), kind=kind))


def done(directory: Path) -> None:
    """Removes the request to restart or release. Called when the engine process begins to execute the request, or if no engine process
    has answered in time. Raises MetaError if the record store does not answer.
    """
    record_store(directory).remove(REQUESTED_FILE)


def somebody() -> str:
    """Returns "user@host" of this process, as the author of a request."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # The user id of this process has no name, as in some containers.
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
