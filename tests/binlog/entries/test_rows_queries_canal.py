"""Tests the SQL texts of statements that change rows. The scan notes them, they stay with their rows when blocks are divided and joined,
and they are shown as entries before the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.canal_client.messages import Entry, EntryType, Messages, RowChange
from sluice.cdc_engine.binlog.block import compact, join, keep_events, transaction_bytes, without_events, without_first
from sluice.cdc_engine.binlog.entries import assemble
from sluice.cdc_engine.binlog.entries.elements import FIRST_STATE, elements
from sluice.cdc_engine.binlog.entries.messages import EntryMaker
from sluice.cdc_engine.binlog.entries.numbers import EventType
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.type_codes import TypeCode
from sluice.cdc_engine.contracts import Block, Column
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.statements import described
from sluice.cdc_engine.instance.rehearsal import rehearse
from sluice.cdc_engine.parser.scan.scanner import StreamForm
from sluice.cdc_engine.store.files.encoding import Names, arrays_of, block_of, empty_arrays
from sluice.cdc_engine.store.files.encoding import described as described_block
from tests.parser.scan.event_factory import EventFactory, as_buffer, feed, packets, scanner

pytestmark = pytest.mark.seeds
NOTED = StreamForm(rows_queries=True)
MYSQL_TEXT = 20  # The number of bytes before the text in a rows query event.


def transaction(make: EventFactory, number: int, *texts: str, hidden: bool = False) -> list[bytes]:
    """Returns a transaction with one statement of two row events for each text. If `hidden` is True, each statement begins with a row event
    of a table that is not captured.
    """
    events = [make.gtid(number), make.query("BEGIN")]
    for text in texts:
        events.append(make.rows_query(text))
        if hidden:
            events += [make.table_map(6, "hidden"), make.rows(6)]
        events += [make.table_map(5), make.rows(5), make.rows(5)]
    return [*events, make.xid()]


def texts_of(block: Block) -> list[tuple[int, str]]:
    """Returns the texts, each with the index of the row event that it precedes."""
    found = []
    for event, offset, length in zip(block.query_event, block.query_offset, block.query_length, strict=True):
        found.append((int(event), block.buffer[offset + MYSQL_TEXT : offset + length].tobytes().decode()))
    return found


def noted(make: EventFactory, *transactions: list[bytes]) -> Block:
    (block,) = feed(scanner(form=NOTED), [event for each in transactions for event in each])
    return block


def test_texts_precede_the_first_captured_row_event_of_their_statement() -> None:
    make = EventFactory()
    block = noted(make, transaction(make, 1, "INSERT 1", "INSERT 2"), transaction(make, 2, "UPDATE x", hidden=True))
    assert texts_of(block) == [(0, "INSERT 1"), (2, "INSERT 2"), (4, "UPDATE x")]
    assert (block.query_position[1:] > block.query_position[:-1]).all()
    assert (block.query_position < block.event_position[block.query_event]).all()


def test_nothing_is_noted_unless_it_is_wanted() -> None:
    make = EventFactory()
    (block,) = feed(scanner(), transaction(make, 1, "INSERT 1"))
    assert (len(block.query_event), block.byte_count) == (0, int(block.event_length.sum()))


def test_a_text_whose_statement_has_no_captured_row_belongs_to_no_other() -> None:
    make = EventFactory()
    head = [make.gtid(1), make.query("BEGIN")]
    unseen = [make.rows_query("INSERT unseen"), make.table_map(6, "hidden"), make.rows(6), make.xid()]
    block = noted(
        make, [*head, *unseen], [make.gtid(2), make.query("BEGIN"), make.table_map(5), make.rows(5), make.xid()]
    )
    assert (block.event_count, texts_of(block)) == (1, [])


@pytest.mark.parametrize("divided_at", range(1, 9))
def test_a_text_in_one_read_and_its_rows_in_the_next(divided_at: int) -> None:
    """Each read has its own buffer. So the scan must keep the text of the first read until the rows arrive in the second one."""
    make, scan = EventFactory(), scanner(form=NOTED)
    events = transaction(make, 1, "INSERT 1", "INSERT 2")
    blocks: list[Block] = []
    for part in (events[:divided_at], events[divided_at:]):
        data = as_buffer(packets(part))
        blocks += [compact(block) for block in scan.feed(data, 0, len(data))]
    found, before = [], 0
    for block in blocks:
        found += [(before + event, text) for event, text in texts_of(block)]
        before += block.event_count
    assert found == [(0, "INSERT 1"), (2, "INSERT 2")]


def stored(block: Block) -> Block:
    record = described_block(block)
    arrays = dict(zip(empty_arrays(record), arrays_of(block), strict=True))
    return block_of(record, arrays, Names(block.tables, block.gtid_sources))


def test_texts_stay_with_their_rows_when_blocks_are_divided_joined_and_stored() -> None:
    make = EventFactory()
    block = noted(make, *(transaction(make, number, f"INSERT {number}", f"UPDATE {number}") for number in (1, 2, 3)))
    every = [(2 * index, f"{what} {number}") for index, (number, what) in enumerate(
        (number, what) for number in (1, 2, 3) for what in ("INSERT", "UPDATE"))]  # fmt: skip
    assert texts_of(block) == texts_of(compact(block)) == texts_of(stored(block)) == every
    assert (
        compact(block).byte_count == block.byte_count == len(compact(block).buffer) == int(transaction_bytes(block)[-1])
    )
    rest = without_first(block, 1)
    assert rest is not None
    assert texts_of(rest) == [(event - 4, text) for event, text in every[2:]]
    assert texts_of(join([block, rest])) == [*every, *((event + 12 - 4, text) for event, text in every[2:])]
    assert texts_of(without_events(block)) == []
    mask = np.ones(12, np.bool_)
    mask[[0, 3]] = False
    assert texts_of(keep_events(block, mask)) == [(1, "UPDATE 1"), *((event - 2, text) for event, text in every[2:])]


def test_old_store_files_have_no_texts() -> None:
    make = EventFactory()
    record = described_block(noted(make, [make.gtid(1), make.query("BEGIN"), make.xid()]))
    del record["queries"]
    assert len(empty_arrays(record)["query_event"]) == 0


COLUMN = Column(name="n", type_code=TypeCode.LONG, metadata=0, nullable=True, mysql_type="int")


def entries(block: Block, *, gtids: bool = False) -> Sequence[Any]:
    """Returns the entries that begin a transaction, and the entries with SQL."""
    block = dataclasses.replace(block, tables=[dataclasses.replace(each, columns=(COLUMN,)) for each in block.tables])
    state = (0, block.event_count), (0, block.transaction_count)
    kept = np.ones(block.event_count, np.bool_)
    kinds, indices, _ = elements(block, *state, kept, FIRST_STATE, queries=True)
    made = EntryMaker(Display(gtids=gtids), described).messages([Chosen(block, kinds, indices)])
    found = [Entry.FromString(each) for each in Messages.FromString(made).messages]
    return [
        each
        for each in found
        if each.header.eventType in {0, EventType.QUERY} and each.entryType != EntryType.TRANSACTIONEND
    ]


@pytest.mark.parametrize("text", ["INSERT INTO orders VALUES ('ä')", "x" * 70_000, "SELECT '\U0001f600'"])
def test_an_entry_has_the_text_and_the_position_of_its_event(text: str) -> None:
    make = EventFactory()
    block = noted(make, transaction(make, 1, text, "INSERT 2"))
    begin, first, second = entries(block, gtids=True)
    assert [each.entryType for each in (begin, first, second)] == [EntryType.TRANSACTIONBEGIN, *[EntryType.ROWDATA] * 2]
    change = RowChange.FromString(first.storeValue)
    assert (change.sql, change.eventType, change.isDdl) == (text, EventType.QUERY, False)
    header = first.header
    assert (header.schemaName, header.tableName, header.eventType) == ("", "orders", EventType.QUERY)
    assert header.logfileOffset == block.query_position[0]
    assert header.eventLength == block.query_length[0] + 4
    assert header.logfileOffset + header.eventLength < second.header.logfileOffset
    assert header.gtid == begin.header.gtid
    assert first.header.props == begin.header.props


def test_text_that_is_not_utf8_is_shown_with_replacements() -> None:
    make = EventFactory()
    events = [make.gtid(1), make.query("BEGIN")]
    for text in (b"INSERT '\xe4'", b"INSERT 'b'"):
        events += [make.rows_query(text), make.table_map(5), make.rows(5)]
    _, first, second = entries(noted(make, [*events, make.xid()]))
    assert [RowChange.FromString(each.storeValue).sql for each in (first, second)] == ["INSERT '�'", "INSERT 'b'"]


def test_mariadbs_text_names_no_table() -> None:
    make = EventFactory()
    events = [make.mariadb_gtid(3), make.annotate_rows("INSERT 1"), make.table_map(5), make.rows(5), make.xid()]
    _, entry = entries(noted(make, events))
    assert RowChange.FromString(entry.storeValue).sql == "INSERT 1"
    assert (entry.header.schemaName, entry.header.tableName) == ("", "")


def test_a_transaction_that_continues_in_the_next_block_begins_with_its_first_row_event() -> None:
    make = EventFactory(server_id=8)
    before = [make.gtid(1), make.query("BEGIN"), make.table_map(5), make.rows(5), make.xid()]
    make.server_id = 9
    (block,) = feed(scanner(form=NOTED), [*before, *transaction(make, 2, "INSERT 1")[:-1]])
    _, begin, text = entries(block)
    assert (begin.entryType, begin.header.serverId) == (EntryType.TRANSACTIONBEGIN, 9)
    assert RowChange.FromString(text.storeValue).sql == "INSERT 1"


def test_set_up_compiles_the_kernels_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first client that is shown a text would wait for the compiler."""
    called = set[str]()

    def noting(name: str) -> Callable[..., Any]:
        kernel = getattr(assemble, name)

        def call(*arguments: Any) -> Any:
            called.add(name)
            return kernel(*arguments)

        return call

    kernels = {"put_queries", "gather_texts"}
    for name in kernels:
        monkeypatch.setattr(assemble, name, noting(name))
    rehearse(tmp_path)
    assert called == kernels
