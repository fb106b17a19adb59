"""Finds the tables that DDL statements in an interval of the stream may have changed. The engine uses this module if the schemas were
read from the source at a later position than the position where the stream starts.

The schemas that were read are the source's current schemas. If a statement changed a table between the start position and the reading, the
columns of the table before the statement are unknown, and rows before the statement must not be decoded with the current schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.charsets.statement_text import Literals
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, LoggedStatement, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.evolution import SCHEMA_UNKNOWN
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects, object_changes
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.reader import read_statement
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    CreateTable,
    DropTables,
    RenameTables,
    Statement,
    TableName,
    Unread,
    dropped_database,
    mentioned,
    mentioned_in,
)
from sluice.cdc_engine.table_meta.history.kept.known_schemas import TableKey
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot


class TouchedTables:
    """A schema history for a scan that reads only statements. Implements the protocol `cdc_engine.ports.SchemaHistory`. `snapshot` has the
    schemas that were read from the source. `names` collects each table that a statement changes, even if the table is not in `snapshot`.
    """

    def __init__(self, snapshot: SchemaSnapshot) -> None:
        self._snapshot = snapshot
        self.names: set[TableKey] = set()
        # Changed tables that did not exist before the interval, because a statement of the interval created them.
        self._created: set[TableKey] = set()
        self._objects_changed = False

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:  # noqa: ARG002
        raise TableStoppedError(table_map.database, table_map.table, SCHEMA_UNKNOWN, "this scan reads only statements")

    def apply(
        self,
        statement: str,
        default_database: str,
        position: Position,  # noqa: ARG002
        session: StatementSession = NO_SESSION,
    ) -> tuple[TableChange, ...]:
        read = read_statement(
            statement, self._snapshot.server.flavour, session.sql_mode, Literals(session.client, session.connection)
        )
        lower_case = self._snapshot.server.lower_case_names
        if not _leaves_columns(read):
            created = {name.key(default_database, lower_case=lower_case) for name in _created(read)}
            if isinstance(read, AlterTable):
                # RENAME TO may name the table itself in another spelling, with or without the database.
                created.discard(read.name.key(default_database, lower_case=lower_case))
            self._created |= created - self.names
            self.names |= {name.key(default_database, lower_case=lower_case) for name in _named(read)}
            self.names |= self._meant(read)
        self._objects_changed = self._objects_changed or self._changes_objects(read, default_database)
        return ()

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:  # noqa: ARG002
        return ()

    def is_undone(self, database: str, table: str) -> bool:  # noqa: ARG002
        return True

    def follows(self, database: str, table: str) -> bool:  # noqa: ARG002
        return False

    def rewind(self, position: Position) -> None:
        """Does nothing, because nothing is stored by position."""

    def left(self) -> SchemaSnapshot:
        """Returns the schema snapshot without the schemas of the changed tables. The schema of a changed table becomes known later: from a
        statement that creates the table, from its table map, or from an operator. The result's `unknown_tables` has the changed tables
        that may have existed before the interval.
        """
        tables = tuple(schema for schema in self._snapshot.tables if (schema.database, schema.table) not in self.names)
        unknown = tuple(sorted(self.names - self._created))
        return dataclasses.replace(
            self._snapshot, tables=tables, stored_objects=self.left_objects(), unknown_tables=unknown
        )

    def left_objects(self) -> StoredObjects | None:
        """Returns the triggers and views of the schema snapshot, or None if it has none. If a statement of the interval changed a trigger
        or view, the result is marked as incomplete, because the schema snapshot lacks triggers and views that were dropped in the
        interval.
        """
        objects = self._snapshot.stored_objects
        return (
            dataclasses.replace(objects, complete=False) if objects is not None and self._objects_changed else objects
        )

    def _changes_objects(self, statement: Statement, default_database: str) -> bool:
        lower_case = self._snapshot.server.lower_case_names
        objects = self._snapshot.stored_objects
        if objects is None:
            return False
        changes = object_changes(
            statement,
            objects,
            lambda name: name.key(default_database, lower_case=lower_case),
            lambda database: lowered(database) if lower_case else database,
        )
        return changes.unknown or bool(changes.objects) or dropped_database(statement) is not None

    def _meant(self, statement: Statement) -> set[TableKey]:
        """Returns the tables that a statement may affect and that `_named` does not return: the tables of a dropped database, or the tables
        whose names occur in the text of a statement that cannot be parsed.
        """
        there = {(schema.database, schema.table) for schema in self._snapshot.tables}
        database = dropped_database(statement)
        if database is not None:
            return {key for key in there if lowered(key[0]) == lowered(database)}
        if isinstance(statement, Unread) and not statement.names:
            return set(mentioned_in(there, statement.text) if statement.text else mentioned(there, statement.words))
        return set()


def changed_by(captured: Callable[[str, str], bool], statement: LoggedStatement) -> str:
    """Returns a text for a message about the tables whose columns or names a statement may change. The text is one of these:

    - the first captured table that the statement names;
    - "all tables of" a database that the statement drops;
    - "tables whose names could not be read", if the statement cannot be parsed;
    - "" for any other statement.
    """
    session = statement.session
    literals = Literals(session.client, session.connection)
    read = read_statement(statement.text, session.flavour, session.sql_mode, literals)
    for name in _named(read):
        key = name.key(statement.database, lower_case=False)
        if captured(*key):
            return ".".join(key)
    if database := dropped_database(read):
        return f"all tables of {database}"
    return "tables whose names could not be read" if isinstance(read, Unread) and not read.names else ""


def _leaves_columns(statement: Statement) -> bool:
    """Returns whether the statement is a CREATE TABLE IF NOT EXISTS that leaves the columns of every existing table unchanged.

    Such a statement does nothing if the table exists, and a table that it creates has no earlier rows in the stream. A statement with OR
    REPLACE, a query or a UNION may change existing tables, so the result is False.
    """
    return (
        isinstance(statement, CreateTable)
        and statement.if_not_exists
        and not (statement.replaces or statement.selects or statement.union)
    )


def _created(statement: Statement) -> Iterator[TableName]:
    """Yields the names of the tables that exist only because of the statement: no table had such a name before. If an ALTER TABLE renames
    the table to its own name, yields this name too, and `apply` removes it.
    """
    match statement:
        case CreateTable(if_not_exists=False, replaces=False):
            yield statement.name
        case AlterTable():
            if statement.renames_to is not None:
                yield statement.renames_to
            yield from (name for name, what in statement.others if what == "CONVERT PARTITION")
        case RenameTables():
            earlier = set[TableName]()
            for old, new in statement.pairs:
                earlier.add(old)
                if new not in earlier:
                    yield new


def _named(statement: Statement) -> tuple[TableName, ...]:
    """Returns the tables whose columns a statement may change. Returns no tables for a statement that changes only rows, or nothing."""
    match statement:
        case CreateTable():
            return (statement.name,)
        case AlterTable(renames_to=TableName() as new_name):
            return statement.name, new_name
        case AlterTable(items=[_, *_]) | AlterTable(others=[_, *_]):
            return (statement.name, *(name for name, _ in statement.others))
        case RenameTables():
            return tuple(name for pair in statement.pairs for name in pair)
        case DropTables() | Unread():
            return tuple(statement.names)
        case _:
            return ()
