"""Tests the rule of a group for any arrivals: there is one order, an idle member delays nobody, and the order never goes back."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.instance.consumers.group.barrier import BarrierWait, Known, NextTransactions, decide

FOREVER = 1 << 60
NAMES = ("east", "north", "west")
Transaction = tuple[str, int]  # a member, and the number of its transaction


@dataclasses.dataclass
class Member:
    """A member of the group. `times` are the times of all its future transactions by its own clock. `arrived` and `taken` are the numbers
    of transactions that have arrived and that were taken.
    """

    times: list[int]
    arrived: int = 0
    taken: int = 0
    ended: bool = False

    def effective(self) -> list[int]:
        return list(itertools.accumulate(self.times, max))

    def known(self) -> Known:
        local_copy = self.effective()[self.taken : self.arrived]
        rest = self.times[self.arrived :]
        clock = FOREVER if self.ended and not rest else min(rest, default=0)
        return Known(np.array(local_copy, np.int64), max(clock, *self.effective()[: self.arrived], 0))


def in_order(members: dict[str, Member]) -> list[Transaction]:
    """Returns the transactions ordered by time and by the names of their members. Transactions of one member keep the order of its
    stream.
    """
    keys = [(time, name, index) for name, each in members.items() for index, time in enumerate(each.effective())]
    return [(name, index) for _, name, index in sorted(keys)]


def handed_out(members: dict[str, Member]) -> list[Transaction]:
    """Returns the transactions that `decide` hands out until it must wait."""
    found: list[Transaction] = []
    while isinstance(decided := decide({name: each.known() for name, each in members.items()}), NextTransactions):
        each = members[decided.member]
        found += [(decided.member, each.taken + index) for index in range(decided.count)]
        each.taken += decided.count
        assert each.taken <= each.arrived
    return found


streams = st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(1, 12), max_size=8).map(Member), min_size=1)


@given(members=streams, data=st.data())
def test_group_any_arrivals_give_one_order_of_its_members_transactions(
    members: dict[str, Member], data: st.DataObject
) -> None:
    expected, got = in_order(members), list[Transaction]()
    while waiting := [name for name, each in members.items() if each.arrived < len(each.times)]:
        members[data.draw(st.sampled_from(waiting))].arrived += 1
        got += handed_out(members)
        assert got == expected[: len(got)]
    for each in members.values():  # From now on the members are idle, and their clocks advance.
        each.ended = True
    assert got + handed_out(members) == expected


@given(members=streams)
def test_group_an_idle_member_whose_clock_advances_delays_no_other(members: dict[str, Member]) -> None:
    for each in members.values():
        each.arrived, each.ended = len(each.times), True
    members["idle"] = Member([], ended=True)
    assert handed_out(members) == in_order(members)


def known(*times: int, clock: int = 0, begun: bool = False, absent: bool = False) -> Known:
    return Known(np.array(times, np.int64), clock, begun, absent)


def test_group_waits_for_members_that_may_have_older_changes_and_orders_equal_times_by_name() -> None:
    assert decide({"east": known(5, 6, 9), "west": known(clock=7)}) == NextTransactions("east", 2)
    assert decide({"east": known(9), "west": known(clock=7)}) == BarrierWait("west")
    assert decide({"east": known(7), "west": known(clock=7)}) == NextTransactions("east", 1)
    assert decide({"east": known(clock=7), "west": known(7)}) == BarrierWait("east")
    assert decide({"east": known(clock=8), "west": known(clock=7)}) == BarrierWait("west")


def test_group_no_transaction_is_divided_by_another_and_an_absent_member_is_skipped() -> None:
    assert decide({"east": known(9, begun=True), "west": known(2)}) == NextTransactions("east", 1)
    assert decide({"east": known(begun=True, absent=True), "west": known(2)}) == BarrierWait("east")
    assert decide({"east": known(9), "west": known(clock=2, absent=True)}) == NextTransactions("east", 1)
    assert decide({"east": known(9), "west": known(2, absent=True)}) == NextTransactions("west", 1)
    assert decide({"east": known(clock=3, absent=True), "west": known(clock=2, absent=True)}) == BarrierWait("west")


def test_group_nothing_counts_as_older_than_what_was_handed_out() -> None:
    """A transaction that is not newer than the last one that was handed out is handed out at once. It does not wait for the clocks of other
    members.
    """
    assert decide({"east": known(9), "west": known(clock=2)}, barrier_us=9) == NextTransactions("east", 1)
    assert decide({"east": known(9), "west": known(2, 9, 10)}, barrier_us=8) == NextTransactions("west", 1)
    assert decide({"east": known(10), "west": known(clock=2)}, barrier_us=9) == BarrierWait("west")
