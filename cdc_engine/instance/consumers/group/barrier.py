"""Decides which member's transactions a group hands out next, or which member it waits for. Pure. Called by `group_stream`, which knows the
available transactions of each member.

Each member has a next transaction, or a time before which it will have none. The member with the earliest (time, name) is next. If it has
transactions, the group hands out those that are earlier than the next one of every other member. If it has none, the group waits, because
this member may still get an earlier transaction. So the order does not depend on when transactions arrive, and an idle member whose clock
advances delays nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from sluice.cdc_engine.contracts import Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """The facts of one member for the decision. Times are in µs since 1970.

    `times`: commit times of the available transactions that are next in its stream, ascending. `clock_us`: no later transaction of the
    member is older than this. `begun`: a part of its next transaction was handed out. `absent`: the group does not wait for it.
    """

    times: Int64s
    clock_us: int
    begun: bool = False
    absent: bool = False


@dataclasses.dataclass(frozen=True)
class NextTransactions:
    """The decision to hand out the next `count` available transactions of `member`."""

    member: str
    count: int


@dataclasses.dataclass(frozen=True)
class BarrierWait:
    """The decision to wait for `member`, whose next transaction may be the first one of the group."""

    member: str


def decide(known: Mapping[str, Known], barrier_us: int = 0) -> NextTransactions | BarrierWait:
    """Decides which member is next. `known`: at least one member. A transaction that was handed out in part continues first, so that no
    other one interrupts it.

    `barrier_us`: the time up to which everything was handed out. An older transaction counts as if it had this time, so a late one is next
    at once.
    """
    for member, each in sorted(known.items()):
        if each.begun:
            return NextTransactions(member, 1) if len(each.times) else BarrierWait(member)
    counted = {member: each for member, each in known.items() if len(each.times) or not each.absent}
    if not counted:
        return BarrierWait(min((max(each.clock_us, barrier_us), member) for member, each in known.items())[1])
    least = sorted((max(_next_us(each), barrier_us), member) for member, each in counted.items())
    member = least[0][1]
    times = counted[member].times
    if not len(times):
        return BarrierWait(member)
    if len(least) == 1:
        return NextTransactions(member, len(times))
    limit_us, other = least[1]
    return NextTransactions(member, int(np.searchsorted(times, limit_us, "right" if member < other else "left")))


def _next_us(each: Known) -> int:
    return int(each.times[0]) if len(each.times) else each.clock_us
