"""Tests GTIDs with a tag (MySQL 8.3 and above): how they change the executed set of a stream, and which of them are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.errors import BinlogFormatError, UnknownEventError
from sluice.cdc_engine.gtid import GtidSet
from tests.parser.scan.event_factory import SERVER, TIME, EventFactory, feed, scanner, varlen

MYSQL_9 = bytes.fromhex(  # The body of an event as a server of version 9.2 wrote it, without its checksum.
    "02760000020225 02dcf0090230f90322bd03ad02210244445a68510322040406 0c666f6f62617a 0800 0a04 0c7f1583222d5c2e06 104903 12c3020b"
)


def test_a_tagged_gtid_of_a_server_is_read_fidelity() -> None:
    make, scan = EventFactory(), scanner()
    (block,) = feed(scan, [make.event(42, MYSQL_9), make.query("BEGIN"), make.table_map(5), make.rows(5), make.xid()])
    assert block.gtid_sources[block.transaction_source[0]] == "896e7882-18fe-11ef-ab88-22222d34d411:foobaz"
    assert block.transaction_number.tolist() == [1]
    assert block.transaction_time_us.tolist() == [0x062E5C2D228315]
    assert scan.position.gtid_set == "896e7882-18fe-11ef-ab88-22222d34d411:foobaz:1"


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "night", "a", "_" + 31 * "9"]), st.integers(1, (1 << 62) - 1)),
        max_size=8,
        min_size=1,
    ),
    st.integers(1, 1 << 62),
)
def test_tagged_gtids_are_followed_together_with_gtids_without_a_tag_fidelity(
    written: list[tuple[str, int]], time_us: int
) -> None:
    make, scan, executed = EventFactory(), scanner(), GtidSet()
    events: list[bytes] = []
    for tag, number in written:
        gtid = make.tagged_gtid(number, tag, [(6, varlen(5)), (7, varlen(time_us))]) if tag else make.gtid(number)
        events += [gtid, make.query("BEGIN"), make.xid()]
        executed = executed.add(f"{SERVER}:{tag}" if tag else SERVER, number, number)
    blocks = feed(scan, events)
    assert [block.gtid_sources[index] for block in blocks for index in block.transaction_source] == [
        f"{SERVER}:{tag}" if tag else SERVER for tag, _ in written
    ]
    times = [int(time) for block in blocks for time in block.transaction_time_us]
    assert times == [time_us if tag else TIME * 1_000_000 for tag, _ in written]
    assert scan.position.gtid_set == str(executed)


def test_a_field_of_a_tagged_gtid_that_need_not_be_understood_is_passed_over_fidelity() -> None:
    make, scan = EventFactory(), scanner()
    feed(scan, [make.tagged_gtid(3, "night", [(15, b"anything")]), make.query("BEGIN"), make.xid()])
    assert scan.position.gtid_set == f"{SERVER}:night:3"


def test_a_tagged_gtid_that_must_be_understood_and_is_not_stops_the_stream_fidelity() -> None:
    make = EventFactory()
    with pytest.raises(UnknownEventError, match="GTID_TAGGED"):
        feed(scanner(), [make.tagged_gtid(3, "night", [(15, b"anything")], last_needed=15)])


@pytest.mark.parametrize(
    "fields",
    [
        [(2, varlen(0))],
        [(2, varlen(3))],
        [(3, varlen(3) + b"a-b")],
        [(3, varlen(2) + b"1a")],
        [(1, varlen(300) * 16)],
        [(3, varlen(60))],
    ],
)
def test_a_tagged_gtid_that_names_no_transaction_is_refused_fidelity(fields: list[tuple[int, bytes]]) -> None:
    make = EventFactory()
    with pytest.raises(BinlogFormatError):
        feed(scanner(), [make.tagged_gtid(3, "night", fields)])
