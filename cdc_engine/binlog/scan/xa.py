"""Handles XA transactions: their rows take effect at the position of their XA COMMIT. Used by `control_events`.

The binlog has the rows of an XA transaction where it was prepared, and its XA COMMIT or XA ROLLBACK later: after other
transactions, in another file, even days later. Until then the server locks the rows and the tables, so nothing in
between can have changed them. So the events between XA START and XA PREPARE are recorded
(`contracts.PreparedTransactions`) and scanned at the XA COMMIT as if they had been in it, like the events of a
compressed transaction. The record of a rolled-back transaction is deleted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.binlog.events.statements import xa_name
from sluice.cdc_engine.binlog.events.table_map import parse_table_map
from sluice.cdc_engine.binlog.scan import state as at
from sluice.cdc_engine.binlog.scan.block_maker import BlockMaker
from sluice.cdc_engine.binlog.scan.table_references import Captured
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError, UnknownEventError
from sluice.cdc_engine.ports import Content, PreparedTransactions

TABLE_ID_BYTES = 6
Unpack = Callable[[Content, int], Iterator[Block]]


class XaTransactions:
    """Records and replays XA transactions. `unpack` scans events as if they were between a file offset and the end of the current event."""

    def __init__(self, maker: BlockMaker, captured: Captured, prepared: PreparedTransactions, unpack: Unpack) -> None:
        self._maker = maker
        self._state = maker.memory.state
        self._captured = captured
        self._prepared = prepared
        self._unpack = unpack
        self._table_ids: set[int] = set()  # The captured tables of the transaction that is being recorded.

    def start(self) -> None:
        """Starts a recording. From here on the kernel leaves table maps and row events to Python."""
        self._state[at.IN_XA] = 1
        self._table_ids.clear()
        self._prepared.begin()

    @property
    def recording(self) -> bool:
        return bool(self._state[at.IN_XA])

    def record_table_map(self, event: bytes) -> None:
        """Records a table map of a captured table, without its checksum."""
        body = event[types.HEADER_BYTES : len(event) - int(self._state[at.CHECKSUM])]
        table_map = parse_table_map(body)
        if self._captured(table_map.database, table_map.table):
            self._table_ids.add(_table_id(body))
            self._prepared.record(self._plain(event))

    def record_rows(self, event: bytes) -> None:
        if _table_id(event[types.HEADER_BYTES :]) in self._table_ids:
            self._prepared.record(self._plain(event))
            self._state[at.OPEN_ROWS] += 1
        else:
            self._state[at.DROPPED] += 1

    def record_statement(self, event: bytes) -> None:
        """Records a row change in statement format."""
        self._prepared.record(self._plain(event))
        self._state[at.OPEN_ROWS] += 1

    def prepare(self, event: bytes) -> Iterator[Block]:
        """Handles XA_PREPARE, which ends the recording. With ONE PHASE it commits the transaction at once."""
        name, one_phase = parse_prepare(event[types.HEADER_BYTES : len(event) - int(self._state[at.CHECKSUM])])
        if not self.recording:
            raise BinlogFormatError(f"the XA transaction {name} is prepared, and its XA START is missing")
        if one_phase:
            yield from self._replay(self._prepared.recorded())
        else:
            self._prepared.prepare(name, self._maker.position().order_key)

    def commit(self, text: str) -> Iterator[Block]:
        """Handles XA COMMIT. Raises UnknownEventError if the transaction was prepared before the stream began."""
        name = xa_name(text)
        content = self._prepared.commit(name, self._maker.position().order_key)
        if content is None:
            raise UnknownEventError(
                f"the XA transaction {name} is committed and was prepared before the stream began: its rows were never "
                "read; re-snapshot the captured tables, or set the position after it if it did not change them",
                self._maker.file,
                int(self._state[at.BEGAN]),
            )
        yield from self._replay(content)

    def roll_back(self, text: str) -> None:
        self._prepared.roll_back(xa_name(text))

    def _replay(self, content: Content) -> Iterator[Block]:
        state = self._state
        state[at.IN_XA] = state[at.OPEN_ROWS] = 0
        state[at.OPEN] = 1
        state[at.GENERATION] += 1
        state[at.TRANSACTION_OFFSET] = state[at.TRANSACTION_OFFSET] or state[at.FILE_END]
        if content.size:
            yield from self._unpack(content, int(state[at.BEGAN]))

    def _plain(self, event: bytes) -> bytes:
        """Returns the event without its checksum and with its length adjusted."""
        plain = event[: len(event) - int(self._state[at.CHECKSUM])]
        return plain[: types.LENGTH_AT] + struct.pack("<I", len(plain)) + plain[types.LENGTH_AT + 4 :]


def _table_id(body: bytes) -> int:
    return int.from_bytes(body[:TABLE_ID_BYTES], "little")


def parse_prepare(body: bytes) -> tuple[str, bool]:
    """Returns the transaction's name and whether it commits in one phase. Layout: flag 1, format 4, lengths of the
    name's two parts 4 each, the parts.

    https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1XA__prepare__event.html
    """
    try:
        one_phase, kind, first, second = struct.unpack_from("<BiII", body)
    except struct.error as error:
        raise BinlogFormatError("an XA_PREPARE is too short") from error
    at_first = 13
    if at_first + first + second > len(body):
        raise BinlogFormatError("an XA_PREPARE is too short")
    parts = body[at_first : at_first + first], body[at_first + first : at_first + first + second]
    return f"x'{parts[0].hex()}',x'{parts[1].hex()}',{kind}", bool(one_phase)
