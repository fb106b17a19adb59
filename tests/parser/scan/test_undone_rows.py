"""Tests that row events are left out if their own transaction undoes them, with ROLLBACK or ROLLBACK TO."""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.binlog.events.recorded import MemoryPrepared
from sluice.cdc_engine.binlog.events.undone_rows import UndoneRows
from sluice.cdc_engine.contracts import Block, TableChange, TableChangeKind
from sluice.cdc_engine.errors import UndoneRowsError, UnknownEventError
from tests.parser.scan.compressed_events import payload
from tests.parser.scan.event_factory import START, EventFactory, NoHistory, feed, feed_lazily, scanner

TEMPORARY = "CREATE TEMPORARY TABLE passing (a INT)"


class Stream:
    """The events of a stream, and the name of each row event by its offset. `texts` are statements, `xid` for a commit, `gtid`, or
    `row NAME`.
    """

    def __init__(self, *texts: str) -> None:
        self.make, self.rows, self.events, self.numbers = EventFactory(), dict[int, str](), list[bytes](), 0
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        if text.startswith("row "):
            self.events.append(self.make.table_map(5))
            self.rows[self.make.offset] = text.removeprefix("row ")
            self.events.append(self.make.rows(5))
        elif text == "gtid":
            self.numbers += 1
            self.events.append(self.make.gtid(self.numbers))
        else:
            self.events.append(self.make.xid() if text == "xid" else self.make.query(text))

    def kept(self, readings_max: int = 2) -> str:
        """Reads the stream as a parser does, at most `readings_max` times, and returns the names of the rows that it yields. After
        UndoneRowsError, the next reading begins at the end of the last whole transaction. Fails if no reading gets to the end.
        """
        undone, whole, begin = UndoneRows(), list[Block](), 0
        for _ in range(readings_max):
            start = dataclasses.replace(START, offset=self._end_of(begin))
            scan = scanner(start=start, prepared=MemoryPrepared(undone))
            read = list[Block]()
            try:
                for event in self.events[begin:]:
                    read += feed(scan, [event])
                    if read and read[-1].transaction_count:
                        whole, read, begin = whole + read, [], self.events.index(event, begin) + 1
            except UndoneRowsError:
                undone.forget_before(dataclasses.replace(START, offset=self._end_of(begin)))
                continue
            return " ".join(self.rows[position] for block in whole + read for position in block.event_position.tolist())
        raise AssertionError("the stream is read again for ever")

    def _end_of(self, events: int) -> int:
        return 4 + sum(len(event) for event in self.events[:events])


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (("BEGIN", "ROLLBACK"), ""),
        (("BEGIN", "row a", "ROLLBACK", "BEGIN", "row b", "xid"), "b"),
        (("gtid", "BEGIN", "row a", "xid", "gtid", "BEGIN", "row b", TEMPORARY, "row c", "ROLLBACK"), "a"),
        (("gtid", "BEGIN", "row a", TEMPORARY, "row b", "xid", "gtid", "BEGIN", "row c", "ROLLBACK"), "a b"),
        (("BEGIN", "SAVEPOINT `a`", "row a", "SAVEPOINT b", "ROLLBACK TO `b`", "RELEASE SAVEPOINT b", "xid"), "a"),
        (
            ("BEGIN", "row a", "SAVEPOINT s", "row b", "ROLLBACK TO `S`", "row c", "xid", "BEGIN", "row d", "xid"),
            "a c d",
        ),
        (("BEGIN", "row a", "SAVEPOINT s", "row b", "ROLLBACK TO s", "row c", "ROLLBACK TO s", "row d", "xid"), "a d"),
        (("BEGIN", "row a", "SAVEPOINT s", TEMPORARY, "row b", "ROLLBACK TO s", "row c", "xid"), "a c"),
        (
            ("BEGIN", "SAVEPOINT s", "row a", "SAVEPOINT t", "row b", "ROLLBACK TO t", "ROLLBACK TO s", "row c", "xid"),
            "c",
        ),
        (("BEGIN", "row a", "SAVEPOINT s", "row b", "SAVEPOINT s", "row c", "ROLLBACK TO s", "xid"), "a b"),
        (("BEGIN", "row a", "SAVEPOINT s", "row b", "ROLLBACK TO s", "row c", "ROLLBACK"), ""),
        (("BEGIN", "SAVEPOINT s", "ROLLBACK TO unknown", "row a", "xid"), "a"),
        (("BEGIN", "row a", 'SAVEPOINT "s"', "row b", "ROLLBACK TO `s`", "xid"), "a"),
        (("BEGIN", 'SAVEPOINT "s"', "row a", 'SAVEPOINT "t"', "row b", 'ROLLBACK TO "s"', "row c", "xid"), "c"),
        (("BEGIN", "row a", "SAVEPOINT `a``b`", "row b", "SAVEPOINT `a`", "row c", "ROLLBACK TO `a`b`", "xid"), "a"),
        (("BEGIN", "row a", "SAVEPOINT é", "row b", "ROLLBACK TO `É`", "xid"), "a"),
    ],
)
def test_row_events_that_their_transaction_undoes_are_left_out(texts: tuple[str, ...], kept: str) -> None:
    assert Stream(*texts).kept() == kept


@pytest.mark.parametrize(
    "texts",
    [
        ("BEGIN", "row a", "ROLLBACK TO unknown"),
        ("BEGIN", "row a", "SAVEPOINT s", "row b", "ROLLBACK TO ``"),
        ("BEGIN", "row a", "SAVEPOINT s", "xid", "BEGIN", "row b", "ROLLBACK TO s"),
        ("BEGIN", "row a", "SAVEPOINT é", "row b", "ROLLBACK TO E"),
        ("BEGIN", "row a", "SAVEPOINT é", "row b", "SAVEPOINT E", "row c", "ROLLBACK TO é"),
    ],
)
def test_a_rollback_to_a_savepoint_that_is_uncertain_stops_the_stream(texts: tuple[str, ...]) -> None:
    """Defect 1020: rows before the savepoint were lost, because Sluice did not find the savepoint and left out the whole transaction.

    The server finds E if the savepoint's name is é.
    """
    with pytest.raises(UnknownEventError, match="cannot tell which savepoint") as caught:
        feed(scanner(), Stream(*texts).events)
    assert not isinstance(caught.value, UndoneRowsError)


def test_names_of_savepoints_are_utf8_whatever_the_charset_of_the_client() -> None:
    """Defect 1021: undone rows were kept, because Sluice decoded the names of two savepoints in the client's charset, GBK, in which the
    closing quote belonged to the last character.
    """
    make, gbk = EventFactory(), b"\x04\x1c\x00\x1c\x00\x1c\x00"
    events = [make.query("BEGIN"), make.query("SAVEPOINT `国`", status=gbk), make.table_map(5), make.rows(5)]
    events += [make.query("SAVEPOINT `果`", status=gbk), make.table_map(5), make.rows(5)]
    with pytest.raises(UnknownEventError, match="cannot tell which savepoint"):
        feed(scanner(), [*events, make.query("ROLLBACK TO `国`", status=gbk), make.xid()])


def test_rows_of_an_engine_without_transactions_are_not_undone() -> None:
    """Defect 1022: rows of MyISAM tables between undone rows were lost. A replica of MariaDB logs such transactions."""
    make, history, undone = EventFactory(), NoHistory(), UndoneRows()
    history.not_undone.add("log")
    events = [make.query("BEGIN"), make.query("SAVEPOINT s"), make.table_map(5), make.rows(5)]
    events += [make.table_map(6, table="log"), make.rows(6), make.query("ROLLBACK TO s"), make.xid()]
    with pytest.raises(UndoneRowsError):
        feed(scanner(history, prepared=MemoryPrepared(undone)), events)
    (block,) = feed(scanner(history, prepared=MemoryPrepared(undone)), events)
    assert [block.tables[index].table for index in block.event_table] == ["log"]


def test_a_transaction_is_read_twice_however_often_it_undoes_rows() -> None:
    undone = [text for number in range(50) for text in ("SAVEPOINT s", f"row {number}", "ROLLBACK TO s")]
    assert Stream("BEGIN", *undone, "row last", "xid").kept(readings_max=2) == "last"


def test_received_transactions_are_read_again_together() -> None:
    """Defect 1023: the engine connected again for each transaction with undone rows, and could not follow a source with many of them."""
    undone, texts = UndoneRows(), ("BEGIN", "row no", "ROLLBACK", "BEGIN", "row yes", "xid")
    stream = Stream(*(text for _ in range(20) for text in texts))
    with pytest.raises(UndoneRowsError):
        feed(scanner(prepared=MemoryPrepared(undone)), stream.events)
    blocks = feed(scanner(prepared=MemoryPrepared(undone)), stream.events)
    assert [stream.rows[position] for block in blocks for position in block.event_position.tolist()] == ["yes"] * 20


def test_an_error_after_a_transaction_that_must_be_read_again_is_found_by_the_next_reading() -> None:
    undone, stream = UndoneRows(), Stream("BEGIN", "row a", "ROLLBACK", "BEGIN", "row b", "xid")
    damaged = [*stream.events, stream.make.event(26, b"")]
    with pytest.raises(UndoneRowsError):
        feed(scanner(prepared=MemoryPrepared(undone)), damaged)
    read = list[Block]()
    with pytest.raises(UnknownEventError, match="INCIDENT"):
        read.extend(feed_lazily(scanner(prepared=MemoryPrepared(undone)), damaged))
    assert sum(block.transaction_count for block in read) == 2


def test_a_transaction_that_undoes_rows_often_makes_no_more_blocks_than_another() -> None:
    """Defect 1024: a transaction with ten thousand ROLLBACK TOs took minutes, because each made a block and each block examined all of
    them.
    """
    undone, often = UndoneRows(), [text for _ in range(200) for text in ("SAVEPOINT s", "row no", "ROLLBACK TO s")]
    stream = Stream("BEGIN", *often, "row last", "xid")
    with pytest.raises(UndoneRowsError):
        feed(scanner(prepared=MemoryPrepared(undone)), stream.events)
    assert len(feed(scanner(prepared=MemoryPrepared(undone)), stream.events)) == 1


def test_a_scan_that_only_finds_undone_rows_reads_on() -> None:
    undone, stream = UndoneRows(), Stream("BEGIN", "row a", "ROLLBACK", "BEGIN", "row b", "xid")
    undone.only_finds = True
    feed(scanner(prepared=MemoryPrepared(undone)), stream.events)
    undone.only_finds = False
    blocks = feed(scanner(prepared=MemoryPrepared(undone)), stream.events)
    assert [stream.rows[position] for block in blocks for position in block.event_position.tolist()] == ["b"]


def test_each_transaction_with_undone_rows_is_read_again() -> None:
    undone = [text for _ in range(5) for text in ("BEGIN", "row no", "ROLLBACK", "BEGIN", "row yes", "xid")]
    assert Stream(*undone).kept(readings_max=6) == "yes yes yes yes yes"


def test_nothing_of_a_transaction_that_must_be_read_again_is_yielded_after_its_rows_are_undone() -> None:
    stream = Stream("BEGIN", "row a", "SAVEPOINT s", "row b", "ROLLBACK TO s", "row c", "xid", "BEGIN", "row d", "xid")
    scan, read = scanner(), list[Block]()
    with pytest.raises(UndoneRowsError, match="ROLLBACK TO"):
        read.extend(block for event in stream.events for block in feed(scan, [event]))
    assert [stream.rows[position] for block in read for position in block.event_position.tolist()] == ["a", "b"]
    assert not any(block.transaction_count for block in read), "the reader goes back to before the transaction"


def test_a_scan_that_needs_no_rows_reads_on() -> None:
    stream = Stream("BEGIN", "row a", "ROLLBACK", "BEGIN", "row b", "xid")
    blocks = feed(scanner(prepared=MemoryPrepared(UndoneRows(rows_are_read=False))), stream.events)
    assert sum(block.transaction_count for block in blocks) == 2


def test_intervals_of_another_epoch_or_file_concern_no_row() -> None:
    (block,) = feed(scanner(), Stream("BEGIN", "row a", "xid").events)
    undone = UndoneRows()
    assert undone.add(2, block.file, 0, 1000)
    assert undone.add(1, "binlog.000008", 0, 1000)
    assert undone.without_them(block) is block
    assert undone.add(1, block.file, 0, 1000)
    assert not undone.add(1, block.file, 0, 1000)
    assert undone.without_them(block).event_count == 0


def test_intervals_before_the_position_of_the_reader_are_dropped() -> None:
    undone = UndoneRows()
    for file in ("binlog.000006", "binlog.000007", "binlog.000008"):
        undone.add(1, file, 100, 200)
    undone.forget_before(dataclasses.replace(START, offset=199))
    assert [undone.add(1, f"binlog.00000{number}", 100, 200) for number in (6, 7, 8)] == [True, False, False]
    undone.forget_before(dataclasses.replace(START, offset=200))
    assert [undone.add(1, f"binlog.00000{number}", 100, 200) for number in (7, 8)] == [True, False]


def test_a_rollback_of_a_transaction_that_changes_a_captured_table_stops_the_stream() -> None:
    history = NoHistory()
    stream = Stream("BEGIN", "row a", "CREATE TABLE shop.copy (a INT)", "row b", "ROLLBACK")
    history.changes = (TableChange(kind=TableChangeKind.SCHEMA, database="shop", table="t", order_key=1, time_us=2),)
    with pytest.raises(UnknownEventError, match="ROLLBACK") as caught:
        feed(scanner(history), stream.events)
    assert not isinstance(caught.value, UndoneRowsError)


def test_undone_rows_of_a_compressed_transaction_stop_the_stream() -> None:
    inside = EventFactory(checksum=False)
    rows = [inside.query("BEGIN"), inside.query("SAVEPOINT s"), inside.table_map(5), inside.rows(5)]
    content = b"".join([*rows, inside.query("ROLLBACK TO s"), inside.xid()])
    make = EventFactory()
    with pytest.raises(UnknownEventError, match="ROLLBACK TO") as caught:
        feed(scanner(), [make.gtid(1), payload(make, content)])
    assert not isinstance(caught.value, UndoneRowsError)
