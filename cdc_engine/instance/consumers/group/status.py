"""Collects the figures of a group for its status: the state of each member, the commit time up to which all consumers have acked, and the
members for which the group waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.cdc_engine.instance.consumers.group.members import Members
from sluice.cdc_engine.instance.consumers.subscriptions import ConsumerStatus
from sluice.cdc_engine.instance.status import GroupFigures, MemberFigures


def figures_of(members: Members, consumers: Sequence[ConsumerStatus]) -> GroupFigures:
    """Returns the current figures of a group. `consumers` are the statuses of its consumers."""
    missing, known = members.missing(), members.known()
    figures = []
    for name in members.names:
        here = known.get(name) if name not in missing else None
        figures.append(
            MemberFigures(
                name=name,
                missing=missing.get(name, ""),
                trouble=(here.clock.trouble or here.consumers.trouble()) if here is not None else "",
                ahead_seconds=here.clock.ahead_seconds if here is not None else None,
            )
        )
    return GroupFigures(
        members=tuple(figures),
        waits_for=tuple(dict.fromkeys(each.waits_for for each in consumers if each.waits_for)),
        late=sum(each.late for each in consumers),
        barrier_us=min((each.barrier_us for each in consumers), default=0),
    )
