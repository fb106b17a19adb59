"""Tests what the scan of a stream finds, and what it refuses, on events that are built by hand."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.block import end_position
from sluice.cdc_engine.binlog.events.event_types import HEADER_BYTES, NAMES
from sluice.cdc_engine.binlog.events.table_map import parse_table_map
from sluice.cdc_engine.contracts import Block, RowEventKind, TableChange, TableChangeKind
from sluice.cdc_engine.errors import BinlogFormatError, ChecksumError, PositionLostError, UnknownEventError
from sluice.cdc_engine.gtid import GtidSet
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.checksum import crc32
from sluice.cdc_engine.parser.scan.state import ScanStatus
from sluice.cdc_engine.position import Position, order_key
from tests.parser.scan.event_factory import (
    SERVER,
    START,
    TIME,
    EventFactory,
    NoHistory,
    feed,
    feed_lazily,
    packets,
    scanner,
)

OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_a_transaction_is_found_with_offsets_kinds_and_gtid() -> None:
    make = EventFactory()
    events = [make.gtid(41, time_us=1_700_000_123_456_789), make.query("BEGIN"), make.table_map(5)]
    firsts = []
    for event_type in (30, 31, 32, 23, 24, 25, 39):
        firsts.append(make.offset)
        events.append(make.rows(5, event_type))
    events.append(make.xid())
    (block,) = feed(scanner(), events)
    assert block.event_position.tolist() == firsts
    insert, update, delete = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
    assert block.event_kind.tolist() == [insert, update, delete, insert, update, delete, update]
    assert block.event_version.tolist() == [2, 2, 2, 1, 1, 1, 3]
    assert [block.tables[index].name for index in block.event_table] == ["shop.orders"] * 7
    assert block.event_time_us.tolist() == [1_700_000_123_456_789] * 7
    assert block.transaction_events.tolist() == [7]
    assert block.transaction_end.tolist() == [make.offset]
    assert block.transaction_time_us.tolist() == [1_700_000_123_456_789]
    assert block.gtid_sources[block.transaction_source[0]] == SERVER
    assert block.transaction_number.tolist() == [41]
    bodies = [
        block.buffer[offset : offset + length].tobytes()
        for offset, length in zip(block.event_offset, block.event_length, strict=True)
    ]
    assert bodies == [event[:-4] for event in events[3:10]]


def test_the_commit_time_of_the_first_server_wins_and_a_header_time_serves_without() -> None:
    make = EventFactory()
    events = [make.gtid(1, time_us=1_700_000_009_000_000, original_us=1_700_000_001_000_001), make.query("BEGIN")]
    events += [make.query("COMMIT"), make.gtid(2), make.query("BEGIN"), make.xid()]
    events += [make.anonymous(1_700_000_005_000_005), make.query("BEGIN"), make.xid()]
    (block,) = feed(scanner(), events)
    assert block.transaction_time_us.tolist() == [1_700_000_001_000_001, TIME * 1_000_000, 1_700_000_005_000_005]
    assert block.transaction_source.tolist() == [0, 0, -1]


def test_a_known_table_map_never_reaches_the_history_again() -> None:
    make, history = EventFactory(), NoHistory()
    events = [event for number in range(100) for event in make.transaction(number + 1)]
    (block,) = feed(scanner(history), events)
    assert block.event_count == block.transaction_count == 100
    assert len(history.resolved) == 1


def test_a_table_map_whose_bytes_changed_is_looked_up_again() -> None:
    make, history = EventFactory(), NoHistory()
    events = [*make.transaction(1)]
    events += [make.query("BEGIN"), make.table_map(5, "basket"), make.rows(5), make.xid()]
    (block,) = feed(scanner(history), events)
    assert [block.tables[index].table for index in block.event_table] == ["orders", "basket"]


def test_a_table_under_a_new_id_is_resolved_from_memory_until_a_ddl() -> None:
    make, history = EventFactory(), NoHistory()
    events = [*make.transaction(1, 5), *make.transaction(2, 6), make.query("ALTER TABLE orders ADD x INT")]
    events += make.transaction(3, 6)
    feed(scanner(history), events)
    assert [table for table, _ in history.resolved] == ["orders", "orders"]


def test_many_table_ids_find_their_slots_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at, "TABLES_MAX", 3000)
    make = EventFactory()
    events = [event for number in range(7000) for event in make.transaction(number + 1, 1000 + 1024 * number)]
    blocks = feed(scanner(), events)
    assert sum(block.event_count for block in blocks) == 7000


def test_rows_of_a_table_that_is_not_captured_are_dropped_and_counted() -> None:
    make = EventFactory()
    events = [
        make.query("BEGIN"),
        make.table_map(5, "hidden"),
        make.table_map(6),
        make.rows(5),
        make.rows(6),
        make.xid(),
    ]
    scan = scanner()
    (block,) = feed(scan, events)
    assert block.event_count == 1
    assert scan.counters()["dropped_row_events"] == 1


def test_the_dummy_that_ends_a_statement_carries_nothing() -> None:
    make = EventFactory()
    (block,) = feed(scanner(), [make.query("BEGIN"), make.rows(0xFFFFFF, content=b""), make.xid()])
    assert block.event_count == 0
    assert block.transaction_count == 1


def test_heartbeats_and_harmless_events_are_counted() -> None:
    make = EventFactory()
    harmless = [make.event(event_type, b"x" * 20) for event_type in (29, 3, 5, 13, 14, 160, 161, 28, 36, 37, 164)]
    scan = scanner()
    assert feed(scan, [make.event(27, b"binlog.000007", artificial=True), *harmless]) == []
    assert scan.counters()["heartbeats"] == 1
    assert scan.counters()["ignored_events"] == len(harmless)


def test_an_unknown_event_that_a_replica_may_ignore_is_ignored() -> None:
    make, scan = EventFactory(), scanner()
    feed(scan, [make.event(77, b"", flags=0x80)])
    assert scan.counters()["ignored_events"] == 1


@pytest.mark.parametrize("event_type", [1, 6, 8, 10, 12, 20, 21, 22, 26, 77, 200])
def test_an_event_that_could_carry_rows_stops_after_what_came_before(event_type: int) -> None:
    make = EventFactory()
    before = make.transaction(1)
    begin = make.offset
    stream = feed_lazily(scanner(), [*before, make.event(event_type, b"x" * 40)])
    assert next(stream).transaction_count == 1
    with pytest.raises(UnknownEventError, match=NAMES.get(event_type, f"type {event_type}")) as caught:
        next(stream)
    assert (caught.value.file, caught.value.offset) == (START.file, begin)


def test_offsets_continue_above_four_gib_though_the_wire_wraps() -> None:
    first = (1 << 32) - 150
    make = EventFactory(offset=first)
    (block,) = feed(
        scanner(start=dataclasses.replace(START, offset=first), contiguous=True), make.transaction(1, rows=20)
    )
    assert block.transaction_end.tolist() == [make.offset]
    assert make.offset > 1 << 32
    assert (np.diff(block.event_position) > 0).all()


def test_events_that_are_not_in_the_file_do_not_move_the_offset() -> None:
    make = EventFactory()
    events = [make.rotate("binlog.000008", 4), make.format_description(artificial=True), *make.transaction(1)]
    scan = scanner(contiguous=True)
    beginning, block = feed(scan, events)
    assert beginning.transaction_end.tolist() == [4]
    assert (block.file, scan.position.offset) == ("binlog.000008", make.offset)


def test_events_without_an_end_position_count_by_their_length() -> None:
    """Within a transaction, MariaDB 11 writes no end positions into events. The scan then adds up the lengths of the events. If the server
    has skipped events, the next event with an end position corrects the offset.
    """
    make = EventFactory()
    events = [make.mariadb_gtid(1)]
    begin = make.offset
    for event in (make.table_map(5), make.rows(5, 23), make.rows(5, 23)):
        bare = event[:13] + bytes(4) + event[17:-4]
        events.append(bare + zlib.crc32(bare).to_bytes(4, "little"))
    make.offset += 60
    (block,) = feed(scanner(), [*events, make.xid()])
    assert block.event_position.tolist() == [begin + len(events[1]), begin + len(events[1]) + len(events[2])]
    assert block.transaction_end.tolist() == [make.offset]


def test_a_gap_is_an_error_where_the_server_sends_everything_and_fine_where_it_skips() -> None:
    make = EventFactory()
    first = make.transaction(1)
    make.offset += 500
    second = make.transaction(2)
    blocks = feed(scanner(), [*first, *second])
    assert blocks[-1].transaction_end.tolist()[-1] == make.offset
    with pytest.raises(BinlogFormatError, match="part of the stream is missing"):
        feed(scanner(contiguous=True), [*first, *second])


def test_an_offset_that_goes_back_is_an_error() -> None:
    make = EventFactory()
    first = make.transaction(1)
    make.offset -= 40
    with pytest.raises(BinlogFormatError, match="part of the stream is missing"):
        feed(scanner(), [*first, make.query("BEGIN")])


@pytest.mark.parametrize("bit", [0, 8 * 30, -1])
def test_one_flipped_bit_is_a_checksum_error_at_its_event(bit: int) -> None:
    make = EventFactory()
    events = make.transaction(1)
    begin = sum(len(event) for event in events[:3]) + START.offset
    broken = bytearray(events[3])
    index = bit % (8 * len(broken))
    broken[index // 8] ^= 1 << (index % 8)
    with pytest.raises(ChecksumError) as caught:
        feed(scanner(), [*events[:3], bytes(broken), events[4]])
    assert caught.value.offset == begin


def test_without_checksums_the_format_description_says_so() -> None:
    make = EventFactory()
    rotate = make.rotate("binlog.000008")
    make.checksum = False
    _, block = feed(scanner(), [rotate, make.format_description(), *make.transaction(1)])
    assert block.transaction_end.tolist() == [make.offset]
    assert block.event_length.tolist() == [19 + 8 + 2 + 7]


def test_a_format_description_of_other_row_headers_is_refused() -> None:
    make = EventFactory()
    event = bytearray(make.format_description())
    event[19 + 57 + 18] = 6
    event[-4:] = zlib.crc32(bytes(event[:-4])).to_bytes(4, "little")
    with pytest.raises(BinlogFormatError, match="headers of row events"):
        feed(scanner(), [bytes(event)])


def test_rows_without_their_table_map_or_outside_a_transaction_are_refused() -> None:
    make = EventFactory()
    with pytest.raises(BinlogFormatError, match="without a table map"):
        feed(scanner(), [make.query("BEGIN"), make.rows(5)])
    make = EventFactory()
    with pytest.raises(BinlogFormatError, match="outside any transaction"):
        feed(scanner(), [make.table_map(5)])
    make = EventFactory()
    events = [*make.transaction(1), make.query("BEGIN"), make.rows(5)]
    # The table has a table map, but only in the previous transaction.
    with pytest.raises(BinlogFormatError, match="without a table map"):
        feed(scanner(), events)


def test_half_a_transaction_is_refused() -> None:
    make = EventFactory()
    half = [make.query("BEGIN"), make.table_map(5), make.rows(5)]
    for next_event in (make.query("BEGIN"), make.gtid(2), make.mariadb_gtid(3)):
        with pytest.raises(BinlogFormatError, match="half a transaction"):
            feed(scanner(), [*half, next_event])
    with pytest.raises(BinlogFormatError, match="inside a transaction"):
        feed(scanner(), [*half, make.rotate("binlog.000008")])


def test_a_ddl_is_a_block_alone_with_its_transaction_end() -> None:
    make, history = EventFactory(), NoHistory()
    change = TableChange(kind=TableChangeKind.SCHEMA, database="shop", table="t", order_key=1, time_us=2)
    history.changes = (change,)
    events = [*make.transaction(1), make.gtid(2), make.query("CREATE TABLE t (a INT)", "db")]
    end = make.offset
    events += make.transaction(3)
    blocks = feed(scanner(history), events)
    assert [(b.event_count, b.transaction_count, len(b.changes)) for b in blocks] == [(1, 1, 0), (0, 1, 1), (1, 1, 0)]
    assert blocks[1].transaction_end.tolist() == [end]
    assert blocks[1].transaction_number.tolist() == [2]
    assert history.statements == [("CREATE TABLE t (a INT)", "db", end)]
    assert [b.start_gtid_set for b in blocks] == ["", f"{SERVER}:1", f"{SERVER}:1-2"]


def test_a_ddl_within_a_transaction_has_no_end_of_its_own() -> None:
    make, history = EventFactory(), NoHistory()
    history.changes = (TableChange(kind=TableChangeKind.SCHEMA, database="s", table="t", order_key=1, time_us=2),)
    events = [make.gtid(1), make.query("BEGIN"), make.query("CREATE TABLE t (a INT) START TRANSACTION")]
    events += [make.table_map(5), make.rows(5), make.xid()]
    blocks = feed(scanner(history), events)
    assert [(b.event_count, b.transaction_count, len(b.changes)) for b in blocks] == [(0, 0, 1), (1, 1, 0)]


def test_mariadb_a_gtid_begins_and_a_standalone_one_does_not() -> None:
    make, history = EventFactory(), NoHistory()
    events = [make.format_description(b"11.4.5-MariaDB-log"), make.mariadb_gtid(7), make.table_map(5), make.rows(5, 23)]
    events += [make.xid(), make.mariadb_gtid(8, domain=3, flags=1), make.query("CREATE TABLE t (a INT)")]
    events += [make.mariadb_gtid(9), make.table_map(5), make.rows(5, 23), make.query("COMMIT")]
    scan = scanner(history)
    blocks = feed(scan, events)
    assert [(b.event_count, b.transaction_count) for b in blocks] == [(1, 1), (0, 1), (1, 1)]
    assert blocks[-1].gtid_sources == ["0-9", "3-9"]
    assert [b.start_gtid_set for b in blocks] == ["", "0-9-7", "0-9-7,3-9-8"]
    assert scan.position.gtid_set == "0-9-9,3-9-8"


def test_a_stopped_table_is_reported_once_and_its_rows_are_dropped() -> None:
    make, history = EventFactory(), NoHistory()
    history.stopped = {"orders"}
    events = [make.query("BEGIN"), make.table_map(4, "basket"), make.rows(4), make.table_map(5)]
    stop = make.offset  # The first dropped row event begins here.
    events += [make.rows(5), make.rows(4), make.xid(), make.query("ALTER TABLE x ADD y INT"), *make.transaction(2)]
    scan = scanner(history)
    blocks = feed(scan, events)
    changes = [change for block in blocks for change in block.changes]
    assert [(c.kind, c.table, c.state) for c in changes] == [(TableChangeKind.STOPPED, "orders", "SCHEMA_UNKNOWN")]
    assert changes[0].order_key == order_key(1, 7, stop)
    assert sum(block.event_count for block in blocks) == 2
    assert scan.counters()["dropped_row_events"] == 2
    assert all(not block.event_count for block in blocks if block.changes)


def test_a_statement_is_read_in_the_clients_character_set() -> None:
    make, history = EventFactory(), NoHistory()
    latin1 = b"\x00" + bytes(4) + b"\x01" + bytes(8) + b"\x06\x03std" + b"\x04\x08\x00\x08\x00\x08\x00"
    event = make.query("CREATE TABLE caf# (a INT)", status=latin1).replace(b"caf#", b"caf\xe9")
    event = event[:-4] + zlib.crc32(event[:-4]).to_bytes(4, "little")
    feed(scanner(history), [event])
    assert history.statements[0][0] == "CREATE TABLE café (a INT)"


def previous(make: EventFactory, gtids: str) -> bytes:
    return make.event(35, GtidSet.parse(gtids).encoded())


def test_an_unknown_executed_set_is_learnt_from_the_next_file() -> None:
    make = EventFactory()
    first = make.transaction(41)
    rotated = [make.rotate("binlog.000008"), make.format_description(), previous(make, f"{SERVER}:1-41")]
    scan = scanner(executed_known=False)
    blocks = feed(scan, [*first, *rotated, *make.transaction(42)])
    assert [(b.start_gtid_set, b.transaction_source.tolist()) for b in blocks] == [
        ("", [-1]),
        ("", [-1]),  # The position at which the file begins.
        (f"{SERVER}:1-41", [-1]),  # The position at which the file ends until something is written.
        (f"{SERVER}:1-41", [0]),
    ]
    assert scan.position.gtid_set == f"{SERVER}:1-42"


@pytest.mark.parametrize("start_us", [0, 7_000_000])
def test_the_position_where_a_file_begins_has_the_time_of_the_last_commit_failover(start_us: int) -> None:
    """The position does not use the time in the event header, because the server that begins the file sets this time. On a replica that is
    behind, the time is later than the commits that follow.
    """
    make = EventFactory(seconds=TIME + 3600)
    begin = [make.rotate("binlog.000008"), make.format_description(), previous(make, f"{SERVER}:1-40")]
    blocks = feed(scanner(start=dataclasses.replace(START, time_us=start_us), executed_known=False), begin)
    assert [block.transaction_time_us.tolist() for block in blocks] == [[start_us], [start_us]]
    committed_us = TIME * 1_000_000 + 5
    events = [make.gtid(41, time_us=committed_us), make.query("BEGIN"), make.xid()]
    begin = [make.rotate("binlog.000009"), make.format_description(), previous(make, f"{SERVER}:1-41")]
    blocks = feed(scanner(executed_known=False), [*events, *begin])
    assert [block.transaction_time_us.tolist() for block in blocks] == [[committed_us]] * 3
    assert end_position(blocks[-1], 0).time_us == committed_us


def test_a_file_that_names_transactions_never_seen_is_a_lost_position() -> None:
    make = EventFactory()
    events = [*make.transaction(1), make.rotate("binlog.000008"), make.format_description()]
    feed(scanner(), [*events, previous(make, f"{SERVER}:1")])
    make.offset -= 16
    with pytest.raises(PositionLostError, match=f"{OTHER}:3"):
        feed(scanner(), [*events, previous(make, f"{SERVER}:1,{OTHER}:3")])


def test_a_full_list_of_events_ends_the_block_and_a_new_block_begins() -> None:
    make, scan = EventFactory(), scanner()
    scan._memory.events = scan._memory.events[:, :16].copy()
    scan._memory.ends = scan._memory.ends[:, :8].copy()
    blocks = feed(scan, [event for number in range(50) for event in make.transaction(number + 1, rows=3)])
    assert sum(block.event_count for block in blocks) == 150
    assert sum(block.transaction_count for block in blocks) == 50
    assert scan.position.gtid_set == f"{SERVER}:1-50"


def test_more_sources_than_fit_is_a_sentence() -> None:
    make, scan = EventFactory(), scanner()
    scan._memory.sources = scan._memory.sources[:, :2].copy()
    events = [make.gtid(1, f"{n}e11fa47-71ca-11e1-9e33-c80aa9429562") for n in range(3)]
    with pytest.raises(BinlogFormatError, match="GTID sources"):
        feed(scan, events)


def test_a_packet_that_is_no_event_ends_the_scan() -> None:
    make, scan = EventFactory(), scanner()
    data = packets(make.transaction(1)) + b"\x05\x00\x00\x09\xfe\x00\x00\x02\x00"
    blocks = list(scan.feed(np.frombuffer(data, np.uint8).copy(), 0, len(data)))
    assert blocks[0].transaction_count == 1
    assert scan.last_verdict == ScanStatus.NOT_AN_EVENT
    assert scan.consumed == len(data) - 9


def test_the_position_of_a_scan_is_that_of_its_last_event() -> None:
    make, scan = EventFactory(), scanner(start=dataclasses.replace(START, epoch=3, server_uuid=SERVER))
    feed(scan, make.transaction(1))
    assert scan.position == Position(
        epoch=3, file=START.file, offset=make.offset, gtid_set=f"{SERVER}:1", server_uuid=SERVER
    )


@given(st.one_of(st.binary(max_size=200), st.binary(min_size=200, max_size=2000)), st.integers(0, 40))
@settings(deadline=None)
def test_the_checksum_is_that_of_zlib(data: bytes, begin: int) -> None:
    begin = min(begin, len(data))
    assert crc32(np.frombuffer(data, np.uint8).copy(), begin, len(data)) == zlib.crc32(data[begin:])


def test_a_steady_stream_hands_nothing_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its table map is known, a transaction needs no Python code. The test checks that the scan passes no event to `_control`."""
    make, scan = EventFactory(), scanner()
    feed(scan, [make.format_description(), *make.transaction(1)])
    taken: list[bytes] = []

    def take(event: bytes) -> Iterator[Block]:
        taken.append(event)
        yield from ()

    monkeypatch.setattr(scan._control, "take", take)
    (block,) = feed(scan, [event for number in range(2, 5000) for event in make.transaction(number, rows=2)])
    assert not taken
    assert (block.event_count, block.transaction_count) == (9996, 4998)


def test_gtids_of_both_kinds_of_server_in_one_stream_are_an_error_fidelity() -> None:
    make = EventFactory()
    events = [*make.transaction(1), make.mariadb_gtid(7), make.table_map(5), make.rows(5, 23), make.xid()]
    with pytest.raises(BinlogFormatError, match="both MySQL and MariaDB") as caught:
        feed(scanner(start=dataclasses.replace(START, gtid_set="0-1-6")), events)
    assert caught.value.file == START.file


@pytest.mark.parametrize("blob_length_bytes", [5, 255])
def test_a_table_map_with_metadata_that_no_column_has_says_why_it_is_unreadable_fidelity(
    blob_length_bytes: int,
) -> None:
    make = EventFactory(checksum=False)
    event = make.table_map(5).replace(b"\x01\x03\x00\x00", bytes([1, 252, 1, blob_length_bytes, 0]))
    event = event[:9] + len(event).to_bytes(4, "little") + bytes(4) + event[17:]
    assert "has the value" in parse_table_map(event[HEADER_BYTES:]).unreadable
    feed(scanner(checksum=False), [make.query("BEGIN"), event])  # The table stops, but the stream continues.


def test_an_incident_says_what_to_do_fidelity() -> None:
    make = EventFactory()
    before = make.transaction(1)
    begin = make.offset
    with pytest.raises(UnknownEventError, match="LOST_EVENTS") as caught:
        feed(scanner(), [*before, make.event(26, bytes(30))])
    assert caught.value.offset == begin


def test_heartbeats_of_both_versions_and_rotations_move_nothing_within_a_file_fidelity() -> None:
    make = EventFactory()
    events = [
        *make.transaction(1),
        make.event(27, b"binlog.000007", artificial=True),
        make.event(41, bytes(20), artificial=True),
    ]
    end = make.offset
    scan = scanner(contiguous=True)
    feed(scan, events)
    assert (scan.position.file, scan.position.offset) == (START.file, end)
    assert scan.counters()["heartbeats"] == 2
    feed(scan, [make.rotate("binlog.000008", artificial=False), *make.transaction(2)])
    assert (scan.position.file, scan.position.offset) == ("binlog.000008", make.offset)
