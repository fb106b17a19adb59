"""Decides which member's transactions a group hands out next, or which member the group waits for. Pure functions. Called by
`group_stream`.

For each member, the group knows the commit time of the member's next transaction. If that transaction has not arrived, the group knows up
to which time it has all transactions of the member. The member with the earliest of these times is next; members with equal times are
ordered by name.

If the next member has transactions, the group hands out those that are older than the next transaction of every other member. If it has
none yet, the group waits, because the member may still send a transaction that is older than those of the other members.

So the order does not depend on when transactions arrive. An idle member does not delay the group while the clock of the member's source
advances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from sluice.cdc_engine.contracts import Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What the group knows about one member's transactions. Times are in µs since 1970.

    `times` are the ascending commit times of the transactions that were read and not handed out. `clock_us` is the time up to which all
    transactions of the member have arrived. `begun`: whether the next transaction was partly handed out. `absent`: whether the member was
    silent for so long that the group does not wait for it.
    """

    times: Int64s
    clock_us: int
    begun: bool = False
    absent: bool = False


@dataclasses.dataclass(frozen=True)
class NextTransactions:
    """The decision to hand out the next `count` transactions of `member`."""

    member: str
    count: int


@dataclasses.dataclass(frozen=True)
class BarrierWait:
    """The decision to wait for `member`, because its next transaction may be older than the next transactions of the other members."""

    member: str


def decide(known: Mapping[str, Known], barrier_us: int = 0) -> NextTransactions | BarrierWait:
    """Decides which member's transactions the group hands out next, or for which member it waits. The member of `known` whose next
    transaction is the earliest is next. But if a transaction was partly handed out, the rest of this transaction is next, so that no other
    transaction interrupts it. Members that are `absent` (silent for too long) and have no transactions are ignored, unless no other member
    is left.

    Transactions up to the time `barrier_us` were handed out already. An older transaction that arrives late counts as if its time were
    `barrier_us`, so the group hands out the late transaction next.
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
