"""Tests the window of a stream: readers at different positions get everything that follows, complete and once, whatever the stream does."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.contracts import NO_SESSION, Block, LoggedStatement, TableChange, TableChangeKind
from sluice.cdc_engine.errors import ConsumerStoppedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.window.positions import WindowPiece, WindowPosition
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import SERVER, Source, gtid_set, numbers_of

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)


def numbers(pieces: tuple[WindowPiece, ...]) -> list[int]:
    return [number for each in pieces for number in numbers_of(each.block, each.first_event, each.last_event)]


def drained(window: Window, position: WindowPosition, bytes_max: int = 1 << 20) -> tuple[list[int], WindowPosition]:
    found: list[int] = []
    while (reading := window.read(position, bytes_max, 1 << 20)) is not None and reading.pieces:
        found += numbers(reading.pieces)
        position = reading.end
    return found, position


@pytest.mark.usefixtures("parts_at_once")
def test_readers_at_different_positions_read_all_of_it() -> None:
    window, source = Window(START, bytes_max=1 << 20), Source()
    window.put(source.block([2, 3], 2))
    first, middle = drained(window, WindowPosition(START))
    window.put(source.block([1, 4]))
    assert (first, drained(window, WindowPosition(START))[0]) == ([*range(7)], [*range(12)])
    assert drained(window, middle)[0] == [*range(7, 12)]
    assert (middle.events, middle.begun is not None) == (2, True)


def test_a_reading_ends_with_a_transaction_where_one_ends_within_its_limits() -> None:
    window, source = Window(START, bytes_max=1 << 20), Source()
    window.put(source.block([2, 3, 9], size=16))
    reading = window.read(WindowPosition(START), 6 * 16, 1 << 20)
    assert reading is not None
    assert (numbers(reading.pieces), reading.end.events) == ([*range(5)], 0)
    rest = window.read(reading.end, 6 * 16, 1 << 20)
    assert rest is not None
    assert (numbers(rest.pieces), rest.end.events) == ([*range(5, 11)], 6)


def test_a_reading_ends_before_a_table_that_comes_under_another_name_and_not_before_a_stop_consumer() -> None:
    window, source = Window(START, bytes_max=1 << 20), Source()
    renamed = TableChange(
        kind=TableChangeKind.SCHEMA,
        database="shop",
        table="orders",
        order_key=1,
        time_us=1,
        renamed_from="shop.drafts",
    )
    for changes in ((), (renamed,), (dataclasses.replace(renamed, kind=TableChangeKind.STOPPED, renamed_from=""),)):
        window.put(source.block([2], changes=changes))
    position, found = WindowPosition(START), list[list[int]]()
    while (reading := window.read(position, 1 << 20, 1 << 20)) is not None and reading.pieces:
        found.append(numbers(reading.pieces))
        position = reading.end
    assert found == [[0, 1], [2, 3, 4, 5]]


def test_blocks_above_the_bounds_are_removed_and_their_readers_get_an_error() -> None:
    window, source = Window(START, bytes_max=64), Source()
    for _ in range(4):
        window.put(source.block([2], size=16))
    assert window.read(WindowPosition(START), 1 << 20, 1 << 20) is None
    assert drained(window, WindowPosition(window.begin))[0] == [*range(4, 8)]


def test_a_position_at_the_same_offset_with_another_executed_set_is_another_position() -> None:
    """Streams that are requested by GTID set begin at the same offset. Each stream leaves out the transactions that its reader already had,
    so the same offset can stand for different positions.
    """
    window, source = Window(START, bytes_max=64), Source(transaction=6)
    window.put(source.block([1, 1, 1], size=16))
    ended = window.read(WindowPosition(START), 1, 1 << 20)
    assert ended is not None
    here = ended.end.position
    for executed, found in ((here.gtid_set, [1, 2]), (gtid_set(5), None), (gtid_set(9), None), ("", None)):
        position = WindowPosition(dataclasses.replace(here, gtid_set=executed))
        assert window.has(position) == (found is not None), executed
        assert found is None or drained(window, position)[0] == found
    window.put(source.block([4], size=16))  # what was read goes, and the place is the oldest
    assert window.begin.gtid_set == gtid_set(9)
    assert not window.has(WindowPosition(dataclasses.replace(window.begin, gtid_set=gtid_set(8))))


@pytest.mark.usefixtures("parts_at_once")
def test_an_open_transaction_that_comes_again_is_read_once() -> None:
    window, source = Window(START, bytes_max=1 << 20), Source()
    window.put(source.block([1], 3))
    found, position = drained(window, WindowPosition(START))
    window.drop_open()
    again = Source(offset=source.offset - 3 * 19, number=1, transaction=1)
    window.put(again.block([5]))
    assert found + drained(window, position)[0] == [*range(6)]


@pytest.mark.usefixtures("parts_at_once")
def test_another_transaction_than_the_one_that_was_begun_is_read_whole_failover() -> None:
    """The server dies after the reader has read a part of a transaction. The new server has committed another transaction before it. The
    first reading reports this (`restarted`), and the reader gets both transactions from their first rows on.
    """
    window = Window(START, bytes_max=1 << 20)
    window.put(Source().block([], 4))
    begun = window.read(WindowPosition(START), 3 * 16, 1 << 20)
    assert begun is not None
    window.drop_open()
    other = Source(epoch=2, number=100)
    window.put(other.block([], 2))
    first = window.read(begun.end, 1 << 20, 1 << 20)
    assert first is not None
    window.put(other.block([1]))
    other.number = 0
    window.put(other.block([4]))
    rest = window.read(first.end, 1 << 20, 1 << 20)
    assert rest is not None
    assert (numbers(first.pieces), first.restarted, first.end.events) == ([100, 101], True, 2)
    assert (numbers(rest.pieces), rest.restarted) == ([102, *range(4)], False)


@pytest.mark.usefixtures("parts_at_once")
@pytest.mark.parametrize("is_another", [True, False], ids=["another", "the-same"])
def test_an_own_stream_continues_within_the_transaction_that_was_begun_and_no_other(*, is_another: bool) -> None:
    """The reader has already taken the first part of a transaction. The own stream skips this part as it arrives, because it may be larger
    than the window. If another transaction arrives (`is_another`), the reader gets all of it.
    """
    live, source = Window(START, bytes_max=1 << 20), Source()
    live.put(source.block([], 9, size=16))
    begun = live.read(WindowPosition(START), 7 * 16, 1 << 20)
    assert begun is not None
    own, again = Window(START, bytes_max=2 * 16, waits=True), Source(number=100 if is_another else 0)
    again.offset += 64 if is_another else 0
    assert own.read(begun.end, 1 << 20, 1 << 20) is not None
    position, found = begun.end, list[int]()
    for ends in ([], [], [], [], [3]):
        own.put(again.block(ends, 0 if ends else 2, size=16))
        more, position = drained(own, position, bytes_max=20)
        found += more
        assert own.has(position)
    assert found == ([*range(100, 111)] if is_another else [*range(7, 11)])


@pytest.mark.usefixtures("parts_at_once")
@pytest.mark.seeds
@pytest.mark.parametrize("block_count", [1, 4])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("mariadb", [True, False])
def test_a_position_that_counts_other_row_events_is_refused_and_a_true_one_is_not(
    block_count: int, *, own: bool, mariadb: bool
) -> None:
    """A position that counts other row events than the window would skip row events of its transaction. A count beyond the transaction's
    end would skip later transactions. On MariaDB, the offset of the last row event is not compared.
    """
    start = dataclasses.replace(START, gtid_set="0-1-5" if mariadb else "")
    live, source = Window(start, bytes_max=1 << 20), Source()
    live.put(source.block([], 9, size=16))
    begun = live.read(WindowPosition(start), 7 * 16, 1 << 20)
    assert begun is not None

    def read_on(position: WindowPosition) -> list[int]:
        window, again, found = Window(start, bytes_max=1 << 20, waits=own), Source(), list[int]()
        for ends, still_open in [([], 2)] * (block_count - 1) + [([9 - 2 * (block_count - 1), 5], 0)]:
            window.put(again.block(ends, still_open, size=16))
            more, position = drained(window, position)
            found += more
        return found

    assert read_on(begun.end) == [*range(7, 14)]
    unknown = dataclasses.replace(begun.end, events=8, last=0)
    assert read_on(unknown) == [*range(8, 14)], "an unknown offset is not compared"
    assert read_on(dataclasses.replace(unknown, events=9)) == [*range(9, 14)], "the transaction's last row event"
    for events in (2, 6, 8, 9, 10, 14, 20):
        other = dataclasses.replace(begun.end, events=events)
        if mariadb and events <= 9:
            assert read_on(other) == [*range(events, 14)]
            continue
        said = (
            r"in the binlog, the row event has the offset \d+\..*transactional_id" if events <= 9 else r"is missing\."
        )
        with pytest.raises(ConsumerStoppedError, match=said):
            read_on(other)
    with pytest.raises(ConsumerStoppedError, match="is missing"):
        read_on(dataclasses.replace(unknown, events=10))


@pytest.mark.usefixtures("parts_at_once")
def test_a_statement_names_the_transaction_that_it_begins() -> None:
    """With CREATE TABLE … SELECT, the statement comes first, then rows whose position is different. The statement leaves the window before
    the rows arrive.
    """
    live, own = Window(START, bytes_max=1 << 20), Window(START, bytes_max=1 << 20, waits=True)
    statement = LoggedStatement(
        text="CREATE TABLE t", database="shop", offset=20, length=9, seconds=1, server=1, session=NO_SESSION
    )
    source = Source()
    blocks = [dataclasses.replace(source.block([]), statement=statement), source.block([], 1), source.block([], 2)]
    for each in blocks:
        live.put(each)
    begun = live.read(WindowPosition(START), 16, 2)
    assert begun is not None
    assert (numbers(begun.pieces), begun.end.events) == ([0], 2)
    found = []
    for each in blocks:
        own.put(each)
        again = own.read(begun.end, 1 << 20, 1 << 20)
        assert again is not None
        found.append((numbers(again.pieces), again.restarted))
    assert found == [([], False), ([], False), ([1, 2], False)]


@pytest.mark.usefixtures("parts_at_once")
def test_what_came_of_a_transaction_that_was_dropped_names_no_other_one_failover() -> None:
    own, source = Window(START, bytes_max=1 << 20, waits=True), Source()
    own.put(source.block([], 2))
    _, position = drained(own, WindowPosition(START))
    assert own.read(position, 1, 1) is not None  # The statement leaves the window here.
    own.drop_open()
    own.put(Source(epoch=2, number=100).block([1]))
    reading = own.read(position, 1 << 20, 1 << 20)
    assert reading is not None
    assert (numbers(reading.pieces), reading.restarted) == ([100], True)


def test_what_was_put_before_is_not_put_twice() -> None:
    window = Window(START, bytes_max=1 << 20)
    window.put(Source().block([2, 2]))
    window.put(Source().block([2, 2, 3]))
    assert drained(window, WindowPosition(START))[0] == [*range(7)]


def test_a_window_that_waits_is_read_whole_though_it_holds_little() -> None:
    window, source = Window(START, bytes_max=32, waits=True), Source()
    position, found = WindowPosition(START), list[int]()
    for ends, open_events in [([1], 2), ([1], 0)] * 20:
        window.put(source.block(ends, open_events, size=16))
        more, position = drained(window, position, bytes_max=20)
        found += more
    assert found == [*range(80)]
    assert window.fill_bytes == 0


def test_a_put_by_a_thread_whose_stream_was_dropped_is_refused() -> None:
    window, source = Window(START, bytes_max=1 << 20), Source()
    window.put(source.block([1], 1))
    window.close()
    with pytest.raises(InterruptedError):
        window.put(source.block([1]))


Division = st.tuples(st.lists(st.integers(0, 4), max_size=4), st.integers(0, 3)).filter(
    lambda division: bool(division[0] or division[1])
)
Divisions = st.lists(Division, min_size=1, max_size=12)


@given(
    divisions=Divisions, sizes=st.lists(st.integers(1, 200), min_size=1, max_size=8), drops=st.sets(st.integers(0, 11))
)
def test_any_division_of_a_stream_read_in_any_steps_is_the_stream_consumer(
    divisions: list[tuple[list[int], int]], sizes: list[int], drops: set[int]
) -> None:
    window, source = Window(START, bytes_max=1 << 20), Source()
    position, found, open_events = WindowPosition(START), list[int](), 0
    for index, (ends, more) in enumerate(divisions):
        block: Block = source.block(ends, more)
        window.put(block)
        reading = window.read(position, sizes[index % len(sizes)], 1 << 20)
        assert reading is not None
        found, position = found + numbers(reading.pieces), reading.end
        open_events = more if ends else open_events + more
        if index in drops and open_events:
            window.drop_open()
            source.offset -= open_events * 19
            source.number -= open_events
            source.begun = None
            for _ in range(open_events):
                window.put(source.block([], 1))
    window.put(source.block([1]))
    assert found + drained(window, position)[0] == [*range(source.number)]


def test_a_window_keeps_a_bounded_number_of_blocks_without_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of an idle source have transactions but no row events, so the bound on bytes never removes them."""
    monkeypatch.setattr("sluice.cdc_engine.store.window.window.BLOCKS_MAX", 8)
    window, source = Window(START, bytes_max=1 << 20), Source()
    ends = []
    for _ in range(20):
        window.put(source.block([0]))
        ends.append(source.offset)
    assert window.begin.offset == ends[-9], "the last eight blocks are kept"
    assert window.read(WindowPosition(START), 1 << 20, 1 << 20) is None, (
        "a position before them is no longer in the window"
    )
    assert window.has(WindowPosition(window.begin))


def test_a_window_remembers_a_bounded_number_of_executed_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an executed set was dropped, the window computes it again, and still finds the position."""
    monkeypatch.setattr("sluice.cdc_engine.store.window.window.EXECUTED_MAX", 4)
    window, source = Window(START, bytes_max=1 << 20), Source(transaction=1)
    window.put(source.block([1] * 20, size=16))
    position, seen = WindowPosition(START), []
    while (reading := window.read(position, 16, 1 << 20)) is not None and reading.pieces:
        position = reading.end
        seen.append(position)
    assert len(seen) == 20
    assert all(window.has(each) for each in seen)
    assert len(window._executed) == 4


@pytest.mark.parametrize("waits", [False, True])
def test_readers_get_no_row_of_a_small_transaction_before_its_end(*, waits: bool) -> None:
    """Defect 1026: consumers got rows that their transaction undid afterwards. On MariaDB, consumers then missed as many other rows."""
    window, source = Window(START, bytes_max=1 << 20, waits=waits), Source()
    window.put(source.block([2], 3))
    found, position = drained(window, WindowPosition(START))
    assert (found, drained(window, position)) == ([0, 1], ([], position))
    window.drop_open()
    window.put(Source(offset=source.offset - 19, number=4, transaction=1).block([1]))
    assert drained(window, position)[0] == [4]
