"""Tests the limits of a group's consumers: the number of runs of consecutive entries in a batch, and the number of stored answers of a
member's clock.
"""

from __future__ import annotations

import pytest

from sluice.cdc_engine.instance.consumers.group import clock, group_stream
from tests.instance.consumers.group.fix_members import Fake, Group, rows_of

CLIENT = 7


def test_group_a_batch_has_a_limited_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(Fake("east"), Fake("west"))
    group.consumers.subscribe(CLIENT)
    for now_us in range(1, 11):
        for fake in group.fakes.values():
            fake.write(1, now_us=now_us)
    group.clocks()
    monkeypatch.setattr(group_stream, "RUNS_MAX", 3)
    service, sizes = group.consumers.service(CLIENT), list[int]()
    while (delivery := service.get(1 << 20))[1] is not None:
        sizes.append(len(rows_of(delivery[1])))
        service.ack(delivery[0])
    assert max(sizes) == 3
    assert sum(sizes) > 10


def test_group_only_the_newest_answers_of_a_clock_are_remembered() -> None:
    fake = Fake("east")
    member = clock.MemberClock("east", fake)
    fake.write(1, now_us=1)
    member.read()
    early = fake.stream_state()
    assert member.reached_us(early) == 1
    for now_us in range(2, 2 + clock.ANSWERS_MAX):
        fake.write(1, now_us=now_us)
        member.read()
    assert member.reached_us(early) == 0, "its answer was forgotten"
    assert member.reached_us(fake.stream_state()) == member.newest_us
