"""Tests a session that changes rows in statement format: the schema history gets the statement, and the stream continues."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError
from sluice.cdc_engine.parser.scan.table_references import stopped_change
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, feed, scanner


def test_a_row_change_as_a_statement_is_the_history_s_and_the_rest_of_the_transaction_continues_fidelity() -> None:
    make, history = EventFactory(), NoHistory()
    head = [make.query("BEGIN"), make.table_map(4, "basket"), make.rows(4)]
    index = make.offset
    row_change = make.query("INSERT INTO orders VALUES (1)")
    history.changes = (stopped_change(TableStoppedError("shop", "orders", "STATEMENT_FORMAT", "told"), START),)
    blocks = feed(scanner(history), [*head, row_change, make.table_map(4, "basket"), make.rows(4), make.xid()])
    assert [text for text, _, _ in history.statements] == ["INSERT INTO orders VALUES (1)"]
    assert history.statements[0][2] > index
    assert [change.table for block in blocks for change in block.changes] == ["orders"]
    assert [(block.event_count, block.transaction_count) for block in blocks] == [(1, 0), (0, 0), (1, 1)]
    assert len({index for block in blocks for index in block.event_transaction_offset.tolist()}) == 1, (
        "one order key a transaction"
    )


def test_a_row_change_as_a_statement_of_no_captured_table_ends_no_block_fidelity() -> None:
    make = EventFactory()
    events = [make.query("BEGIN"), make.query("REPLACE INTO percona.hidden SELECT 1"), make.query("COMMIT")]
    (block,) = feed(scanner(), events)
    assert block.transaction_count == 1
    (alone,) = feed(scanner(), [make.query("REPLACE INTO percona.hidden SELECT 1")])
    assert alone.transaction_count == 1


def test_load_data_as_a_statement_is_read_with_its_file_left_out_fidelity() -> None:
    make, history = EventFactory(), NoHistory()
    text = "LOAD DATA LOCAL INFILE 'x' INTO TABLE orders"
    body = EventFactory().query(text, "shop")[19:-4]
    file = [make.query("BEGIN"), *(make.event(kind, b"\x07\x00\x00\x001,2\n") for kind in (17, 9, 11))]
    feed(scanner(history), [*file, make.event(18, body[:13] + bytes(13) + body[13:]), make.query("COMMIT")])
    ((reported, database, _),) = history.statements
    assert (reported, database) == (text, "shop")
    broken = EventFactory()
    with pytest.raises(BinlogFormatError, match="too short"):
        feed(scanner(), [broken.query("BEGIN"), broken.event(18, bytes(20))])
