"""What `sluice status` shows of the consumers of a destination: the lake and those beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.table import Table
from rich.text import Text


class WithConsumers(Protocol):
    """A destination as `status` has it."""

    @property
    def name(self) -> str: ...
    @property
    def cursor(self) -> str: ...
    @property
    def lag_seconds(self) -> float: ...
    @property
    def consumers(self) -> Sequence[Mapping[str, Any]]: ...


def consumers_of(engine: Mapping[str, Any], meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As the engine says, else as the ledger has them: a record each, with its state, filter, position and how far it is behind."""
    told = engine.get("consumers") or [{**each, "position": each.get("cursor")} for each in meta.get("consumers") or ()]
    return [
        {
            "client_id": each.get("client_id"),
            "name": str(each.get("name") or ""),
            "filter": str(each.get("filter") or ""),
            "state": str(each.get("state") or "IDLE"),
            "reason": str(each.get("reason") or ""),
            "position": _place(each.get("position")),
            "behind_seconds": round(float(each.get("behind_seconds") or 0.0), 1),
            "waiting": int(each.get("waiting") or 0),
        }
        for each in told
    ]


def consumer_problems(one: WithConsumers) -> list[str]:
    """Those that cannot go on, a sentence each."""
    return [
        f"{one.name}: consumer {_who(each)} is {each['state']}: {each['reason']}"
        for each in one.consumers
        if each["state"] == "STOPPED"
    ]


def consumer_table(destinations: Sequence[WithConsumers]) -> Table | None:
    """None where the lake is the only consumer everywhere."""
    if not any(one.consumers for one in destinations):
        return None
    shown = Table(
        *("destination", "consumer", "state", "acked up to", "behind", "not acked", "filter"),
        title="consumers",
        title_justify="left",
    )
    for one in destinations:
        shown.add_row(one.name, "the lake", Text(""), one.cursor, f"{one.lag_seconds} s", "", "")
        for each in one.consumers:
            state = Text(each["state"], "red" if each["state"] == "STOPPED" else "green")
            words = (each["position"], f"{each['behind_seconds']} s", str(each["waiting"] or ""), each["filter"])
            shown.add_row("", _who(each), state, *words)
    return shown


def _who(consumer: Mapping[str, Any]) -> str:
    """Its number, and the broker that it sends to."""
    return f"{consumer['client_id']} {consumer.get('name') or ''}".strip()


def _place(position: Any) -> str:
    """As `status.place`."""
    if not isinstance(position, dict):
        return ""
    return f"{position.get('file')}:{position.get('offset')}@{position.get('epoch')}"
