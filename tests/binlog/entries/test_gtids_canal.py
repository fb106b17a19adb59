"""Tests GTIDs in the headers of entries and in flat messages. The strings that the kernel makes must equal those of the GTID sets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sluice.canal_client.messages import Entry, EntryType, Messages
from sluice.cdc_engine.binlog.entries.gtid_marks import PIECES, PROPS, TEXT, GtidMarks, marks_of, name_of
from sluice.cdc_engine.binlog.entries.messages import EntryMaker
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.brokers.kafka import headers_of
from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.contracts import FRAME, NO_GTID, Block
from sluice.cdc_engine.gtid import NUMBER_MAX, executed_after
from sluice.cdc_engine.instance.consumers.statements import described
from sluice.cdc_engine.store.files.encoding import Names, arrays_of, block_of, empty_arrays
from sluice.cdc_engine.store.files.encoding import described as described_block
from tests.brokers.fix_recorded import recorded
from tests.fix_blocks import Source

pytestmark = pytest.mark.seeds

ONE, TWO = "11111111-71ca-11e1-9e33-c80aa9429562", "22222222-71ca-11e1-9e33-c80aa9429562:tagged"
Transaction = tuple[int, int]


def block_with(start: str, sources: list[str], transactions: Sequence[Transaction], open_gtid: Transaction) -> Block:
    made = Source(gtid_sources=sources).block([1] * len(transactions), 1)
    frames = np.zeros(len(transactions), FRAME)
    frames["sequence"] = np.arange(len(transactions)) + 10
    return dataclasses.replace(
        made,
        start_gtid_set=start,
        transaction_source=np.array([source for source, _ in transactions], np.int32),
        transaction_number=np.array([number for _, number in transactions], np.int64),
        transaction_frame=frames,
        open_frame=np.full(1, -1, np.int64).astype(FRAME),
        open_gtid=open_gtid,
    )


def piece(marks: GtidMarks, index: int, number: int) -> bytes:
    starts = marks.pieces.starts[PIECES * index + number :]
    return marks.pieces.data[starts[0] : starts[1]].tobytes()


def executed_up_to(block: Block, transaction: int) -> str:
    source = np.append(block.transaction_source, block.open_gtid[0])[: transaction + 1].astype(np.int32)
    number = np.append(block.transaction_number, block.open_gtid[1])[: transaction + 1]
    return executed_after(block.start_gtid_set, block.gtid_sources, source, number)


CASES: dict[str, tuple[str, list[str], list[Transaction], Transaction]] = {
    "in order": (f"{ONE}:1-98", [ONE], [(0, number) for number in range(99, 130)], (0, 130)),
    "the first of a source": ("", [ONE], [(0, 1), (0, 2)], (0, 3)),
    "two sources": (f"{ONE}:1-3:9", [ONE, TWO], [(0, 4), (1, 7), (0, 5), (1, 8), (1, 9)], (0, 6)),
    "a gap closes": (f"{ONE}:1-3:7-9:20", [ONE], [(0, number) for number in (4, 5, 6, 10, 12, 11, 21)], (0, 8)),
    "one that is there": (f"{ONE}:1-3", [ONE], [(0, 2), (0, 3), (0, 4)], NO_GTID),
    "MariaDB": ("0-1-8,3-2-1", ["0-1", "0-2", "3-2"], [(0, 9), (0, 10), (1, 11), (2, 2), (2, 4)], (1, 12)),
    "the last number": (f"{ONE}:1-3", [ONE], [(0, NUMBER_MAX - 1), (0, NUMBER_MAX)], NO_GTID),
}


@pytest.mark.parametrize("case", CASES)
def test_sets_are_those_of_the_transactions_in_order(case: str) -> None:
    block = block_with(*CASES[case])
    every = block.transaction_count + (block.open_gtid != NO_GTID)
    for wanted in (range(every), range(1, every, 2), [every - 1]):
        marks = marks_of(block, np.array(list(wanted), np.int64))
        for index, transaction in enumerate(wanted):
            text = piece(marks, index, TEXT).decode()
            assert text == executed_up_to(block, transaction) == marks.set_text(index)
            assert name_of(block, transaction).encode() in piece(marks, index, PROPS)


def test_transaction_without_gtid_has_none_between_others() -> None:
    block = block_with(f"{ONE}:1-3", [ONE], [(0, 4), (-1, 0), (-1, 0), (0, 5)], NO_GTID)
    marks = marks_of(block, np.arange(4, dtype=np.int64))
    assert [marks.set_text(index) for index in range(4)] == [f"{ONE}:1-4", "", "", f"{ONE}:1-5"]
    assert (piece(marks, 1, PROPS), name_of(block, 1)) == (b"", "")


def entries(*, gtids: bool) -> list[Any]:
    made = EntryMaker(Display(gtids=gtids), described).messages(recorded())
    return [Entry.FromString(each) for each in Messages.FromString(made).messages]


def props_of(entry: Any) -> dict[str, str]:
    return {pair.key: pair.value for pair in entry.header.props}


def test_entries_differ_by_their_gtids_alone() -> None:
    plain, marked = entries(gtids=False), entries(gtids=True)
    sets = {""}
    for before, after in zip(plain, marked, strict=True):
        props = props_of(after)
        assert {"curtGtid", "curtGtidSn", "curtGtidLct"} <= props.keys()
        assert int(props["curtGtidSn"]) > int(props["curtGtidLct"])
        assert after.header.gtid.endswith(props["curtGtid"].split(":")[-1])
        if after.entryType == EntryType.TRANSACTIONBEGIN:
            assert after.header.gtid not in sets
        sets.add(after.header.gtid)
        after.header.gtid = ""
        kept = [pair for pair in after.header.props if not pair.key.startswith("curtGtid")]
        del after.header.props[:]
        after.header.props.extend(kept)
        assert after == before


@pytest.mark.parametrize("form", ["flat", "protobuf"])
def test_messages_have_the_set_and_the_headers_of_their_event(form: Any) -> None:
    rules = Rules(topic="all", dynamic_topic=r".*\..*", partitions_num=3, partition_hash=".*:$pk$")
    maker = MessageMaker(Routing(rules), form, display=Display(gtids=True), describe=described)
    messages = maker.messages(recorded(), 1)
    by_offset = {f"{each.header.logfileName}:{each.header.logfileOffset}": each for each in entries(gtids=True)}
    for message in messages:
        headers = {name: value.decode() for name, value in headers_of(message) if isinstance(value, bytes)}
        entry = by_offset[headers["sluice-position"]]
        assert headers["sluice-gtid"] == props_of(entry)["curtGtid"]
        if form == "flat":
            assert json.loads(message.body)["gtid"] == entry.header.gtid
    assert messages


def test_store_files_of_an_earlier_version_have_frames_without_clock() -> None:
    block = block_with(f"{ONE}:1-3", [ONE], [(0, 4)], (0, 5))
    record, names = described_block(block), Names(block.tables, block.gtid_sources)
    arrays = dict(zip(empty_arrays(record), arrays_of(block), strict=True))
    assert block_of(record, arrays, names).open_gtid == (0, 5)
    del record["frame_fields"], record["open_gtid"]
    empty = empty_arrays(record)
    for name in ("transaction_frame", "open_frame"):
        arrays[name] = arrays[name][list(empty[name].dtype.names or ())].astype(empty[name].dtype)
    read = block_of(record, arrays, names)
    assert read.open_gtid == NO_GTID
    assert read.transaction_frame["sequence"].tolist() == [-1]
    assert read.transaction_frame["close"].tolist() == block.transaction_frame["close"].tolist()
