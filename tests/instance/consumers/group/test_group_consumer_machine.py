"""Tests that a consumer gets each row once and in one order, whatever the members and the group do. Hypothesis mixes writes, arrivals,
clocks, gets, acks, rollbacks, restarts and kills.

The rule of the order, the windows, streams and ledger are real. Sources of numbered events replace the servers.
"""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.instance.consumers.group.fix_members import Fake, Group, Row, rows_of

NAMES = ("east", "north", "west")
CLIENT = 7
members = st.sampled_from(NAMES)


@dataclasses.dataclass
class Seen:
    """The rows that the consumer got: acked rows, and the rows of each delivery that is not acked yet."""

    acked: list[Row] = dataclasses.field(default_factory=list)
    waiting: list[tuple[int, list[Row]]] = dataclasses.field(default_factory=list)

    def all(self) -> list[Row]:
        return self.acked + [row for _, rows in self.waiting for row in rows]


class OneConsumerOfSeveralSources(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_us, self.seen = 1, Seen()
        self.group = Group(*(Fake(name, window_bytes=150) for name in NAMES))
        self.group.consumers.subscribe(CLIENT)

    @rule(
        member=members,
        sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3),
        later=st.integers(0, 2),
        held=st.booleans(),
    )
    def written(self, member: str, sizes: list[int], later: int, held: bool) -> None:
        self.now_us += later
        self.group.fakes[member].write(*sizes, now_us=self.now_us, held=held)

    @rule(member=members)
    def arrived(self, member: str) -> None:
        self.group.fakes[member].arrive()

    @rule(member=members)
    def requested(self, member: str) -> None:
        """Lets the group read the member's clock. All clocks agree, so the member writes no older row after this."""
        fake = self.group.fakes[member]
        fake.now_us = self.now_us
        fake.clock.read()

    @rule(bytes_max=st.integers(1, 200))
    def get(self, bytes_max: int) -> None:
        batch_id, content = self.group.consumers.service(CLIENT).get(bytes_max)
        if content is not None:
            self.seen.waiting.append((batch_id, rows_of(content)))

    @rule()
    def ack(self) -> None:
        if self.seen.waiting:
            batch_id, rows = self.seen.waiting.pop(0)
            self.group.consumers.service(CLIENT).ack(batch_id)
            self.seen.acked += rows

    @rule()
    def roll_back(self) -> None:
        self.group.consumers.service(CLIENT).rollback()
        self.seen.waiting.clear()

    @rule(kept=st.booleans())
    def group_is_killed(self, kept: bool) -> None:
        """Kills the group. Acks up to the stored cursors stay. Rows that were acked after these cursors are delivered again. If `kept` is
        True, the group stores its cursors before the kill.
        """
        if kept:
            self.group.consumers.keep()
        record = self.group.meta.ledger.group_consumer(CLIENT)
        assert record is not None
        covered = {name: self.rows_up_to(name, position.offset) for name, position in record.cursor.members}
        self.seen.waiting.clear()
        self.seen.acked = [(name, number) for name, number in self.seen.acked if number < covered[name]]
        self.group.begin()

    @rule(member=members)
    def member_restarts(self, member: str) -> None:
        self.group.fakes[member].restart()

    def rows_up_to(self, member: str, offset: int) -> int:
        """Returns how many rows of `member` belong to transactions that end at `offset` or before it."""
        before, covered = 0, 0
        for block in self.group.fakes[member].blocks:
            ended = int((block.transaction_end <= offset).sum())
            covered = before + int(block.transaction_events[ended - 1]) if ended else covered
            before += block.event_count
        return covered

    def expected(self) -> list[Row]:
        keys = [
            (time, name, index, numbers)
            for name, fake in self.group.fakes.items()
            for index, (time, numbers) in enumerate(fake.transactions)
        ]
        return [(name, number) for _, name, _, numbers in sorted(keys) for number in numbers]

    @invariant()
    def it_has_a_beginning_of_the_one_order(self) -> None:
        if hasattr(self, "seen"):
            got = self.seen.all()
            assert got == self.expected()[: len(got)]

    def teardown(self) -> None:
        if not hasattr(self, "seen"):
            return
        for name in NAMES:
            self.arrived(name)
        self.now_us += 1
        for name in NAMES:
            self.requested(name)
        service = self.group.consumers.service(CLIENT)
        for _ in range(4):  # A consumer that read alone joins the others after a get that finds nothing.
            while (delivery := service.get(1 << 20))[1] is not None:
                self.seen.waiting.append((delivery[0], rows_of(delivery[1])))
        assert self.seen.all() == self.expected()
        assert service.line.taken.late == 0


OneConsumerOfSeveralSources.TestCase.settings = settings(max_examples=20, stateful_step_count=30)
TestAnyInterleavingOfAGroup = OneConsumerOfSeveralSources.TestCase
