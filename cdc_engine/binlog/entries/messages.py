"""Encodes a consumer's part of the stream as field `messages` of Canal's Messages packet. Called for each delivery, by the protocol server
and by the broker senders.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sluice.cdc_engine.binlog.entries import assemble
from sluice.cdc_engine.binlog.entries.elements import BEGIN, OPEN_HERE, QUERY, ROWS
from sluice.cdc_engine.binlog.entries.gtid_marks import NO_MARKS, GtidMarks, marks_of, pieces_of, transactions_of
from sluice.cdc_engine.binlog.entries.kernel_arguments import EntryHeaders, Pieces
from sluice.cdc_engine.binlog.entries.locate import little_endian_at
from sluice.cdc_engine.binlog.entries.numbers import SOURCE_MYSQL, EntryType
from sluice.cdc_engine.binlog.entries.protobuf import gather_entries, gathered_size
from sluice.cdc_engine.binlog.entries.rows import Entries, KeptColumns, TableEntries
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.events.event_types import HEADER_BYTES, LENGTH_AT, ROWS_QUERY, SERVER_ID_AT, TYPE_AT
from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, number_field
from sluice.cdc_engine.binlog.rows.refused_values import DEFAULT_POLICY, ValuePolicy
from sluice.cdc_engine.contracts import FRAME, Block, Bytes, Frames, Int8s, Int64s, LoggedStatement, TableVersion

# The maximum number of bytes of the entry of a transaction's beginning or end, without the file name.
FRAME_BYTES_MAX = 128
# The TableEntries of at most this many table versions are cached. Before another version is added, the full cache is emptied.
VERSIONS_MAX = 10_000


class DescribedStatement(Protocol):
    """What the entry of a statement says about the statement: its EventType, database (`schema`) and table."""

    @property
    def kind(self) -> int: ...
    @property
    def schema(self) -> str: ...
    @property
    def table(self) -> str: ...


class EntryPart(Protocol):
    """What a consumer gets of one block: one statement, or several elements in order. The elements are beginnings and ends of transactions,
    row events, and the SQL texts that the source logs before row events. `consumer_stream.Chosen` implements this protocol.
    """

    @property
    def block(self) -> Block: ...
    @property
    def kinds(self) -> Int8s: ...
    @property
    def indices(self) -> Int64s: ...
    @property
    def statement(self) -> LoggedStatement | None: ...


class EntryMaker:
    """Makes the entries of one destination. `describe`: returns the kind, database and table of a statement. `policies`: "database.table" →
    the policy for the table's values. `keys`: "database.table" → the key that conf/ declares. `policies` and `keys` contain only tables
    that have such a setting. `kept`: returns the indices of a table's captured columns; None means all columns.
    """

    def __init__(
        self,
        display: Display,
        describe: Callable[[LoggedStatement], DescribedStatement | None],
        policies: Mapping[str, ValuePolicy] | None = None,
        kept: KeptColumns | None = None,
        keys: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._display, self._describe, self._policies = display, describe, policies or {}
        self._kept, self._keys = kept, keys or {}
        self._tables: dict[int, TableEntries] = {}

    def messages(self, parts: Sequence[EntryPart]) -> bytes:
        """Returns the entries of all parts in order, each as one field 2 of a Messages packet. Raises SluiceError if an entry cannot be
        made, for example because a row event is damaged.
        """
        return b"".join(self._of(part) for part in parts)

    def _of(self, part: EntryPart) -> bytes:
        if part.statement is not None:
            return bytes_field(2, self.statement(part.block, part.statement))
        file = np.frombuffer(part.block.file.encode(), np.uint8)
        rows = part.kinds == ROWS
        marks = self.marks(part)
        indices, starts, sizes, data = list[Int64s](), list[Int64s](), list[Int64s](), list[Bytes]()
        used = 0
        for at, entries in self._made(part, file, rows, marks):
            indices.append(at)
            starts.append(entries.starts + used)
            sizes.append(entries.sizes)
            data.append(entries.data)
            used += len(entries.data)
        if not indices:
            return b""
        order = np.argsort(np.concatenate(indices), kind="stable")
        each_start, each_size = np.concatenate(starts)[order], np.concatenate(sizes)[order]
        out = np.empty(int(gathered_size(each_size)), np.uint8)
        gather_entries(np.concatenate(data), each_start, each_size, out)
        return out.tobytes()

    def marks(self, part: EntryPart) -> GtidMarks:
        """Returns the GTIDs of the transactions of a part, or NO_MARKS if the consumer gets no GTIDs. For a part with a statement, returns
        the GTID of the statement's block, which has only one transaction.
        """
        if not self._display.gtids:
            return NO_MARKS
        if part.statement is not None:
            return marks_of(part.block, np.zeros(1, np.int64))
        return marks_of(part.block, np.unique(_transactions(part)))

    def _made(self, part: EntryPart, file: Bytes, rows: Any, marks: GtidMarks) -> Iterator[tuple[Int64s, Entries]]:
        """Yields (indices in the part, entries): first for transactions' beginnings and ends, then for SQL texts, then for each table's row
        events.
        """
        queries = part.kinds == QUERY
        framing = np.flatnonzero(~(rows | queries))
        if len(framing):
            yield framing, _frame_entries(part, framing, file, marks)
        yield from _query_entries(part, np.flatnonzero(queries), file, marks)
        indices = np.flatnonzero(rows)
        tables = part.block.event_table[part.indices[indices]]
        for table in np.unique(tables).tolist():
            own = indices[tables == table]
            for entries in self.table(part.block.tables[table]).entries(part.block, part.indices[own], file, marks):
                yield own[entries.events], entries

    def table(self, version: TableVersion) -> TableEntries:
        """Returns the TableEntries that makes the entries of a table version. Results are cached."""
        found = self._tables.get(id(version))
        if found is None or found.version is not version:
            if len(self._tables) >= VERSIONS_MAX:
                self._tables.clear()
            policy = self._policies.get(version.name, DEFAULT_POLICY)
            key = self._keys.get(version.name, ())
            found = self._tables[id(version)] = TableEntries(version, self._display, policy, self._kept, key)
        return found

    def statement(self, block: Block, statement: LoggedStatement) -> bytes:
        """Returns the entry of a statement as protobuf bytes. If `describe` does not know the statement, the entry has no kind, database
        and table.
        """
        found = self._describe(statement)
        kind = int(found.kind) if found is not None else 0
        header = (
            number_field(1, 1) + bytes_field(2, block.file.encode()) + number_field(3, statement.offset)
            + number_field(4, statement.server) + bytes_field(5, b"UTF-8") + number_field(6, statement.seconds * 1000)
            + number_field(7, SOURCE_MYSQL)
            + bytes_field(8, found.schema.encode() if found is not None else b"")
            + bytes_field(9, found.table.encode() if found is not None else b"")
            + number_field(10, statement.length) + number_field(11, kind) + self._statement_gtids(block)
        )  # fmt: skip
        change = number_field(2, kind) + number_field(10, 1) + bytes_field(11, statement.text.encode())
        change += bytes_field(14, statement.database.encode())
        return bytes_field(1, header) + number_field(2, EntryType.ROWDATA) + bytes_field(3, change)

    def _statement_gtids(self, block: Block) -> bytes:
        """Returns the encoded fields `props` and `gtid` for the header of a statement's entry."""
        return marks_of(block, np.zeros(1, np.int64)).pieces.data.tobytes() if self._display.gtids else b""


def _transactions(part: EntryPart) -> Int64s:
    """Returns the index of each entry's transaction. The transaction that is open at the block's end has the index `transaction_count`."""
    found = np.where(part.indices == OPEN_HERE, part.block.transaction_count, part.indices)
    rows, queries = part.kinds == ROWS, part.kinds == QUERY
    found[rows] = transactions_of(part.block, part.indices[rows])
    found[queries] = transactions_of(part.block, part.block.query_event[part.indices[queries]])
    return found


def _query_entries(part: EntryPart, indices: Int64s, file: Bytes, marks: GtidMarks) -> Iterator[tuple[Int64s, Entries]]:
    """Yields (indices in the part, entries) for the SQL texts that the source logs before row events, one pair per table. An entry names
    the table of the first row event of its statement. For MariaDB, an entry names no table, as in Canal.
    """
    block, buffer = part.block, part.block.buffer
    offsets = block.query_offset[part.indices[indices]]
    named = np.where(
        buffer[offsets + TYPE_AT] == ROWS_QUERY, block.event_table[block.query_event[part.indices[indices]]], -1
    )
    transactions = _transactions(part)
    for table in np.unique(named).tolist():
        own = indices[named == table]
        queries, at = part.indices[own], offsets[named == table]
        name = bytes_field(9, block.tables[table].table.encode()) if table >= 0 else b""
        begins = at + HEADER_BYTES + (table >= 0)  # In MySQL's event, a length byte is before the text.
        texts = rows_query_texts(buffer, begins, at + block.query_length[queries])
        headers = EntryHeaders(
            file,
            np.frombuffer(name, np.uint8),
            np.ascontiguousarray(block.query_position[queries]),
            little_endian_at(buffer, at + SERVER_ID_AT, 4),
            little_endian_at(buffer, at, 4) * 1000,
            little_endian_at(buffer, at + LENGTH_AT, 4),
            np.zeros(len(own), np.int64),
            marks.pieces,
            marks.indices(transactions[own]),
        )
        room = (
            len(own) * (FRAME_BYTES_MAX + len(file) + len(name)) + len(texts.data) + len(marks.pieces.data) * len(own)
        )
        out = np.empty(room, np.uint8)
        starts, sizes = np.empty(len(own), np.int64), np.empty(len(own), np.int64)
        used = assemble.put_queries(out, texts, headers, starts, sizes)
        yield own, Entries(out[:used], starts, sizes)


def rows_query_texts(buffer: Bytes, begins: Int64s, ends: Int64s) -> Pieces:
    """Returns SQL texts in UTF-8. Bytes that are invalid in UTF-8, from a client with another charset, become U+FFFD, as in Canal."""
    starts = np.zeros(len(begins) + 1, np.int64)
    np.cumsum(ends - begins, out=starts[1:])
    data = np.empty(max(1, int(starts[-1])), np.uint8)
    assemble.gather_texts(buffer, begins, starts, data)
    try:
        data[: starts[-1]].tobytes().decode()
    except UnicodeDecodeError:
        texts = (data[first:last].tobytes() for first, last in itertools.pairwise(starts.tolist()))
        return pieces_of([text.decode(errors="replace") for text in texts])
    return Pieces(data, starts)


def _frame_entries(part: EntryPart, chosen: Int64s, file: Bytes, marks: GtidMarks) -> Entries:
    kinds, indices = np.ascontiguousarray(part.kinds[chosen]), part.indices[chosen]
    frames = _frames(part, chosen, indices)
    begins = kinds == BEGIN
    # For a transaction without a BEGIN event, such as a committed XA transaction, the entry of the beginning has the offset of the end.
    shown_begins = begins & (frames["begin"] >= 0)
    offsets = np.where(shown_begins, frames["begin"], frames["close"])
    lengths = np.where(shown_begins, frames["begin_length"], frames["close_length"])
    seconds = np.where(shown_begins, frames["begin_seconds"], frames["close_seconds"])
    numbers = np.where(begins, np.where(shown_begins, frames["thread"], 0), np.maximum(frames["xid"], 0))
    count = len(chosen)
    own = marks.indices(_transactions(part)[chosen])
    out = np.empty(count * (FRAME_BYTES_MAX + len(file)) + len(marks.pieces.data) * 2, np.uint8)
    starts, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
    servers, no_rows = np.ascontiguousarray(frames["server"]), np.zeros(count, np.int64)
    no_names = np.zeros(0, np.uint8)
    headers = EntryHeaders(file, no_names, offsets, servers, seconds * 1000, lengths, no_rows, marks.pieces, own)
    used = assemble.put_frames(out, kinds, numbers, headers, starts, sizes)
    return Entries(out[:used], starts, sizes)


def _frames(part: EntryPart, chosen: Int64s, indices: Int64s) -> Frames:
    """Returns the offsets, times and ids of transactions' beginnings and ends. If a transaction ends in a later block, its server id is
    that of its first row event in the part. If such a transaction has no BEGIN event, its offset, length and time are also those of this
    row event.
    """
    block, open_here = part.block, indices == OPEN_HERE
    frames = np.zeros(len(indices), FRAME)
    frames[~open_here] = block.transaction_frame[indices[~open_here]]
    if open_here.any():
        index = int(np.flatnonzero(open_here)[0])
        after = int(chosen[index]) + 1
        event = int(part.indices[after + (part.kinds[after] == QUERY)])
        at = block.event_offset[[event]]
        if len(block.open_frame):
            frames[index] = block.open_frame[0]
        frames["server"][index] = little_endian_at(block.buffer, at + 5, 4)[0]
        if frames["begin"][index] < 0:
            frames["close"][index] = block.event_position[event]
            frames["close_length"][index] = little_endian_at(block.buffer, at + 9, 4)[0]
            frames["close_seconds"][index] = little_endian_at(block.buffer, at, 4)[0]
    return frames
