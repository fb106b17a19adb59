"""Which member's transactions a group hands out next, or for whom it waits. Pure; asked by `feed`, which knows what each member has.

Each member has a next transaction, or a time before which it has none. Whoever has the least (time, name) is next: has it a transaction,
that is handed out, and all after it that are less than the least of the others; has it none, the group waits for it, for it may yet
bring what comes first. So the order is the same however the members' transactions arrive, and an idle member whose clock moves on holds up
nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from cdc_engine.contracts import Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What is known of a member, times in µs since 1970.

    `times`: of the transactions at hand that come next in its stream, ascending. `clock_us`: what comes after them is no older. `begun`:
    part of its next transaction was handed out. `absent`: it is not waited for.
    """

    times: Int64s
    clock_us: int
    begun: bool = False
    absent: bool = False


@dataclasses.dataclass(frozen=True)
class Turn:
    """The next `count` transactions at hand of `member` come next."""

    member: str
    count: int


@dataclasses.dataclass(frozen=True)
class Wait:
    """`member` may still bring what comes next."""

    member: str


def decide(known: Mapping[str, Known], barrier_us: int = 0) -> Turn | Wait:
    """`known`: of each member, at least one. What is begun goes on, whoever is older: no transaction is parted by another.

    `barrier_us`: up to which all was handed out. Nothing counts as older, so what comes late comes at once.
    """
    for member, each in sorted(known.items()):
        if each.begun:
            return Turn(member, 1) if len(each.times) else Wait(member)
    counted = {member: each for member, each in known.items() if len(each.times) or not each.absent}
    if not counted:
        return Wait(min((max(each.clock_us, barrier_us), member) for member, each in known.items())[1])
    least = sorted((max(_next_us(each), barrier_us), member) for member, each in counted.items())
    member = least[0][1]
    times = counted[member].times
    if not len(times):
        return Wait(member)
    if len(least) == 1:
        return Turn(member, len(times))
    limit_us, other = least[1]
    return Turn(member, int(np.searchsorted(times, limit_us, "right" if member < other else "left")))


def _next_us(each: Known) -> int:
    return int(each.times[0]) if len(each.times) else each.clock_us
