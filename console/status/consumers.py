"""Shows in `sluice status` the state and lag of the consumers (clients and brokers) and of the lake, and the state of groups."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.table import Table
from rich.text import Text

from sluice.cdc_engine.position import position_text


class WithConsumers(Protocol):
    """Defines the fields of a destination's status that this module reads."""

    @property
    def name(self) -> str: ...
    @property
    def cursor(self) -> str: ...
    @property
    def lag_seconds(self) -> float | None: ...
    @property
    def consumers(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def state(self) -> str: ...
    @property
    def group(self) -> Mapping[str, Any] | None: ...


def shown_lag(lag_seconds: float | None) -> str:
    """Formats a lag for a table cell. Returns "" if the lag is unknown."""
    return "" if lag_seconds is None else f"{lag_seconds} s"


def consumers_of(engine: Mapping[str, Any], meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a record for each consumer, with the consumer's state, filter, position and lag. The values come from the engine's status
    (`engine`). If the status names no consumers, they come from the ledger (`meta`), where every consumer counts as IDLE.
    """
    kept = [
        {**each, "position": each.get("cursor"), "members": (each.get("cursor") or {}).get("members")}
        for each in (*(meta.get("consumers") or ()), *(meta.get("group_consumers") or ()))
    ]
    consumers = engine.get("consumers") or kept
    return [
        {
            "client_id": each.get("client_id"),
            "name": str(each.get("name") or ""),
            "filter": str(each.get("filter") or ""),
            "state": str(each.get("state") or "IDLE"),
            "reason": str(each.get("reason") or ""),
            "position": _positions_text(each.get("position"), each.get("members")),
            "behind_seconds": round(float(each.get("behind_seconds") or 0.0), 1),
            "waiting": int(each.get("waiting") or 0),
            "late": int(each.get("late") or 0),
            "waits_for": str(each.get("waits_for") or ""),
        }
        for each in consumers
    ]


def consumer_problems(one: WithConsumers) -> list[str]:
    """Returns a message for each stopped consumer."""
    return [
        f"{one.name}: consumer {_who(each)} is {each['state']}: {each['reason']}"
        for each in one.consumers
        if each["state"] == "STOPPED"
    ]


def consumer_table(destinations: Sequence[WithConsumers]) -> Table | None:
    """Returns the table of consumers, with a row for the lake of each destination. Returns None if no destination has a consumer."""
    if not any(one.consumers for one in destinations):
        return None
    shown = Table(
        *("destination", "consumer", "state", "acked up to", "behind", "not acked", "filter"),
        title="consumers",
        title_justify="left",
    )
    for one in destinations:
        lake = ("the lake", Text(""), one.cursor, shown_lag(one.lag_seconds), "", "")
        shown.add_row(one.name, *(lake if one.group is None else ("", Text(""), "", "", "", "")))
        for each in one.consumers:
            state = Text(each["state"], "red" if each["state"] == "STOPPED" else "green")
            columns = (each["position"], f"{each['behind_seconds']} s", str(each["waiting"] or ""), each["filter"])
            shown.add_row("", _who(each), state, *columns)
    return shown


def group_table(destinations: Sequence[WithConsumers]) -> Table | None:
    """Returns the table of groups, or None if there is no group. For each group, the table has the problems of members, the members for
    which consumers wait, and the greatest difference between the clocks of the sources. `barrier` is the commit time up to which all
    consumers of the group have acked. `late` is the number of transactions that arrived after later transactions had been handed out.
    """
    if not any(one.group for one in destinations):
        return None
    shown = Table(
        *("group", "state", "members", "waits for", "barrier", "late", "clocks differ by"),
        title="groups",
        title_justify="left",
    )
    for one in destinations:
        if one.group is None:
            continue
        members = [f"{each.get('name')}{_ill(each)}" for each in one.group.get("members") or ()]
        waits_for = "; ".join(one.group.get("waits_for") or ())
        differ = f"{float(one.group.get('clocks_differ_seconds') or 0.0):.3f} s"
        barrier = moment(one.group.get("barrier_us"))
        late = str(one.group.get("late") or "")
        shown.add_row(one.name, one.state, ", ".join(members), waits_for, barrier, late, differ)
    return shown


def moment(time_us: Any) -> str:
    """Formats a time (µs since 1970) in UTC. Returns "" if there is no time."""
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S") if time_us else ""


def _ill(member: Mapping[str, Any]) -> str:
    """Returns a short note about a member's problem. The list of problems has the full sentence."""
    return " (does not run here)" if member.get("missing") else " (sends nothing)" if member.get("trouble") else ""


def _who(consumer: Mapping[str, Any]) -> str:
    """Returns the number of a consumer, and the name if it is a broker."""
    return f"{consumer['client_id']} {consumer.get('name') or ''}".strip()


def _positions_text(position: Any, members: Any) -> str:
    """Formats the position of a consumer. For a consumer of a group, the result has one position per member."""
    if isinstance(members, dict) and members:
        return ", ".join(f"{name} {position_text(each)}" for name, each in sorted(members.items()))
    return position_text(position)
