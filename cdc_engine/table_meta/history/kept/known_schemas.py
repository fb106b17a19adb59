"""Keeps the schema history in memory. For each position, it has the schemas of tables, the triggers and views, the charsets of databases,
and the server's settings on which the effect of a DDL statement depends.
"""

from __future__ import annotations

from sluice.cdc_engine.table_meta.change.stored_objects import ObjectKey, StoredObject, StoredObjects
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from sluice.cdc_engine.table_meta.history.kept.timeline import Timeline
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DroppedTable, Stopped, TableSchema

KnownTable = TableSchema | Stopped | DroppedTable | None
TableKey = tuple[str, str]


def was_dropped(there: KnownTable) -> bool:
    """Returns whether a table was dropped. The state of a table that was dropped while it was stopped is still Stopped, with `gone`."""
    return isinstance(there, DroppedTable) or (isinstance(there, Stopped) and there.gone)


class KnownSchemas:
    """The schemas of all tables by order key. Records must be added in the order of their keys. `drop_after` removes the last records."""

    def __init__(self) -> None:
        self._server: Timeline[DdlServerFacts] = Timeline()
        self._databases: dict[str, Timeline[str]] = {}
        self._tables: dict[TableKey, Timeline[KnownTable]] = {}
        # A tuple in a timeline has the one definition of the trigger or view, or is empty after the trigger or view was dropped.
        self._objects: dict[ObjectKey, Timeline[tuple[StoredObject, ...]]] = {}
        self._objects_complete: Timeline[bool] = Timeline()
        self.head = -1

    def server(self, key: int) -> DdlServerFacts | None:
        return self._server.at(key)

    def database_charset(self, database: str, key: int) -> str | None:
        timeline = self._databases.get(database)
        return None if timeline is None else timeline.at(key)

    def table(self, name: TableKey, key: int) -> KnownTable:
        timeline = self._tables.get(name)
        return None if timeline is None else timeline.at(key)

    def stored_objects(self, key: int) -> StoredObjects | None:
        """Returns the triggers and views at the order key `key`, or None if the history has no record of triggers and views there."""
        complete = self._objects_complete.at(key)
        if complete is None:
            return None
        found = (each for timeline in self._objects.values() for each in timeline.at(key) or ())
        return StoredObjects(objects=tuple(found), complete=complete)

    def table_names(self) -> list[TableKey]:
        """Returns the names of all tables that have a record at any position, sorted."""
        return sorted(self._tables)

    def unknown_tables(self, key: int) -> list[TableKey]:
        """Returns the tables that may exist at the order key `key` and whose schemas are unknown."""
        return [name for name in self._tables if self.may_exist(name, key)]

    def may_exist(self, name: TableKey, key: int) -> bool:
        """Returns True if the table's schema is unknown, and the table may exist at the order key `key`. Returns False if its schema is
        known, for a stopped or dropped table, and for a table without a record up to `key`.
        """
        timeline = self._tables.get(name)
        return timeline is not None and timeline.begins_by(key) and timeline.at(key) is None

    def database_names(self) -> list[str]:
        """Returns the names of all databases that have a record at any position, sorted."""
        return sorted(self._databases)

    def remember(self, record: HistoryRecord) -> None:
        key = record.position.order_key
        self.head = max(self.head, key)
        if record.kind is RecordKind.SERVER:
            self._server.put(key, DdlServerFacts(**record.content))
        elif record.kind is RecordKind.DATABASE:
            self._databases.setdefault(record.database, Timeline()).put(key, record.content["charset"])
        elif record.kind is RecordKind.OBJECTS:
            self._objects_complete.put(key, bool(record.content["complete"]))
        elif record.kind is RecordKind.OBJECT:
            self._objects.setdefault(_object_key(record), Timeline()).put(key, _object_state(record))
        else:
            self._tables.setdefault((record.database, record.table), Timeline()).put(key, table_state(record))

    def holds(self, record: HistoryRecord) -> bool:
        """Returns whether the history already has the content of the record at the record's position, so that the record would change
        nothing.
        """
        key = record.position.order_key
        if record.kind is RecordKind.DATABASE:
            return self.database_charset(record.database, key) == str(record.content["charset"])
        if record.kind is RecordKind.OBJECTS:
            return self._objects_complete.at(key) is bool(record.content["complete"])
        if record.kind is RecordKind.OBJECT:
            timeline = self._objects.get(_object_key(record))
            return ((timeline.at(key) if timeline else None) or ()) == _object_state(record)
        there, state = self.table((record.database, record.table), key), table_state(record)
        return there == state and comments_of(there) == comments_of(state)

    def drop_after(self, key: int) -> bool:
        """Removes all records after the order key `key`. Returns whether a record was removed."""
        self.head = min(self.head, key)
        dropped = [self._server.drop_after(key), self._objects_complete.drop_after(key)]
        dropped += [timeline.drop_after(key) for timeline in self._objects.values()]
        dropped += [timeline.drop_after(key) for timeline in self._databases.values()]
        dropped += [timeline.drop_after(key) for timeline in self._tables.values()]
        return any(dropped)


def _object_key(record: HistoryRecord) -> ObjectKey:
    return str(record.content["what"]), record.database, record.table


def _object_state(record: HistoryRecord) -> tuple[StoredObject, ...]:
    """Returns the trigger or view in a record, or () if the record says that the trigger or view was dropped."""
    if "table" not in record.content:
        return ()
    return (StoredObject.from_json(record.database, record.table, record.content),)


def comments_of(state: KnownTable) -> dict[str, str]:
    """Returns the comments of a table's columns by column, and the table's own comment under "". Returns {} if the table's schema is
    unknown.
    """
    schema = state if isinstance(state, TableSchema) or state is None else state.schema
    return schema.comments if schema is not None else {}


def table_state(record: HistoryRecord) -> KnownTable:
    """Converts a record to the state of its table. Raises KeyError or TypeError if the record has another structure."""
    if record.kind is RecordKind.UNKNOWN:
        return None
    if record.kind is RecordKind.STOPPED:
        return Stopped.from_json(record.database, record.table, record.content)
    if record.kind is RecordKind.DROPPED and not record.content:
        return DroppedTable(schema=None)
    schema = TableSchema.from_json(record.database, record.table, record.content)
    return DroppedTable(schema=schema) if record.kind is RecordKind.DROPPED else schema
