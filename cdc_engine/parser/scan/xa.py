"""Handles XA transactions, whose rows take effect at the position of their XA COMMIT.

In the binlog, the row events of an XA transaction are between XA START and XA PREPARE. The XA COMMIT or XA ROLLBACK can follow after other
transactions, in another file, even days later. Until the XA COMMIT or XA ROLLBACK, the server locks the rows and tables, so no other
transaction can change them.

Sluice records the events from XA START to XA PREPARE (`ports.PreparedTransactions`). At the XA COMMIT, Sluice scans the recorded events
like the events in a compressed event. At the XA ROLLBACK, it deletes the recorded events.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.binlog.events.statements import xa_name
from sluice.cdc_engine.binlog.events.table_map import parse_table_map
from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import BinlogFormatError, XaUnreadError
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.block_maker import BlockMaker
from sluice.cdc_engine.parser.scan.table_references import Captured
from sluice.cdc_engine.ports import Content, PreparedTransactions

TABLE_ID_BYTES = 6
Unpack = Callable[[Content, int], Iterator[Block]]


class XaTransactions:
    """Records XA transactions, and replays them when they are committed. `unpack` scans the recorded events of a transaction as if they
    were in the binlog file, from a given offset to the end of the event that commits the transaction.
    """

    def __init__(self, maker: BlockMaker, captured: Captured, prepared: PreparedTransactions, unpack: Unpack) -> None:
        self._maker = maker
        self._state = maker.memory.state
        self._captured = captured
        self._prepared = prepared
        self._unpack = unpack
        # The table ids that captured tables have in the transaction that is being recorded.
        self._table_ids: set[int] = set()

    def start(self) -> None:
        """Begins to record an XA transaction. From now on, the kernel hands over table maps and row events to Python."""
        self._state[at.IN_XA] = 1
        self._table_ids.clear()
        self._prepared.begin()

    @property
    def recording(self) -> bool:
        return bool(self._state[at.IN_XA])

    def record_table_map(self, event: bytes) -> None:
        """Records a table map event, without its checksum, if the table is captured."""
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
        """Records the event of a statement that changes rows."""
        self._prepared.record(self._plain(event))
        self._state[at.OPEN_ROWS] += 1

    def prepare(self, event: bytes) -> Iterator[Block]:
        """Handles an XA_PREPARE event, which ends the recording. An XA_PREPARE event of XA COMMIT … ONE PHASE also commits the transaction,
        so its rows are replayed.
        """
        name, one_phase = parse_prepare(event[types.HEADER_BYTES : len(event) - int(self._state[at.CHECKSUM])])
        if not self.recording:
            raise BinlogFormatError(f"the stream has the XA PREPARE of {name} without its XA START")
        if one_phase:
            yield from self._replay(self._prepared.recorded())
        else:
            self._prepared.prepare(name, self._maker.position().order_key)

    def commit(self, text: str) -> Iterator[Block]:
        """Handles the statement XA COMMIT: replays the recorded events of the transaction. Raises XaUnreadError if the transaction was
        prepared before the stream began, because its rows were never read.
        """
        name = xa_name(text)
        content = self._prepared.commit(name, self._maker.position().order_key)
        if content is None:
            raise XaUnreadError(
                f"the XA transaction {name} was prepared before the stream began and is now committed: its "
                "rows were never read; re-snapshot the captured tables, or, if the transaction did not "
                "change captured tables, set the position after its XA COMMIT with `sluice position set`",
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
        """Returns the event without its checksum. The length in the header of the result does not count the checksum."""
        plain = event[: len(event) - int(self._state[at.CHECKSUM])]
        return plain[: types.LENGTH_AT] + struct.pack("<I", len(plain)) + plain[types.LENGTH_AT + 4 :]


def _table_id(body: bytes) -> int:
    return int.from_bytes(body[:TABLE_ID_BYTES], "little")


def parse_prepare(body: bytes) -> tuple[str, bool]:
    """Parses the body of an XA_PREPARE event. Returns (id of the transaction, whether the transaction commits in one phase). The body has
    the one-phase flag (1 byte), the format of the id (4), the lengths of the two parts of the id (4 each), and the two parts. Raises
    BinlogFormatError if the body is too short.
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
