"""Handles the events that the scan kernel does not handle itself: new files, new table maps, statements, XA, and events that stop the
stream.

A handler may yield a block with everything before its event, and a block for a DDL statement.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator

import numpy as np

from sluice.cdc_engine.binlog.events import control
from sluice.cdc_engine.binlog.events import event_types as types
from sluice.cdc_engine.binlog.events.statements import StatementKind, is_certain, savepoint_name, statement_kind
from sluice.cdc_engine.binlog.events.undone_rows import UndoneRows
from sluice.cdc_engine.contracts import Block, LoggedStatement, TableChange
from sluice.cdc_engine.errors import BinlogFormatError, TableStoppedError, UndoneRowsError, UnknownEventError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition
from sluice.cdc_engine.parser.scan import state as at
from sluice.cdc_engine.parser.scan.block_maker import BlockMaker
from sluice.cdc_engine.parser.scan.table_references import Captured, TableReferences, stopped_change
from sluice.cdc_engine.parser.scan.xa import XaTransactions
from sluice.cdc_engine.ports import SchemaHistory
from sluice.cdc_engine.position import Position

HARMLESS = frozenset(
    {
        *(types.IGNORABLE, types.TRANSACTION_CONTEXT, types.VIEW_CHANGE, types.MARIADB_START_ENCRYPTION),
        # Events with the file of a LOAD DATA in statement format.
        *(types.BEGIN_LOAD_QUERY, types.APPEND_BLOCK, types.DELETE_FILE),
    }
)
# A flag of MariaDB's GTID event: row events of an XA transaction follow the event, without an XA START.
MARIADB_PREPARED_XA = 0x40
ROWS = (
    *(types.WRITE_ROWS_V1, types.UPDATE_ROWS_V1, types.DELETE_ROWS_V1),
    *(types.WRITE_ROWS, types.UPDATE_ROWS, types.DELETE_ROWS, types.PARTIAL_UPDATE_ROWS),
)
REFUSED = {
    types.INCIDENT: (
        "INCIDENT, LOST_EVENTS: the server lost changes before they reached its binlog; re-snapshot the tables "
        "(`sluice snapshot start`)"
    ),
    types.GTID_TAGGED: (
        "GTID_TAGGED (42) has an unknown form: the server is newer than the versions that Sluice can read; use a newer Sluice"
    ),
}
# Rows that follow a DDL statement in the same transaction get, as their transaction offset, the end of the statement plus this many bytes.
# So their order key is above that of the statement: by two, because an order key counts offsets in units of 16 bytes.
DEFINITION_BYTES = 32
# The first four bytes of a GTID_LIST have the number of entries in this many low bits. The four bits above are flags.
GTID_LIST_COUNT_BITS = 28


@dataclasses.dataclass
class OpenTransaction:
    """The open transaction, as far as ROLLBACK and ROLLBACK TO need it. `generation`: the number of the transaction in the scan state.
    `begin`: an offset in the file before all rows of the transaction. `savepoints`: name → (number of row events before the savepoint, file
    offset of the savepoint). `has_definition`: whether the transaction has a DDL statement that changes captured tables.
    """

    generation: int
    begin: int
    savepoints: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    has_definition: bool = False


class ControlEvents:
    """Handles the events that the scan kernel does not handle, one by one, with a handler for each type of event. A handler gets the whole
    event, with header and checksum.
    """

    def __init__(
        self,
        maker: BlockMaker,
        references: TableReferences,
        history: SchemaHistory,
        captured: Captured,
        xa: XaTransactions,
        *,
        undone: UndoneRows,
    ) -> None:
        self._maker = maker
        self._memory = maker.memory
        self._state = maker.memory.state
        self._references = references
        self._history = history
        self._captured = captured
        self._open_transaction = OpenTransaction(-1, 0)
        self._xa, self._undone = xa, undone
        # The error that makes the parser read a transaction again, because a ROLLBACK has undone row events of the transaction that may
        # already be in a block. None if there is no such transaction. If there are several, the error is about the first one.
        self.undoing: UndoneRowsError | None = None
        # Whether QUERY events of the current file have the session's explicit_defaults_for_timestamp in their flags.
        self._logs_timestamps = False
        self._file_begins = False  # True from the format description of a new file to its PREVIOUS_GTIDS.
        self._handlers: dict[int, Callable[[bytes], Iterator[Block]]] = {
            types.ROTATE: self._rotate,
            types.FORMAT_DESCRIPTION: self._format_description,
            types.QUERY: self._query,
            types.EXECUTE_LOAD_QUERY: self._load,
            types.TABLE_MAP: self._table_map,
            types.PREVIOUS_GTIDS: self._previous_gtids,
            types.MARIADB_GTID_LIST: self._gtid_list,
            types.XA_PREPARE: self._xa_prepare,
            types.MARIADB_GTID: self._mariadb_xa,
            **dict.fromkeys(ROWS, self._xa_rows),
        }

    def take(self, event: bytes) -> Iterator[Block]:
        """Handles one event. Raises UnknownEventError for an unknown event that may have row changes, and BinlogFormatError for an event
        that cannot be parsed.
        """
        event_type = control.event_type_of(event)
        if event_type in self._handlers:
            yield from self._handlers[event_type](event)
        elif event_type in HARMLESS or struct.unpack_from("<H", event, types.FLAGS_AT)[0] & types.FLAG_IGNORABLE:
            self._state[at.IGNORED] += 1
        elif event_type in REFUSED:
            raise self._unknown(REFUSED[event_type])
        else:
            raise self._unknown(f"the event {types.event_name(event_type)} is unknown to Sluice and may contain rows")

    def _unknown(self, what: str) -> UnknownEventError:
        begin = int(self._state[at.BEGAN])
        return UnknownEventError(what, self._maker.file, begin)

    @property
    def _checksum_bytes(self) -> int:
        return int(self._state[at.CHECKSUM])

    def _body(self, event: bytes) -> bytes:
        return event[types.HEADER_BYTES : len(event) - self._checksum_bytes]

    def _time_us(self, event: bytes) -> int:
        """Returns the commit time in µs since 1970: from the transaction's GTID event, or from the header of `event` if the GTID event has
        no commit time.
        """
        return int(self._state[at.TIME_US]) or struct.unpack_from("<I", event)[0] * 1_000_000

    # ── files ──

    def _rotate(self, event: bytes) -> Iterator[Block]:
        yield from self._maker.end_block()
        if self._state[at.OPEN_ROWS]:
            raise BinlogFormatError(
                "the binlog file ends inside a transaction", self._maker.file, int(self._state[at.FILE_END])
            )
        rotation = control.parse_rotate(event, self._checksum_bytes)
        self._maker.files.rotate_to(rotation.file)
        self._state[at.FILE_END], self._state[at.TRANSACTION_OFFSET] = rotation.offset, 0

    def _format_description(self, event: bytes) -> Iterator[Block]:
        file_format = control.parse_format_description(event)
        self._state[at.CHECKSUM] = types.CHECKSUM_BYTES if file_format.checksum else 0
        self._maker.mariadb = "mariadb" in file_format.server_version.lower()
        self._logs_timestamps = file_format.logs_timestamps
        self._file_begins = self._maker.files.described(file_format.created)
        if self._file_begins:
            yield from self._position_at_begin(event)

    def _previous_gtids(self, event: bytes) -> Iterator[Block]:
        yield from self._maker.end_block()
        try:
            previous = GtidSet.decode(self._body(event))
        except ValueError as error:
            raise self._unknown(f"PREVIOUS_GTIDS cannot be read ({error})") from error
        self._maker.executed.file_begins(previous, self._maker.file)
        if self._file_begins:
            self._file_begins = False
            # PREVIOUS_GTIDS is the last event at the beginning of a file. Only transactions follow it.
            yield from self._position_at_begin(event)

    def _position_at_begin(self, event: bytes) -> Iterator[Block]:
        """Yields an empty transaction at the beginning of a file, so that the cursor moves into the file even if no transaction follows.
        Otherwise the source could purge the file in which the cursor is.

        The empty transaction gets the time of the last commit. The time in the header of the file's first events is not usable: on a
        delayed replica, it is later than the commits that follow.
        """
        yield from self._maker.end_block()
        self._add_end(event, self._maker.last_time_us)
        yield from self._maker.end_block()

    def _gtid_list(self, event: bytes) -> Iterator[Block]:
        """Handles MariaDB's GTID list at the beginning of a file: if the executed set is unknown, the list becomes the executed set. Of
        several entries for a domain, the last entry counts.
        """
        yield from self._maker.end_block()
        if not self._maker.executed.known:
            body = self._body(event)
            count = int.from_bytes(body[:4], "little") & ((1 << GTID_LIST_COUNT_BITS) - 1)
            if len(body) < 4 + 16 * count:
                raise self._unknown("GTID_LIST is too short")
            entries = struct.iter_unpack("<IIQ", body[4 : 4 + 16 * count])
            self._maker.executed.adopt(MariadbPosition({domain: (server, seq) for domain, server, seq in entries}))

    # ── tables ──

    def _table_map(self, event: bytes) -> Iterator[Block]:
        if self._xa.recording:
            self._xa.record_table_map(event)
            return
        body = np.frombuffer(self._body(event), np.uint8)
        reference, changes = self._references.reference(body, self._maker.position(self._time_us(event)))
        if changes:
            yield from self._maker.end_block()
            yield from self._maker.end_block(changes)
        self._memory.remember_table(body, reference)

    # ── statements ──

    def _query(self, event: bytes) -> Iterator[Block]:
        statement = control.parse_query(event, self._checksum_bytes, logs_timestamps=self._logs_timestamps)
        kind = statement_kind(statement.text)
        if not statement.takes_effect:
            yield from self._end_if_alone(event)
        elif kind is StatementKind.DEFINITION:
            yield from self._definition(statement, event)
        elif kind is StatementKind.ROW_CHANGE:
            yield from self._row_change(statement, event)
        elif kind in (StatementKind.SAVEPOINT, StatementKind.ROLLBACK_TO, StatementKind.RELEASE):
            yield from self._savepoint(kind, statement.text)
        elif kind is StatementKind.BEGIN:
            self._open()
            self._note_begin(event)
        elif kind is StatementKind.XA_START:
            self._open()
            self._xa.start()
        # XA END needs no handling, because XA PREPARE follows and ends the transaction.
        elif kind is not StatementKind.XA_END:
            yield from self._decide(kind, statement.text)
            yield from self._end(event)

    def _definition(self, statement: control.QueryStatement, event: bytes) -> Iterator[Block]:
        """Yields a DDL statement as a separate block. Within a transaction (CREATE TABLE … SELECT), this block does not end the
        transaction, because the transaction's rows follow in a later block.

        These rows get a transaction offset that is DEFINITION_BYTES after the end of the statement. So the order key of these rows is above
        the order key of the statement, and below the order key of every later transaction.
        """
        yield from self._maker.end_block()
        stands_alone = not self._state[at.OPEN]
        position = self._maker.position(self._time_us(event))
        changes = self._apply(statement, position)
        self._references.forget()
        self._memory.forget_tables()
        if stands_alone:
            self._add_end(event)
        else:
            transaction = self._current_transaction()
            transaction.has_definition = transaction.has_definition or bool(changes)
            self._state[at.TRANSACTION_OFFSET] = self._state[at.FILE_END] + DEFINITION_BYTES
        yield from self._maker.end_block(changes, self._logged(statement, event))

    def _logged(self, statement: control.QueryStatement, event: bytes) -> LoggedStatement:
        seconds, server = struct.unpack_from("<IxI", event)
        return LoggedStatement(
            text=statement.text,
            database=statement.database,
            offset=int(self._state[at.BEGAN]),
            length=len(event),
            seconds=seconds,
            server=server,
            session=dataclasses.replace(statement.session, flavour="mariadb" if self._maker.mariadb else "mysql"),
        )

    def _apply(self, statement: control.QueryStatement, position: Position) -> tuple[TableChange, ...]:
        try:
            return self._history.apply(statement.text, statement.database, position, statement.session)
        except TableStoppedError as error:
            return (stopped_change(error, position),)

    def _row_change(self, statement: control.QueryStatement, event: bytes) -> Iterator[Block]:
        """Handles a row change that is logged as a statement. Stops the tables that the statement may have written, because the changed
        rows are not in the binlog. In an XA transaction, only records the statement. The statement is then handled at the XA COMMIT.
        """
        if self._xa.recording:
            self._xa.record_statement(event)
            return
        changes = self._apply(statement, self._maker.position(self._time_us(event)))
        if changes:
            yield from self._maker.end_block()
            self._references.forget()
            self._memory.forget_tables()
            yield from self._maker.end_block(changes)
        yield from self._end_if_alone(event)

    def _load(self, event: bytes) -> Iterator[Block]:
        """Handles a LOAD DATA in statement format, which is a row change."""
        yield from self._row_change(control.parse_load(event, self._checksum_bytes), event)

    def _savepoint(self, kind: StatementKind, text: str) -> Iterator[Block]:
        name, savepoints = savepoint_name(text), self._current_transaction().savepoints
        if kind is StatementKind.SAVEPOINT:
            savepoints[name] = (int(self._state[at.OPEN_ROWS]), int(self._state[at.BEGAN]))
        elif kind is StatementKind.ROLLBACK_TO and self._state[at.OPEN_ROWS]:
            what = "a ROLLBACK TO undoes rows of captured tables within their transaction"
            if not is_certain(name, savepoints):
                raise self._unknown(f"{what}, and Sluice cannot tell which savepoint it means")
            yield from self._undo(what, *savepoints[name])

    def _current_transaction(self) -> OpenTransaction:
        """Returns the open transaction. The first call for a transaction sets `begin` from TRANSACTION_OFFSET. A DDL statement changes
        TRANSACTION_OFFSET, so the first call must come before this change.
        """
        generation = int(self._state[at.GENERATION])
        if self._open_transaction.generation != generation:
            self._open_transaction = OpenTransaction(generation, int(self._state[at.TRANSACTION_OFFSET]))
        return self._open_transaction

    def _undo(self, what: str, rows: int, begin: int) -> Iterator[Block]:
        """Marks the row events of the open transaction from the file offset `begin` on as undone. `rows` is the number of the transaction's
        row events before `begin`. If the undone row events were not marked before, sets `undoing`: the transaction is read again without
        them.

        Raises UnknownEventError if the row events cannot be left out. This is the case in an XA transaction or a compressed transaction,
        whose events have no file offsets of their own, and in a transaction with a DDL statement, which a ROLLBACK does not undo.
        """
        if self._state[at.OPEN_ROWS] <= rows:
            return
        end = int(self._state[at.BEGAN])
        if self._xa.recording or self._current_transaction().has_definition or begin >= end:
            raise self._unknown(what)
        if self._undone.add(self._maker.epoch, self._maker.file, begin, end) and self.undoing is None:
            yield from self._maker.end_block()  # The transactions before the open one are not read again.
            self.undoing = UndoneRowsError(what, self._maker.file, end)
        self._state[at.OPEN_ROWS] = rows

    def _decide(self, kind: StatementKind, text: str) -> Iterator[Block]:
        if kind is StatementKind.ROLLBACK:
            what = "a ROLLBACK ends a transaction that has rows of captured tables"
            yield from self._undo(what, 0, self._current_transaction().begin)
        elif kind is StatementKind.XA_COMMIT:
            yield from self._xa.commit(text)
        elif kind is StatementKind.XA_ROLLBACK:
            self._xa.roll_back(text)
        elif self._xa.recording and self._state[at.OPEN_ROWS]:
            raise self._unknown("a COMMIT ends an XA transaction that was not prepared")

    # ── transactions ──

    def _open(self) -> None:
        self._state[at.OPEN] = 1
        self._state[at.TRANSACTION_OFFSET] = self._state[at.TRANSACTION_OFFSET] or self._state[at.FILE_END]
        self._state[at.OPEN_ROWS] = self._state[at.IN_XA] = 0
        self._state[at.GENERATION] += 1
        self._state[at.BEGIN_AT] = -1

    def _note_begin(self, event: bytes) -> None:
        """Records where a transaction begins. The kernel handles a statement whose text is exactly BEGIN. This method handles other forms
        of BEGIN.
        """
        seconds = struct.unpack_from("<I", event)[0]
        thread = struct.unpack_from("<I", event, types.HEADER_BYTES)[0]
        began = (self._state[at.BEGAN], len(event), seconds, thread)
        self._state[[at.BEGIN_AT, at.BEGIN_LENGTH, at.BEGIN_SECONDS, at.BEGIN_THREAD]] = began

    def _end_if_alone(self, event: bytes) -> Iterator[Block]:
        if not self._state[at.OPEN]:
            yield from self._end(event)

    def _end(self, event: bytes) -> Iterator[Block]:
        yield from self._maker.end_block()
        self._add_end(event)
        yield from self._maker.end_block()

    def _add_end(self, event: bytes, time_us: int | None = None) -> None:
        state, ends = self._state, self._memory.ends
        time_us = self._time_us(event) if time_us is None else time_us
        entry = (state[at.EVENT_COUNT], state[at.FILE_END], time_us, state[at.SOURCE], state[at.NUMBER])
        ends[: at.END_FRAME, state[at.END_COUNT]] = entry
        ends[at.END_FRAME :, state[at.END_COUNT]] = self._frame(event)
        state[at.END_COUNT] += 1
        state[[at.OPEN, at.OPEN_ROWS, at.IN_XA, at.TIME_US, at.NUMBER, at.TRANSACTION_OFFSET]] = 0
        state[[at.SOURCE, at.BEGIN_AT, at.COMMITTED, at.SEQUENCE, at.QUERY_AT]] = -1
        state[at.GENERATION] += 1

    def _frame(self, event: bytes) -> tuple[int, ...]:
        """Returns the frame (`contracts.FRAME`: first event, last event, logical clock) of the transaction that `event` ends."""
        begin = self._state[[at.BEGIN_AT, at.BEGIN_LENGTH, at.BEGIN_SECONDS, at.BEGIN_THREAD]].tolist()
        seconds, server = struct.unpack_from("<IxI", event)
        clock = self._state[[at.COMMITTED, at.SEQUENCE]].tolist()
        return (*begin, int(self._state[at.BEGAN]), len(event), seconds, -1, server, *clock)

    # ── XA ──

    def _mariadb_xa(self, event: bytes) -> Iterator[Block]:
        """Handles MariaDB's GTID event with an XA flag: begins to record an XA transaction if its row events follow. The kernel has read
        the GTID already.
        """
        if event[types.HEADER_BYTES + 12] & MARIADB_PREPARED_XA:
            self._xa.start()
        yield from ()

    def _xa_rows(self, event: bytes) -> Iterator[Block]:
        self._xa.record_rows(event)
        yield from ()

    def _xa_prepare(self, event: bytes) -> Iterator[Block]:
        yield from self._xa.prepare(event)
        yield from self._end(event)
