"""Tests XA transactions: their rows appear at the position of the commit, whatever is between PREPARE and COMMIT, and never after a
rollback.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError, UnknownEventError
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.ports import PreparedTransactions
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.store.prepared import PreparedFiles
from tests.parser.scan.compressed_events import mariadb_rows
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, feed, not_hidden
from tests.parser.scan.test_framing import what

NUMBER = 7


def text_name(name: str) -> str:
    return f"X'{name.encode().hex()}',X'',1"


def prepare_event(make: EventFactory, name: str, *, one_phase: bool = False) -> bytes:
    return make.event(38, struct.pack("<BiII", one_phase, 1, len(name), 0) + name.encode())


def prepared(
    make: EventFactory, name: str, rows: list[bytes], table: str = "orders", *, one_phase: bool = False
) -> list[bytes]:
    head = [make.gtid(NUMBER), make.query(f"XA START {text_name(name)}"), make.table_map(5, table)]
    images = [make.rows(5, content=row) for row in rows]
    return [*head, *images, make.query(f"XA END {text_name(name)}"), prepare_event(make, name, one_phase=one_phase)]


def committed(make: EventFactory, name: str) -> list[bytes]:
    return [make.gtid(NUMBER + 1), make.query(f"XA COMMIT {text_name(name)}")]


def rolled_back(make: EventFactory, name: str) -> list[bytes]:
    return [make.gtid(NUMBER + 1), make.query(f"XA ROLLBACK {text_name(name)}")]


def scanner(records: PreparedTransactions, start: Position = START) -> Scanner:
    return Scanner(start=start, history=NoHistory(), captured=not_hidden, contiguous=True, prepared=records)


def rows_of(blocks: list[Block]) -> list[bytes]:
    return [body[29:] for _, body in what(blocks)[0]]


def test_rows_come_with_the_commit_and_at_its_position_identity() -> None:
    make = EventFactory()
    events = [*prepared(make, "a", [b"1", b"2"]), *make.transaction(20)]
    before = make.offset
    events += committed(make, "a")
    end = make.offset
    events += make.transaction(21)
    blocks = feed(scanner(MemoryPrepared()), events)
    found_rows, ends = what(blocks)
    assert [body[29:] for _, body in found_rows][1:3] == [b"1", b"2"]
    assert len(found_rows) == 4
    found = [begin for block in blocks for begin in block.event_transaction_offset.tolist()]
    assert found[0] < before < found[1] == found[2] < end < found[3]
    assert len(ends) == 4
    assert ends[2] == end


def test_rows_of_a_rollback_never_come_fidelity() -> None:
    make = EventFactory()
    blocks = feed(
        scanner(MemoryPrepared()), [*prepared(make, "a", [b"1"]), *rolled_back(make, "a"), *make.transaction(9)]
    )
    assert len(rows_of(blocks)) == 1
    assert sum(block.transaction_count for block in blocks) == 3


def test_one_phase_is_a_transaction_like_any_fidelity() -> None:
    make = EventFactory()
    blocks = feed(scanner(MemoryPrepared()), prepared(make, "a", [b"1", b"2"], one_phase=True))
    assert rows_of(blocks) == [b"1", b"2"]
    assert what(blocks)[1] == [make.offset]


def test_a_commit_of_what_was_prepared_before_the_stream_stops_it_fidelity() -> None:
    make = EventFactory()
    before = make.offset
    events = committed(make, "a")
    with pytest.raises(UnknownEventError, match="prepared before the stream began") as caught:
        feed(scanner(MemoryPrepared()), events)
    assert before < caught.value.offset < make.offset


def test_tables_that_are_not_captured_are_no_concern_fidelity() -> None:
    make = EventFactory()
    blocks = feed(scanner(MemoryPrepared()), [*prepared(make, "a", [b"1"], "hidden"), *committed(make, "a")])
    assert [(block.event_count, block.transaction_count) for block in blocks if block.event_count] == []
    assert sum(block.transaction_count for block in blocks) == 2


def test_a_record_outlives_the_engine_until_its_commit_was_acked_fidelity(tmp_path: Path) -> None:
    make = EventFactory()
    first = [*prepared(make, "a", [b"1", b"2"]), *prepared(make, "b", [b"3"])]
    middle = dataclasses.replace(START, offset=make.offset)
    second = committed(make, "a")
    after = dataclasses.replace(START, offset=make.offset)
    third = [*prepared(make, "c", []), *committed(make, "c"), *committed(make, "b")]
    acked = [START]
    feed(scanner(PreparedFiles(tmp_path, lambda: acked[0])), first)
    for _ in range(2):  # The commit is read again until it is acked.
        blocks = feed(scanner(PreparedFiles(tmp_path, lambda: acked[0]), middle), second)
        assert rows_of(blocks) == [b"1", b"2"]
    assert len(list(tmp_path.glob("*.committed"))) == 1
    acked[0] = dataclasses.replace(after, offset=after.offset + 16)
    assert rows_of(feed(scanner(PreparedFiles(tmp_path, lambda: acked[0]), after), third)) == [b"3"]
    assert len(list(tmp_path.glob("*.committed"))) == 2
    assert not list(tmp_path.glob("*.prepared"))


def test_a_name_that_is_used_again_keeps_its_rows_apart_when_it_is_read_again_fidelity(tmp_path: Path) -> None:
    make = EventFactory()
    feed(scanner(PreparedFiles(tmp_path, lambda: START)), prepared(make, "a", [b"first"]))
    middle = dataclasses.replace(START, offset=make.offset)
    rest = [*committed(make, "a"), *prepared(make, "a", [b"second"])]
    feed(scanner(PreparedFiles(tmp_path, lambda: START), middle), rest)
    for _ in range(2):
        records = PreparedFiles(tmp_path, lambda: START)
        records.rewind(middle)
        blocks = feed(scanner(records, middle), rest)
        assert rows_of(blocks) == [b"first"]
    end = dataclasses.replace(START, offset=make.offset)
    records.rewind(end)
    assert rows_of(feed(scanner(records, end), committed(make, "a"))) == [b"second"]


def test_a_transaction_prepared_after_the_position_of_a_restart_is_recorded_again_fidelity() -> None:
    make, records = EventFactory(), MemoryPrepared()
    feed(scanner(records), prepared(make, "a", [b"1"]))
    middle = dataclasses.replace(START, offset=make.offset)
    behind = prepared(make, "b", [b"2"])
    feed(scanner(records, middle), behind)
    records.rewind(middle)
    last = dataclasses.replace(START, offset=make.offset)
    assert rows_of(feed(scanner(records, last), committed(make, "a"))) == [b"1"]
    with pytest.raises(UnknownEventError, match="prepared before the stream began"):
        feed(scanner(records, dataclasses.replace(START, offset=make.offset)), committed(make, "b"))


@pytest.mark.parametrize("last", ["xid", "COMMIT", "gtid", "prepare alone"])
def test_an_xa_transaction_that_is_not_prepared_is_refused_fidelity(last: str) -> None:
    make = EventFactory()
    if last == "prepare alone":
        events = [prepare_event(make, "a")]
    else:
        events = prepared(make, "a", [b"1"])[:4]
        events.append(make.xid() if last == "xid" else make.gtid(9) if last == "gtid" else make.query(last))
    with pytest.raises(BinlogFormatError):
        feed(scanner(MemoryPrepared()), events)


def test_mariadb_flags_its_gtid_and_may_compress_the_rows_fidelity() -> None:
    make = EventFactory()
    name = text_name("a")
    events = [make.format_description(b"11.4.5-MariaDB"), make.mariadb_gtid(7, flags=0x40), make.table_map(5)]
    events += [mariadb_rows(make, 23, b"z" * 900), make.query(f"XA END {name}"), prepare_event(make, "a")]
    events += [make.mariadb_gtid(8, flags=0x80 | 1), make.query(f"XA COMMIT {name}")]
    blocks = feed(scanner(MemoryPrepared()), events)
    assert [body[-900:] for _, body in what(blocks)[0]] == [b"z" * 900]
    assert what(blocks)[1][-1] == make.offset


decisions = st.lists(st.tuples(st.sampled_from("pcrt"), st.sampled_from("abc")), max_size=30)


@settings(deadline=None)
@given(decisions)
def test_any_order_of_prepares_and_decisions_is_what_a_server_would_hold_fidelity(steps: list[tuple[str, str]]) -> None:
    make, open_, expected, events = EventFactory(), dict[str, bytes](), list[bytes](), list[bytes]()
    for number, (step, name) in enumerate(steps):
        if step == "p" and name not in open_:
            open_[name] = b"row%d" % number
            events += prepared(make, name, [open_[name]])
        elif step == "t":
            events += make.transaction(number)
            expected.append(b"\x01\x01\x00\x07\x00\x00\x00")
        elif step == "c" and name in open_:
            events += committed(make, name)
            expected.append(open_.pop(name))
        elif step == "r" and open_.pop(name, b""):
            events += rolled_back(make, name)
    assert rows_of(feed(scanner(MemoryPrepared()), events)) == expected
