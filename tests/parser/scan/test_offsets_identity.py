"""Tests that every transaction has one position, which is the same each time the binlog is read. The position is above everything that
ended before the transaction, and below everything that follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.events.event_types import TYPE_AT, WRITE_ROWS
from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.binlog.rows.decoder import ORDER_KEY, RowDecoder
from sluice.cdc_engine.contracts import NO_SESSION, Block, RowEventKind, StatementSession, TableChange, TableChangeKind
from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.parser.scan.scanner import Scanner
from sluice.cdc_engine.position import OFFSET_MAX, Position, order_key, order_keys
from tests.binlog.rows.event_bytes import KEYLESS, event
from tests.parser.scan.compressed_events import field, inner, mariadb_query, payload
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, as_buffer, feed, not_hidden, packets
from tests.parser.scan.test_xa import committed, prepared, text_name

EQUAL_BYTES, EVENT_ROWS = 2 << 30, 4000


class History(NoHistory):
    """Tells of each statement where it is."""

    def apply(
        self,
        statement: str,  # noqa: ARG002
        default_database: str,  # noqa: ARG002
        position: Position,
        session: StatementSession = NO_SESSION,  # noqa: ARG002
    ) -> tuple[TableChange, ...]:
        made = TableChange(
            kind=TableChangeKind.SCHEMA, database="shop", table="orders", order_key=position.order_key, time_us=0
        )
        return (made,)


def scanner(start: Position, records: MemoryPrepared, hidden: Callable[[str, str], bool] = not_hidden) -> Scanner:
    return Scanner(start=start, history=History(), captured=hidden, contiguous=True, prepared=records)


def rows(make: EventFactory) -> list[bytes]:
    return [make.table_map(5), make.rows(5), make.table_map(6, "other"), make.rows(6), make.rows(6)]


def created_with_rows(make: EventFactory) -> list[bytes]:
    return [make.query("BEGIN"), make.query("CREATE TABLE made (a INT)"), *rows(make), make.xid()]


def plain(make: EventFactory) -> list[bytes]:
    return [make.query("BEGIN"), *rows(make), make.xid()]


KINDS: dict[str, Callable[[EventFactory, int], list[bytes]]] = {
    "gtid": lambda make, number: [make.gtid(number), make.query("BEGIN"), *rows(make), make.xid()],
    "anonymous": lambda make, number: [make.anonymous(number), make.query("BEGIN"), *rows(make), make.query("COMMIT")],
    "no gtid": lambda make, _: [make.query("BEGIN"), *rows(make), make.xid()],
    "written out": lambda make, _: [make.query("begin"), *rows(make), make.xid()],
    "compressed": lambda make, number: [make.gtid(number), payload(make, packed(plain))],
    "create select": lambda make, number: [make.gtid(number), *created_with_rows(make)],
    "create select compressed": lambda make, number: [make.gtid(number), payload(make, packed(created_with_rows))],
    "definition": lambda make, number: [make.gtid(number), make.query("CREATE TABLE other (a INT)")],
    "definition alone": lambda make, _: [make.query("CREATE TABLE other (a INT)")],
    "xa": lambda make, number: [*prepared(make, f"x{number}", [b"1", b"2"]), *committed(make, f"x{number}")],
    "xa no gtid": lambda make, number: [
        *prepared(make, f"x{number}", [b"1", b"2"]), make.query(f"XA COMMIT {text_name(f'x{number}')}")
    ],
    "one phase": lambda make, number: prepared(make, f"x{number}", [b"1"], one_phase=True),
}  # fmt: skip


def packed(events: Callable[[EventFactory], list[bytes]]) -> bytes:
    return inner(*events(EventFactory(checksum=False)))


def reported(blocks: list[Block]) -> list[tuple[str, int]]:
    """Returns the kind and the order key of each row event, table change and end of a transaction, in stream order."""
    found: list[tuple[str, int]] = []
    for block in blocks:
        found += [("change", change.order_key) for change in block.changes]
        keys = order_keys(block.epoch, 7, block.event_transaction_offset).tolist() if block.event_count else []
        done = 0
        for last, end in zip(block.transaction_events.tolist(), block.transaction_end.tolist(), strict=True):
            found += [("row", key) for key in keys[done:last]]
            found.append(("end", order_key(block.epoch, 7, end)))
            done = last
        found += [("row", key) for key in keys[done:]]
    return found


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12), st.integers(0, 40))
def test_an_order_key_is_above_what_ended_and_below_what_follows_identity(kinds: list[str], padding: int) -> None:
    make, records = EventFactory(), MemoryPrepared()
    events: list[bytes] = [make.event(3, bytes(padding))]  # The padding gives offsets of all remainders.
    starts = []
    for number, kind in enumerate(kinds, start=1):
        starts.append((make.offset, len(events)))
        events += KINDS[kind](make, number)
    found = reported(feed(scanner(START, records), events))
    last_end, last = -1, ("", -1)
    for what, key in found:
        if what == "row":
            assert key > last_end
            assert key == last[1] if last[0] == "row" else key > last[1]
        else:
            assert key >= last[1]
        last_end = key if what == "end" else last_end
        last = (what, key)
    ends = [key for what, key in found if what == "end"]
    assert ends == sorted(set(ends))
    for offset, first in starts:
        begun = feed(scanner(dataclasses.replace(START, offset=offset), MemoryPrepared()), events[first:])
        assert reported(begun) == found[len(found) - len(reported(begun)) :]
    without = feed(scanner(START, MemoryPrepared(), lambda _, table: table != "other"), events)
    assert {key for what, key in reported(without) if what == "row"} <= {key for what, key in found if what == "row"}


def test_rows_after_a_compressed_statement_are_above_it_and_below_the_end_identity() -> None:
    make = EventFactory()
    events = [make.mariadb_gtid(7), mariadb_query(make, "CREATE TABLE made (a INT)"), *rows(make), make.xid()]
    found = reported(feed(scanner(START, MemoryPrepared()), events))
    assert [what for what, _ in found] == ["change", "row", "row", "row", "end"]
    assert found[0][1] < found[1][1] == found[2][1] == found[3][1] < found[4][1]


def test_an_offset_above_8_gib_has_the_last_key_of_its_file_identity() -> None:
    inside, above = (dataclasses.replace(START, offset=offset) for offset in (OFFSET_MAX, OFFSET_MAX * 4))
    following = dataclasses.replace(START, file="binlog.000008")
    assert inside.order_key == above.order_key < following.order_key


@pytest.mark.parametrize(("epoch", "number", "offset"), [(1 << 14, 1, 4), (1, 1 << 20, 4), (1, 1, 1 << 33), (-1, 1, 4)])
def test_what_no_order_key_can_say_is_an_error_identity(epoch: int, number: int, offset: int) -> None:
    with pytest.raises(BinlogFormatError, match="do not fit an order key"):
        order_key(epoch, number, offset)
    assert order_key((1 << 14) - 1, (1 << 20) - 1, OFFSET_MAX) == (1 << 63) - 1


def test_two_gigabytes_of_equal_rows_in_one_transaction_have_its_position_identity() -> None:
    """Compressed, the transaction has only some hundred kilobytes, which are fewer bytes than rows. So there are not enough offsets for a
    separate order key per row, and all rows have the order key of the transaction.
    """
    rows_event = bytearray(event(RowEventKind.INSERT, [(1, 1, "x" * 250)] * EVENT_ROWS))
    rows_event[TYPE_AT] = WRITE_ROWS
    one = bytes(rows_event)
    count = EQUAL_BYTES // len(one) + 1
    bare, sink = EventFactory(checksum=False), pa.BufferOutputStream()
    head, tail = bare.query("BEGIN") + bare.table_map(1), bare.xid()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(head)
        for _ in range(count):
            stream.write(one)
        stream.write(tail)
    size, content = len(head) + count * len(one) + len(tail), sink.getvalue().to_pybytes()
    make = EventFactory()
    events = [make.gtid(1)]
    index = make.offset
    fields = field(2, 0) + field(3, size) + field(1, len(content))
    events.append(make.event(40, fields + b"\x00" + content))
    assert len(content) < EQUAL_BYTES // 1000
    buffer = as_buffer(packets(events))
    decoder, found, decoded = RowDecoder(KEYLESS), 0, 0
    for number, block in enumerate(scanner(START, MemoryPrepared()).feed(buffer, 0, len(buffer))):
        assert set(block.event_transaction_offset.tolist()) <= {index}
        found += block.event_count * EVENT_ROWS
        for batch in decoder.chunks(block, np.arange(block.event_count if number % 50 == 0 else 0)):
            assert set(batch.column(ORDER_KEY).to_pylist()) == {order_key(1, 7, index)}
            decoded += batch.num_rows
    assert found == count * EVENT_ROWS
    assert decoded > 100_000
