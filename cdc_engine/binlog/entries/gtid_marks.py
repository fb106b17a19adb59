"""Writes the GTIDs of transactions for entries and flat messages: Canal's props curtGtid, curtGtidSn and curtGtidLct, and the executed set
that includes the transaction.

While the transaction numbers of one server are consecutive, the texts of the executed sets after these transactions differ in one number
only. So Python code makes one template for each series of such transactions, and a kernel fills in each transaction's number.
"""
# ruff: noqa: PLR0917 - numba has no keyword-only arguments

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.entries.flat_json import put_number, put_piece
from sluice.cdc_engine.binlog.entries.kernel_arguments import Pieces
from sluice.cdc_engine.binlog.entries.protobuf import put_bytes, put_varint, varint_size
from sluice.cdc_engine.contracts import NO_GTID, Block, Bytes, Int64s
from sluice.cdc_engine.gtid import SetText, gtid_name, is_mariadb, parse_executed

# A transaction has three pieces: its props (protobuf Pairs), the key and length of the field `gtid`, and the text of the field `gtid`.
PROPS, FIELD, TEXT = range(3)
PIECES = 3
# For each of Canal's props: the first bytes of its protobuf Pair. The length and the bytes of the prop's value follow.
CURRENT = np.frombuffer(b"\x0a\x08curtGtid\x12", np.uint8)
SEQUENCE = np.frombuffer(b"\x0a\x0acurtGtidSn\x12", np.uint8)
COMMITTED = np.frombuffer(b"\x0a\x0bcurtGtidLct\x12", np.uint8)
# A template has the texts that are constant while only the transaction's number changes, in three pieces: the executed set's text before
# the number, the executed set's text after the number, and the GTID's text before the number.
BEFORE, AFTER, SOURCE = range(3)


class MarkedTransactions(NamedTuple):
    """The transactions whose GTIDs are written, one value per transaction. `templates`: index of the transaction's template, or -1 for a
    transaction without a GTID. `numbers`: the number in the transaction's GTID. `committed`, `sequences`: the transaction's logical clock
    (last_committed and sequence_number), or -1 if the binlog has no logical clock.
    """

    templates: Int64s
    numbers: Int64s
    committed: Int64s
    sequences: Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class GtidMarks:
    """The GTID texts of some transactions of a block. `transactions`: the indices of these transactions in the block, ascending. The index
    `Block.transaction_count` means the transaction that ends in a later block. `pieces`: for each of these transactions, three parts of the
    header of Canal's entries. These are the GTID as Pairs of the field `props`, the protobuf tag and length of the field `gtid`, and the
    text of `gtid`, which is the executed set.
    """

    transactions: Int64s
    pieces: Pieces

    def indices(self, transactions: Int64s) -> Int64s:
        """Returns the index of each given transaction in `self.transactions`, which must contain all of them. If there are no marks,
        returns -1 for each.
        """
        if not len(self.transactions):
            return np.full(len(transactions), -1, np.int64)
        return np.searchsorted(self.transactions, transactions).astype(np.int64)

    def set_text(self, index: int) -> str:
        """Returns the executed set after the transaction at `index` of `self.transactions`, or an empty text if the set is unknown."""
        if index >= len(self.transactions):
            return ""
        first, last = self.pieces.starts[PIECES * index + TEXT], self.pieces.starts[PIECES * (index + 1)]
        return self.pieces.data[first:last].tobytes().decode()


NO_TEXT = SetText("", -1, "", 0)
NO_MARKS = GtidMarks(np.zeros(0, np.int64), Pieces(np.zeros(1, np.uint8), np.zeros(1, np.int64)))


def transactions_of(block: Block, events: Int64s) -> Int64s:
    """Returns, for each row event in `events` (indices in the block), the index of its transaction in the block. For a transaction that
    ends in a later block, the index is `Block.transaction_count`.
    """
    return np.searchsorted(block.transaction_events, events, "right").astype(np.int64)


def name_of(block: Block, transaction: int) -> str:
    """Returns the GTID of the transaction with index `transaction`, or an empty text if the transaction has no GTID or the executed set is
    unknown.
    """
    source, number = block.open_gtid
    if transaction < block.transaction_count:
        source, number = int(block.transaction_source[transaction]), int(block.transaction_number[transaction])
    return gtid_name(block.gtid_sources[source], number) if source >= 0 else ""


def marks_of(block: Block, wanted: Int64s) -> GtidMarks:
    """Returns the GTID texts of the transactions `wanted` (ascending indices without duplicates)."""
    if not len(wanted):
        return NO_MARKS
    open_source, open_number = block.open_gtid if len(block.open_frame) else NO_GTID
    source = np.append(block.transaction_source, open_source).astype(np.int64)
    number = np.append(block.transaction_number, open_number)
    clocks = [
        np.append(block.transaction_frame[name], block.open_frame[name][:1] if len(block.open_frame) else -1)[wanted]
        for name in ("committed", "sequence")
    ]
    begins, texts = _runs(block, source, number, int(wanted[0]), int(wanted[-1]) + 1)
    templates = np.searchsorted(begins, wanted, "right") - 1
    templates[source[wanted] < 0] = -1
    marked = MarkedTransactions(templates, number[wanted], *map(np.ascontiguousarray, clocks))
    firsts = np.array([text.first for text, _ in texts], np.int64)
    pool = pieces_of([part for text, name in texts for part in (text.before, text.after, name)])
    starts, out = np.empty(PIECES * len(wanted) + 1, np.int64), np.empty(0, np.uint8)
    for writes in (False, True):
        put_marks(out, writes, marked, firsts, pool, starts)
        if not writes:
            out = np.empty(int(starts[-1]), np.uint8)
    return GtidMarks(wanted, Pieces(out, starts))


def _runs(
    block: Block, source: Int64s, number: Int64s, first: int, last: int
) -> tuple[Int64s, list[tuple[SetText, str]]]:
    """Divides the transactions [first, last) into series. The transactions of a series have consecutive numbers of one server, so the texts
    of their executed sets differ only in the number. Returns (firsts, texts). `firsts`: the first transaction of each series. `texts`: for
    each series, the text of its executed sets without the number (`SetText`), and the text of its GTIDs before the number.
    """
    sources, start = block.gtid_sources, block.start_gtid_set
    begins, texts = list[int](), list[tuple[SetText, str]]()
    if not (source[:last] >= 0).any():
        return np.zeros(0, np.int64), texts
    executed = parse_executed(start, mariadb=is_mariadb(start or sources[0]))
    executed = executed.including(sources, source[:first].astype(np.int32), number[:first])
    breaks = (np.diff(source[first:last]) != 0) | (np.diff(number[first:last]) != 1)
    for end in (*(first + 1 + np.flatnonzero(breaks)).tolist(), last):
        while first < end:
            begins.append(first)
            if source[first] < 0:
                texts.append((NO_TEXT, ""))
                first = end
                continue
            name = sources[source[first]]
            text = executed.around(name, int(number[first]))
            texts.append((text, gtid_name(name, "")))
            upto = min(end, first + max(1, text.last - int(number[first]) + 1))
            executed = executed.including(sources, source[first:upto].astype(np.int32), number[first:upto])
            first = upto
    return np.array(begins, np.int64), texts


def pieces_of(texts: list[str]) -> Pieces:
    data = [text.encode() for text in texts]
    starts = np.zeros(len(data) + 1, np.int64)
    np.cumsum([len(each) for each in data], out=starts[1:])
    return Pieces(np.frombuffer(b"".join(data) or b"\0", np.uint8), starts)


@kernel
def put_marks(
    out: Bytes, writes: bool, marked: MarkedTransactions, firsts: Int64s, templates: Pieces, starts: Int64s
) -> None:
    """Writes to `out`, for each transaction, three parts of the header of Canal's entries. These are the GTID as Pairs of the field
    `props`, the protobuf tag and length of the field `gtid`, and the text of `gtid`. Also writes the offset of each part, and the end of
    the last part, to `starts`. If `writes` is False, writes only these offsets.
    """
    at = np.int64(0)
    for index in range(marked.templates.shape[0]):
        template = marked.templates[index]
        starts[PIECES * index + PROPS] = at
        if template >= 0:
            number, source = marked.numbers[index], PIECES * template + SOURCE
            size = templates.starts[source + 1] - templates.starts[source] + put_number(out, 0, False, number)
            at = put_pair(out, at, writes, CURRENT, size)
            at = put_piece(out, at, templates, source, writes)
            at = put_number(out, at, writes, number)
            if marked.sequences[index] >= 0:
                at = put_number_pair(out, at, writes, SEQUENCE, marked.sequences[index])
                at = put_number_pair(out, at, writes, COMMITTED, marked.committed[index])
        starts[PIECES * index + FIELD] = at
        if template >= 0:
            size = put_set(out, 0, False, template, marked.numbers[index], firsts, templates)
            if writes:
                out[at] = 0x6A
                put_varint(out, at + 1, size)
            at += 1 + varint_size(size)
        starts[PIECES * index + TEXT] = at
        if template >= 0:
            at = put_set(out, at, writes, template, marked.numbers[index], firsts, templates)
    starts[PIECES * marked.templates.shape[0]] = at


@kernel
def put_pair(out: Bytes, at: Integer, writes: bool, key: Bytes, size: Integer) -> Integer:
    """Writes one Pair (key and value) of the field `props` in the header of a Canal entry, without the value, which the caller writes.
    `key`: SEQUENCE, for example. `size`: the number of bytes of the value, which is below 100, so that each length needs only one byte. If
    `writes` is False, writes nothing. Returns the offset at which the value begins.
    """
    if writes:
        out[at], out[at + 1] = 0x62, key.shape[0] + 1 + size
        put_bytes(out, at + 2, key, 0, key.shape[0])
        out[at + 2 + key.shape[0]] = size
    return at + 3 + key.shape[0]


@kernel
def put_number_pair(out: Bytes, at: Integer, writes: bool, key: Bytes, number: Integer) -> Integer:
    at = put_pair(out, at, writes, key, put_number(out, 0, False, number))
    return put_number(out, at, writes, number)


@kernel
def put_set(
    out: Bytes, at: Integer, writes: bool, template: Integer, number: Integer, firsts: Int64s, templates: Pieces
) -> Integer:
    """Writes the executed set after a transaction: the template's text before the number, the number, and the template's text after the
    number (`gtid.SetText`). The number is the transaction's number, or the range of numbers that ends with it, such as 1-57.
    """
    first = firsts[template]
    at = put_piece(out, at, templates, PIECES * template + BEFORE, writes)
    if first > 0 and first != number:
        at = put_number(out, at, writes, first)
        if writes:
            out[at] = 45
        at += 1
    if first >= 0:
        at = put_number(out, at, writes, number)
    return put_piece(out, at, templates, PIECES * template + AFTER, writes)
