"""Provides the schemas that decode an interval of the binlog: the schemas that the tables have at the lake's position.

`rules` refuses a table if a DDL statement in the interval concerns the table. So the table's schema at the lake's position is valid in the
whole interval, and a backfill does not depend on how far the schema history reaches back. The scan of a backfill or repair uses this
module.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.charsets.statement_text import Literals, shown
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.reader import leading_words, read_statement
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    CreateTable,
    Query,
    SetDatabase,
    Statement,
    StatementRowChange,
    TableName,
    Unread,
    dropped_database,
)
from sluice.cdc_engine.table_meta.history.concerned import concerned
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.holding import RecordSubject, subject_of
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas, TableKey
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordsInMemory
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, TableSchema, is_of_users

TEXT_CHARS_MAX = 80  # A message shows at most this many characters of a statement.


class IntervalSchemas:
    """The schemas for an interval that begins at `start` (`ports.SchemaHistory`). For each table, the newest schema in `records` up to the
    position `known_at` is used for the whole interval. `statements` collects, by "database.table", the statements that concern a table,
    with their positions.
    """

    def __init__(
        self,
        records: Iterable[HistoryRecord],
        known_at: Position,
        start: Position,
        captured: Callable[[str, str], bool],
    ) -> None:
        newest: dict[RecordSubject, HistoryRecord] = {}
        for record in records:
            if record.position.order_key <= known_at.order_key:
                newest[subject_of(record)] = record
        there = [dataclasses.replace(record, position=start) for record in newest.values()]
        self._history = TableHistory(RecordsInMemory(there), captured)
        self._known = KnownSchemas()
        for record in there:
            self._known.remember(record)
        self._start, self._captured = start, captured
        self._server = self._known.server(start.order_key) or DdlServerFacts(flavour="mysql", charset="")
        self.statements: dict[str, list[str]] = defaultdict(list)
        # Name in lower case → the tables' names that differ from it at most in letter case. Tables are found even by another letter case,
        # because `records` can come from a mysqldump file, which does not say whether its server's table names are case-sensitive.
        self._folded: dict[TableKey, list[TableKey]] = defaultdict(list)
        for name in self._known.table_names():
            self._folded[_folded(name)].append(name)

    def versions(self) -> dict[str, TableVersion]:
        """Returns the captured tables with a known schema, by "database.table"."""
        return {version.name: version for version in self._history.versions(self._start)}

    def rows_follow(self, database: str, table: str) -> bool:
        """Returns whether foreign keys change rows of a table without row events."""
        return self._history.follows(database, table)

    # ── called by the scan ──

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        """Returns the version of the table that a table map describes. If the table is stopped, raises TableStoppedError without a version,
        so that the scan drops the table's rows. Only consumers need the rows of a stopped table, and consumers do not read the interval.
        """
        try:
            return self._history.resolve(table_map, position)
        except TableStoppedError as error:
            error.version = None
            raise

    def apply(
        self,
        statement: str,
        default_database: str,
        position: Position,
        session: StatementSession = NO_SESSION,
    ) -> tuple[TableChange, ...]:
        """Records a statement for each captured table that it concerns (`statements`). Changes no schema, so returns no table changes."""
        read = self._read(statement, self._server.known(session))
        objects = self._known.stored_objects(self._start.order_key)
        read = _reaching_everything(read, objects, default_database)
        touched = _touched(read, self._known, self._full_name(default_database), default_database)
        in_any_case = [known for name in touched for known in self._folded.get(_folded(name), ())]
        for name in dict.fromkeys((*touched, *in_any_case)):
            if self._captured(*name):
                text = " ".join(shown(statement).split())
                shortened = text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…"
                self.statements[".".join(name)].append(f"{shortened} at {position.file}:{position.offset}")
        return ()

    def _read(self, text: str, session: StatementSession) -> Statement:
        """Parses a statement. If the parser fails, returns a statement that counts as concerning every table whose name is in the text."""
        try:
            return read_statement(
                text, self._server.flavour, session.sql_mode, Literals(session.client, session.connection)
            )
        except Exception:
            # Catches all errors, because a defect of the statement parser must not hide a change.
            return Unread(leading_words(text), "", text=text)

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002  of the contract
        # Returns none, because `rules` refuses a table whose rows foreign keys change without row events.
        return ()

    def is_undone(self, database: str, table: str) -> bool:
        return self._history.is_undone(database, table)

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002  of the contract
        return False

    def rewind(self, position: Position) -> None:  # noqa: ARG002  of the contract
        """Drops the collected statements, because the interval is read again from its start."""
        self.statements.clear()

    def _full_name(self, default_database: str) -> Callable[[TableName], TableKey]:
        return lambda name: name.key(default_database, lower_case=self._server.lower_case_names)


def _folded(name: TableKey) -> TableKey:
    return lowered(name[0]), lowered(name[1])


def known_at(records: Iterable[HistoryRecord], position: Position) -> frozenset[str]:
    """Returns the tables ("database.table") whose schema at `position` is still among `records` of the schema history."""
    known = KnownSchemas()
    for record in records:
        known.remember(record)
    names = known.table_names()
    return frozenset(".".join(name) for name in names if isinstance(known.table(name, position.order_key), TableSchema))


def _reaching_everything(statement: Statement, objects: StoredObjects | None, default_database: str) -> Statement:
    """If a statement may write other tables through a trigger, a view or a function, marks it as a statement that may write all tables.
    Returns other statements unchanged.

    Marks statements whether or not such a trigger or view exists now, because one may have existed in the interval. Marks a CREATE TABLE
    with a SELECT, because the SELECT may read a view that calls a function. Does not mark statements on tables in the server's own
    databases, where RDS writes a heartbeat, because these tables have no triggers. If `objects` is None, the source does not write its
    binlog in the MIXED format, and nothing is marked.
    """
    if objects is None:
        return statement
    if isinstance(statement, CreateTable) and statement.selects:
        return dataclasses.replace(statement, select_calls=True)
    if isinstance(statement, Query):
        return dataclasses.replace(statement, calls=True)
    if not isinstance(statement, StatementRowChange):
        return statement
    of_users = [is_of_users(name.database or default_database) for name in statement.names]
    return dataclasses.replace(statement, calls=True) if any(of_users) or not of_users else statement


def _touched(
    statement: Statement, known: KnownSchemas, full_name: Callable[[TableName], TableKey], default_database: str
) -> Sequence[TableKey]:
    """Returns the tables whose rows or columns a statement may have changed: all tables that it changed, and possibly others."""
    if _changes_nothing(statement):
        return ()
    names = concerned(statement, known, full_name, default_database)
    if isinstance(statement, StatementRowChange):
        about = {lowered(default_database), *statement.words}
        names += [name for name in known.table_names() if lowered(name[0]) in about]
        names += [full_name(name) for name in statement.names]
    if _calls(statement):
        names += known.table_names()
    database = dropped_database(statement)
    if database is not None:
        names += [name for name in known.table_names() if lowered(name[0]) == lowered(database)]
    return list(dict.fromkeys(names))


def _calls(statement: Statement) -> bool:
    """Returns whether a statement may call a routine. A routine may write any table."""
    match statement:
        case StatementRowChange() | Query():
            return statement.calls
        case CreateTable():
            return statement.select_calls
        case _:
            return False


def _changes_nothing(statement: Statement) -> bool:
    """Returns whether a statement changes no rows and no columns of an existing table. Examples are statements that only add an index or a
    comment. CREATE TABLE is another example: either the table is new and has no rows, or the table exists and the statement has no effect.
    """
    match statement:
        case SetDatabase():
            return dropped_database(statement) is None
        case CreateTable():
            return not statement.replaces and not statement.union and not statement.select_calls
        case AlterTable():
            parts = (statement.items, statement.rows_lost, statement.others, statement.union, statement.engine)
            return not any(parts) and statement.renames_to is None
        case _:
            return False
