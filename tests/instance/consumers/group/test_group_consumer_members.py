"""Tests one consumer of several sources if a member is away, lost, stopped, new or removed, or reports wrong times."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.binlog.entries.elements import BEGIN
from sluice.cdc_engine.errors import ConsumerStoppedError, MetaError, PositionLostError
from sluice.cdc_engine.instance.consumers.group.ahead import ahead_of
from sluice.cdc_engine.instance.consumers.group.group_stream import FUTURE_US_MAX
from sluice.cdc_engine.instance.consumers.pieces import end_of
from sluice.cdc_engine.instance.consumers.subscriptions import STOPPED
from sluice.cdc_engine.meta.manager import Transition
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import ORDERS, Source, numbers_of
from tests.fix_ledgers import MemoryLedger
from tests.instance.consumers.group.fix_members import START, Fake, Group, Row, away, rows_of
from tests.waiting import wait_for

CLIENT = 7


def group_of(*names: str, wait_seconds: float | None = None) -> Group:
    made = Group(*map(Fake, names), wait_seconds=wait_seconds)
    made.consumers.subscribe(CLIENT)
    return made


def test_group_a_new_consumer_begins_with_the_oldest_change_in_the_window_of_each_member() -> None:
    group = Group(Fake("east"), Fake("west"))
    group.fakes["east"].write(1, now_us=5)
    group.fakes["west"].write(1, now_us=4)
    group.consumers.subscribe(CLIENT)
    group.clocks()
    assert group.got() == [("west", 0)], "west may still bring what is older than east's"
    group.fakes["west"].now_us = 6
    group.clocks()
    assert group.got() == [("east", 0)]


def test_group_it_waits_for_a_consumer_s_member_that_is_away_and_says_so() -> None:
    group = group_of("east", "west")
    group.fakes["west"].trouble = away()
    group.fakes["east"].write(1, now_us=5)
    assert group.got() == []
    (status,) = group.consumers.statuses()
    assert (status.waits_for, status.reason) == ("west: its engine does not run", "")
    group.fakes["west"].trouble = None
    group.fakes["west"].write(1, now_us=4)
    group.fakes["west"].now_us = 6
    group.clocks()
    assert group.got() == [("west", 0), ("east", 0)]
    (status,) = group.consumers.statuses()
    assert status.late == 0


def test_group_a_consumer_continues_after_wait_seconds_and_what_comes_late_is_counted() -> None:
    group = group_of("east", "west", wait_seconds=0.2)
    east, west = group.fakes["east"], group.fakes["west"]
    west.trouble = away()
    east.write(1, now_us=5)
    assert group.got() == []
    assert wait_for("it goes on without west", group.got) == [("east", 0)]
    west.trouble = None
    west.write(1, 1, now_us=4)
    west.write(1, now_us=7)
    east.write(1, now_us=6)
    east.now_us = west.now_us = 8
    group.clocks()
    assert group.got() == [("west", 0), ("west", 1), ("east", 1), ("west", 2)], "what is late comes at once"
    group.consumers.keep()
    record = group.meta.ledger.group_consumer(CLIENT)
    assert record is not None
    assert (record.cursor.late, record.cursor.barrier_us) == (2, 7)


@pytest.mark.usefixtures("parts_at_once")
def test_group_a_member_that_continues_with_another_transaction_than_the_open_one_is_read_from_its_begin() -> None:
    """The consumer acked the first rows of a transaction. Then the member's engine restarts on another server, which has another
    transaction after this position.
    """
    group, begins = group_of("east"), list[bool]()
    east, service = group.fakes["east"], group.consumers.service(CLIENT)
    east.window.put(east.source.block([], 3))
    east.source = Source(epoch=2, number=100)
    for expected in ([0, 1], [100], [101, 102]):
        batch_id, content = service.get(2 * len(expected) * 8)
        assert content is not None
        begins.append(content[0].chosen[0].kinds[0] == BEGIN)
        assert rows_of(content) == [("east", number) for number in expected]
        service.ack(batch_id)
        if begins == [True]:
            east.restart()
            east.write(3)
    assert begins == [True, True, False]


@pytest.mark.parametrize("parted", [True, False])
def test_group_a_table_of_a_member_that_cannot_be_read_stops_the_consumer_once_all_older_is_out(
    *, parted: bool
) -> None:
    """If `parted` is True, the unreadable row arrives in its own block, after readable rows. Otherwise one block contains a readable and
    the unreadable row.
    """
    group = group_of("east", "west")
    east, west = group.fakes["east"], group.fakes["west"]
    unreadable = dataclasses.replace(ORDERS, stopped=True, unreadable="SCHEMA_UNKNOWN: why")
    east.source.tables.append(unreadable)
    east.source.time_us = east.now_us = 3
    if parted:
        east.write(1, now_us=3)
        west.write(1, now_us=4)
        east.source.time_us = 5
        east.held.append(east.source.block([1], table=2))
    else:
        west.write(1, now_us=4)
        east.held.append(east.source.block([1, 1], table=[0, 2]))
    east.arrive()
    west.now_us = 9
    group.clocks()
    service = group.consumers.service(CLIENT)
    _, content = service.get(1 << 20)
    assert content is not None
    assert rows_of(content) == ([("east", 0), ("west", 0)] if parted else [("east", 0)])
    with pytest.raises(ConsumerStoppedError, match=r"^east: the rows of shop\.orders cannot be read.*: why"):
        service.get(1 << 20)
    (status,) = group.consumers.statuses()
    assert status.state == STOPPED
    other = group.consumers.subscribe(8, r"shop\.audit")  # The filter of another consumer leaves the table out.
    assert other.get(1 << 20)[0] == -1


def test_group_a_member_whose_position_is_lost_stops_the_consumer_and_is_named() -> None:
    group = group_of("east", "west")
    group.fakes["east"].write(1, now_us=3)
    group.fakes["west"].trouble = PositionLostError("its binlog is purged")
    with pytest.raises(ConsumerStoppedError, match=r"^west: its binlog is purged"):
        group.consumers.service(CLIENT).get(1 << 20)


def test_group_consumers_have_filters_and_paces_of_their_own() -> None:
    group = group_of("east", "west")
    audit = group.consumers.subscribe(8, r"shop\.audit")
    for name in ("east", "west"):
        fake = group.fakes[name]
        fake.source.time_us = fake.now_us = 5
        fake.held.append(fake.source.block([2], table=[0, 1]))
        fake.arrive()
        fake.now_us = 6
    group.clocks()
    assert group.got(8) == [("east", 1), ("west", 1)]
    assert audit.acked.position != group.consumers.service(CLIENT).acked.position
    assert group.got() == [("east", 0), ("east", 1), ("west", 0), ("west", 1)]


def test_group_a_member_that_leaves_keeps_its_position_and_a_new_member_begins_with_its_window() -> None:
    group = group_of("east", "west")
    group.fakes["west"].write(1, now_us=2)
    group.fakes["east"].now_us = 3
    group.clocks()
    assert group.got() == [("west", 0)]
    group.consumers.close()
    west = group.fakes.pop("west")
    group.fakes["north"] = Fake("north")
    group.begin()
    west.write(1, now_us=4)
    group.fakes["north"].write(1, now_us=5)
    group.fakes["east"].now_us = group.fakes["north"].now_us = 6
    group.clocks()
    assert group.got() == [("north", 0)]
    group.consumers.close()
    group.fakes["west"] = west
    group.begin()
    west.now_us = 6
    group.clocks()
    assert group.got() == [("west", 1)], "from where it was; late, for what is younger is out"
    record = group.meta.ledger.group_consumer(CLIENT)
    assert record is not None
    assert [name for name, _ in record.cursor.members] == ["east", "north", "west"]


class Refusing(MemoryLedger):
    """Keeps nothing while it `refuses`."""

    refuses = False

    def update(self, transition: Transition):  # type: ignore[no-untyped-def]
        if self.refuses:
            raise MetaError("the disk is full")
        return super().update(transition)


def test_group_the_cursors_of_a_consumer_are_kept_for_all_members_or_none() -> None:
    """One durable write stores the cursors of all members, so a crash cannot separate them. Rows whose cursors were not stored are
    delivered again, and completely.
    """
    meta = Refusing()
    group = Group(Fake("east"), Fake("west"), meta=meta)
    group.consumers.subscribe(CLIENT)
    for name, now_us in (("east", 2), ("west", 3)):
        group.fakes[name].write(1, now_us=now_us)
        group.fakes[name].now_us = 4
    group.clocks()
    meta.refuses = True
    assert group.got() == [("east", 0), ("west", 0)]
    before = meta.ledger
    with pytest.raises(MetaError):
        group.consumers.keep()
    assert meta.ledger is before
    group.fakes["north"] = Fake("north")
    group.begin()
    with pytest.raises(MetaError):  # The start position of the new member is stored before anything is handed out.
        group.consumers.service(CLIENT)
    meta.refuses = False
    group.fakes["north"].now_us = 4
    group.clocks()
    assert group.got() == [("east", 0), ("west", 0)], "again, as it was"
    group.consumers.keep()
    group.begin()
    assert group.got() == []


def test_group_a_consumer_is_not_delayed_by_a_time_that_its_source_does_not_know() -> None:
    """On MariaDB and MySQL 5.7, SET timestamp changes the time of a transaction. A transaction of next year must not delay all others for
    a year.
    """
    group = group_of("east", "west")
    east, west = group.fakes["east"], group.fakes["west"]
    east.write(1, now_us=10 * FUTURE_US_MAX)
    east.now_us = west.now_us = 5
    group.clocks()
    assert group.got() == [("east", 0)]
    west.write(1, now_us=6)
    east.now_us = west.now_us = 7
    group.clocks()
    found: list[Row] = group.got()
    assert found == [("west", 0)]
    (status,) = group.consumers.statuses()
    assert status.late == 0


def test_group_times_that_go_backwards_within_a_member_do_not_change_its_order_for_a_consumer() -> None:
    group = group_of("east", "west")
    east, west = group.fakes["east"], group.fakes["west"]
    for now_us in (2, 8, 3, 3, 3, 3, 3):
        east.write(1, now_us=now_us)
    west.write(1, now_us=5)
    east.now_us = west.now_us = 9
    group.clocks()
    assert group.got() == [("east", 0), ("west", 0), *(("east", number) for number in range(1, 7))]
    (status,) = group.consumers.statuses()
    assert status.late == 0


def test_group_no_transaction_is_parted_for_a_consumer_by_one_that_comes_late() -> None:
    group = group_of("east", "west", wait_seconds=0.2)
    east, west = group.fakes["east"], group.fakes["west"]
    east.trouble = away()
    west.write(3, now_us=5)
    service = group.consumers.service(CLIENT)

    def part() -> list[Row]:
        content = service.get(1)[1]
        return rows_of(content) if content is not None else []

    assert wait_for("it goes on without east", part) == [("west", 0)]
    east.trouble = None
    east.write(1, now_us=3)
    assert part() + part() + part() == [("west", 1), ("west", 2), ("east", 0)]


def test_group_a_consumer_whose_position_is_before_a_member_s_window_waits_for_its_own_stream() -> None:
    """The live stream of the member `east` has read up to the end of the source, but the consumer's own stream of `east` is behind. So the
    newer row of `west` waits.
    """
    group = group_of("east", "west")
    east, west = group.fakes["east"], group.fakes["west"]
    east.write(1, now_us=3)
    east.read_alone = []
    east.restart()  # Its window begins after that.
    west.write(1, now_us=5)
    east.now_us = west.now_us = 9
    group.clocks()
    assert group.got() == []
    east.read_alone += east.blocks
    assert group.got() == [("east", 0)]
    assert group.got() == [("west", 0)]


def test_group_changes_ahead_of_a_consumer_end_at_transactions_also_within_blocks() -> None:
    source, window = Source(), Window(START, bytes_max=1 << 20)
    for number, sizes in enumerate(([1, 2], [1], [0, 3])):
        source.time_us = number
        window.put(source.block(sizes, open_events=2 if number < 2 else 0))
    reading = window.read(WindowPosition(START), 1 << 20, 100)
    assert reading is not None
    whole = ahead_of(reading)
    ended = [1, 3, 6, 8, 11]  # the number of rows up to the end of each transaction
    rows = [*range(11)]
    for count in range(1, len(ended)):
        first, rest = whole.first(count), whole.after(count)
        assert numbers_in(first) == rows[: ended[count - 1]]
        assert numbers_in(rest.pieces) == rows[ended[count - 1] :]
        again = window.read(end_of(first), 1 << 20, 100)
        assert again is not None
        assert numbers_in(again.pieces) == rows[ended[count - 1] :]
    assert whole.first(5) == whole.pieces
    assert not whole.after(5).pieces


def numbers_in(pieces: tuple[WindowPiece, ...]) -> list[int]:
    return [each for piece in pieces for each in numbers_of(piece.block, piece.first_event, piece.last_event)]
