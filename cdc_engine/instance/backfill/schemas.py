"""The schemas by which a stretch of the past is read: those that hold where the lake is, for tables that no statement concerns since.

Asked by the scan of a backfill. A statement that concerns a table is written down, and the table is refused for it (`rules`): then nobody
need know what it was before. So a backfill does not hang on how far the schema history reaches back.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from cdc_engine.binlog.charsets.statement_text import Literals, shown
from cdc_engine.binlog.events.table_map import TableMap
from cdc_engine.contracts import NO_SESSION, Cascade, StatementSession, TableChange, TableVersion
from cdc_engine.position import Position
from cdc_engine.table_meta.ddl.lower_case import lowered
from cdc_engine.table_meta.ddl.reader import leading_words, read_statement
from cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    CreateTable,
    RowChange,
    SetDatabase,
    Statement,
    TableName,
    Unread,
    dropped_database,
)
from cdc_engine.table_meta.history.concerned import concerned
from cdc_engine.table_meta.history.history import TableHistory
from cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas, TableKey
from cdc_engine.table_meta.history.kept.repository import Record, RecordKind, RecordsInMemory
from cdc_engine.table_meta.schema import ServerFacts, TableSchema

TEXT_CHARS_MAX = 80  # of a statement where it is shown


class IntervalSchemas:
    """`ports.SchemaHistory` of a stretch that begins at `start`. `statements`: "database.table" → those that concern it, with their places.

    `records`: of the destination's schema history; those that hold at `known_at` count, wherever they were written.
    """

    def __init__(
        self, records: Iterable[Record], known_at: Position, start: Position, captured: Callable[[str, str], bool]
    ) -> None:
        newest: dict[tuple[bool, str, str], Record] = {}
        for record in records:
            if record.position.order_key <= known_at.order_key:
                newest[record.kind is RecordKind.SERVER, record.database, record.table] = record
        there = [dataclasses.replace(record, position=start) for record in newest.values()]
        self._history = TableHistory(RecordsInMemory(there), captured)
        self._known = KnownSchemas()
        for record in there:
            self._known.remember(record)
        self._start, self._captured = start, captured
        self._server = self._known.server(start.order_key) or ServerFacts(flavour="mysql", charset="")
        self.statements: dict[str, list[str]] = defaultdict(list)

    def versions(self) -> dict[str, TableVersion]:
        """The captured tables whose schema is known, by "database.table"."""
        return {version.name: version for version in self._history.versions(self._start)}

    def rows_follow(self, database: str, table: str) -> bool:
        """Whether rows of a table change with those of others, without row events."""
        return self._history.follows(database, table)

    # ── as the scan asks ──

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        return self._history.resolve(table_map, position)

    def apply(
        self,
        statement: str,
        default_database: str,
        position: Position,
        session: StatementSession = NO_SESSION,
    ) -> tuple[TableChange, ...]:
        """Writes down which tables a statement concerns; their schemas stay as they are."""
        read = self._read(statement, self._server.known(session))
        for name in _touched(read, self._known, self._full_name(default_database), default_database):
            if self._captured(*name):
                text = " ".join(shown(statement).split())
                cut = text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…"
                self.statements[".".join(name)].append(f"{cut} at {position.file}:{position.offset}")
        return ()

    def _read(self, text: str, session: StatementSession) -> Statement:
        """A statement on which our reader breaks may concern whatever it names."""
        try:
            return read_statement(
                text, self._server.flavour, session.sql_mode, Literals(session.client, session.connection)
            )
        except Exception:  # as in `history`: a mistake of ours must not hide a change
            return Unread(leading_words(text), "", text=text)

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002  of the contract
        return ()  # tables whose rows follow others' are refused

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return False

    def rewind(self, position: Position) -> None:
        """A stretch is read once."""

    def _full_name(self, default_database: str) -> Callable[[TableName], TableKey]:
        return lambda name: name.key(default_database, lower_case=self._server.lower_case_names)


def known_at(records: Iterable[Record], place: Position) -> frozenset[str]:
    """The "database.table" whose schema the history still knows at a place."""
    known = KnownSchemas()
    for record in records:
        known.remember(record)
    names = known.table_names()
    return frozenset(".".join(name) for name in names if isinstance(known.table(name, place.order_key), TableSchema))


def _touched(
    statement: Statement, known: KnownSchemas, full_name: Callable[[TableName], TableKey], default_database: str
) -> Sequence[TableKey]:
    """The tables whose rows or columns a statement may have changed: more of them rather than fewer."""
    if _changes_nothing(statement):
        return ()
    names = concerned(statement, known, full_name, default_database)
    if isinstance(statement, RowChange):
        about = {lowered(default_database), *statement.words}
        names += [name for name in known.table_names() if lowered(name[0]) in about]
        names += [full_name(name) for name in statement.names]
    database = dropped_database(statement)
    if database is not None:
        names += [name for name in known.table_names() if lowered(name[0]) == lowered(database)]
    return list(dict.fromkeys(names))


def _changes_nothing(statement: Statement) -> bool:
    """An index or a comment changes no row image. A table that is made has no rows before, or was there and stays as it is."""
    match statement:
        case SetDatabase():
            return dropped_database(statement) is None
        case CreateTable():
            return not statement.replaces and not statement.union
        case AlterTable():
            parts = (statement.items, statement.rows_lost, statement.others, statement.union, statement.engine)
            return not any(parts) and statement.renames_to is None
        case _:
            return False
