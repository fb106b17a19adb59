"""Tests that compressed events give the same blocks as plain ones, with their own positions. The sizes that they state are verified."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine import limits
from sluice.cdc_engine.binlog.events.compressed import FIELD_BYTES_MAX
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError
from tests.parser.scan.compressed_events import (
    field,
    inner,
    mariadb_compressed,
    mariadb_query,
    mariadb_rows,
    payload,
    within,
)
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, feed, feed_lazily, packets, scanner
from tests.parser.scan.test_framing import pour, what


def bodies(blocks: list[Block]) -> list[bytes]:
    return [body for _, body in what(blocks)[0]]


def test_rows_of_a_payload_have_the_position_of_its_transaction_identity() -> None:
    make = EventFactory()
    before = [make.gtid(1), payload(make, within(2, 3))]
    first_end = make.offset
    before.append(make.gtid(2))
    begin = make.offset
    events = [*before, payload(make, within(1, 200, b"\x01\x01\x00\x09\x00\x00\x00"))]
    end = make.offset
    events += make.transaction(3)
    blocks = feed(scanner(contiguous=True), events)
    found_rows, ends = what(blocks)
    assert len(ends) == 3
    assert ends[1] == end
    assert [index for index, _ in found_rows[6:206]] == [begin] * 200
    found = [index for block in blocks for index in block.event_transaction_offset.tolist()]
    assert len(found) == 6 + 200 + 1
    assert first_end < begin
    assert found[6:206] == [begin] * 200
    assert found[5] < first_end
    assert found[206] > end


transactions = st.lists(
    st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 5), st.binary(min_size=1, max_size=300)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(transactions, st.sampled_from([400, 700, 5000, 1 << 20]), st.lists(st.integers(1, 900), min_size=1, max_size=5))
def test_any_mix_in_any_buffers_is_the_same_as_without_compression_fidelity(
    content: list[tuple[bool, int, int, bytes]], buffer_bytes: int, pieces: list[int]
) -> None:
    plain, packed = EventFactory(), EventFactory()
    plain_events, events = [], []
    for number, (compressed, maps, rows, row) in enumerate(content):
        plain_events += [plain.gtid(number + 1), plain.query("BEGIN")]
        for _ in range(maps):
            plain_events += [plain.table_map(5), *(plain.rows(5, content=row) for _ in range(rows))]
        plain_events.append(plain.xid())
        events.append(packed.gtid(number + 1))
        if compressed:
            events.append(payload(packed, within(maps, rows, row)))
        else:
            events += [packed.query("BEGIN")]
            for _ in range(maps):
                events += [packed.table_map(5), *(packed.rows(5, content=row) for _ in range(rows))]
            events.append(packed.xid())
    data, whole = packets(events), limits.READ_BUFFER_BYTES
    limits.READ_BUFFER_BYTES = buffer_bytes
    try:
        blocks = pour(data, pieces, buffer_bytes)[1]
    finally:
        limits.READ_BUFFER_BYTES = whole
    uncut = feed(scanner(), events)
    assert what(blocks) == what(uncut)
    assert [body[19:] for body in bodies(blocks)] == [body[19:] for body in bodies(feed(scanner(), plain_events))]
    found_rows, ends = what(blocks)
    assert [index for index, _ in found_rows] == sorted(index for index, _ in found_rows)
    assert len(ends) == len(content)
    assert ends[-1] == packed.offset


def test_blocks_of_many_small_payloads_share_a_buffer_fidelity() -> None:
    make = EventFactory()
    events = [event for number in range(300) for event in (make.gtid(number + 1), payload(make, within()))]
    blocks = feed(scanner(), events)
    assert [(block.event_count, block.transaction_count) for block in blocks] == [(300, 300)]


GOOD = within(3, 2)
BROKEN = {
    "says less": (GOOD, len(GOOD) - 1, b"", "is longer than its stated decompressed size"),
    "says more": (GOOD, len(GOOD) + 1, b"", "shorter than its stated decompressed size"),
    "says nothing": (GOOD, 0, b"", "states 0 decompressed bytes"),
    "says too much": (GOOD, 1 << 40, b"", "decompressed bytes, which is not a valid size"),
    "bomb": (bytes(50 << 20), None, b"", "the length of its packet"),
    "half an event": (GOOD[:-5], None, b"", "within a contained event"),
    "goes on": (GOOD + within(), None, b"", "events after the end"),
    "lying event": (GOOD[:9] + b"\xff\xff\xff\x3f" + GOOD[13:], None, b"", "ends within|have more bytes than"),
    "huge event": (
        GOOD[:9] + b"\xff\xff\xff\xff" + GOOD[13:],
        None,
        b"",
        "ends within|have more bytes than|contains an event",
    ),
    "garbage behind": (GOOD, None, b"garbage", "cannot be read|has more than"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_payload_with_wrong_sizes_is_an_error_with_its_position_fidelity(case: str) -> None:
    content, size, tail, message = BROKEN[case]
    make = EventFactory()
    before = make.transaction(1)
    begin = make.offset
    stream = feed_lazily(scanner(), [*before, payload(make, content, size, tail=tail)])
    assert next(stream).transaction_count == 1
    with pytest.raises(BinlogFormatError, match=message) as caught:
        list(stream)
    assert (caught.value.file, caught.value.offset) == (START.file, begin)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        field(1, 5),
        field(2, 0) + b"\0",
        field(9, 1) + field(2, 7) + field(3, 5) + field(1, 0) + b"\0",
        b"\x01\xfe" + bytes(7),
    ],
)
def test_broken_fields_of_a_payload_are_an_error_fidelity(body: bytes) -> None:
    with pytest.raises(BinlogFormatError, match="compressed"):
        feed(scanner(), [EventFactory().event(40, body)])


def test_a_payload_in_a_payload_is_an_error_fidelity() -> None:
    bare = EventFactory(checksum=False)
    with pytest.raises(BinlogFormatError, match="contains another compressed event"):
        feed(scanner(), [payload(EventFactory(), inner(bare.query("BEGIN"), payload(bare, within())))])


def test_a_payload_without_compression_and_unknown_fields_are_read_fidelity() -> None:
    (block,) = feed(scanner(), [payload(EventFactory(), within(1, 4), method=255)])
    assert block.event_count == 4


def test_events_of_mariadb_are_decompressed_one_by_one_fidelity() -> None:
    make, history = EventFactory(), NoHistory()
    images = bytes(range(200)) * 9
    events = [make.format_description(b"11.4.5-MariaDB-log"), make.mariadb_gtid(7), make.table_map(5)]
    kinds = [23, 24, 25, 30, 31, 32]
    starts = []
    for kind in kinds:
        starts.append(make.offset)
        events.append(mariadb_rows(make, kind, images))
    starts.append(make.offset)
    events += [
        make.rows(5, 23),
        make.xid(),
        make.mariadb_gtid(8, flags=1),
        mariadb_query(make, "CREATE TABLE long (a INT)"),
    ]
    blocks = feed(scanner(history), events)
    found_rows, ends = what(blocks)
    assert [index for index, _ in found_rows] == starts
    assert [body.endswith(images) for _, body in found_rows] == [True] * 6 + [False]
    assert [kind for block in blocks for kind in block.event_kind.tolist()] == [1, 2, 3, 1, 2, 3, 1]
    assert ends[-1] == make.offset
    assert history.statements == [("CREATE TABLE long (a INT)", "shop", make.offset)]


@pytest.mark.parametrize("length", [0, 1799, 1801, 0xFFFFFFFF])
def test_a_compressed_event_of_mariadb_with_wrong_sizes_is_an_error_fidelity(length: int) -> None:
    make = EventFactory()
    head = [make.query("BEGIN"), make.table_map(5)]
    begin = make.offset
    event = EventFactory(checksum=False).rows(5, 30, b"\x01\x01" + bytes(1800))
    with pytest.raises(BinlogFormatError, match=r"stated|states") as caught:
        feed(scanner(), [*head, mariadb_compressed(make, event, len(event) - 1800, length)])
    assert caught.value.offset == begin


def test_the_fields_before_a_payload_have_a_limited_length_fidelity() -> None:
    fields = field(2, 255) + field(3, 0) + field(1, 0)
    begin = b"\x09\xfc" + FIELD_BYTES_MAX.to_bytes(2, "little") + bytes(FIELD_BYTES_MAX)
    with pytest.raises(BinlogFormatError, match="are truncated"):
        feed(scanner(), [EventFactory().event(40, begin + fields + b"\0")])
