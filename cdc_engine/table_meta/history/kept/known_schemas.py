"""The state of the schema history in memory: the server, the databases and the tables, each by position. Owned by `history`."""

from __future__ import annotations

from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from sluice.cdc_engine.table_meta.history.kept.timeline import Timeline
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DroppedTable, Stopped, TableSchema

KnownTable = TableSchema | Stopped | DroppedTable | None
TableKey = tuple[str, str]


class KnownSchemas:
    """The known schemas, queried by order key. Records are added in ascending order; `drop_after` goes back."""

    def __init__(self) -> None:
        self._server: Timeline[DdlServerFacts] = Timeline()
        self._databases: dict[str, Timeline[str]] = {}
        self._tables: dict[TableKey, Timeline[TableSchema | Stopped | DroppedTable]] = {}
        self.head = -1

    def server(self, key: int) -> DdlServerFacts | None:
        return self._server.at(key)

    def database_charset(self, database: str, key: int) -> str | None:
        timeline = self._databases.get(database)
        return None if timeline is None else timeline.at(key)

    def table(self, name: TableKey, key: int) -> KnownTable:
        timeline = self._tables.get(name)
        return None if timeline is None else timeline.at(key)

    def table_names(self) -> list[TableKey]:
        """Returns every table that has or had a record, sorted."""
        return sorted(self._tables)

    def database_names(self) -> list[str]:
        """Returns every database that has or had a record, sorted."""
        return sorted(self._databases)

    def remember(self, record: HistoryRecord) -> None:
        key = record.position.order_key
        self.head = max(self.head, key)
        if record.kind is RecordKind.SERVER:
            self._server.put(key, DdlServerFacts(**record.content))
        elif record.kind is RecordKind.DATABASE:
            self._databases.setdefault(record.database, Timeline()).put(key, record.content["charset"])
        else:
            self._tables.setdefault((record.database, record.table), Timeline()).put(key, table_state(record))

    def holds(self, record: HistoryRecord) -> bool:
        """Returns whether the record's content is already known at its position."""
        key = record.position.order_key
        if record.kind is RecordKind.DATABASE:
            return self.database_charset(record.database, key) == str(record.content["charset"])
        return self.table((record.database, record.table), key) == table_state(record)

    def drop_after(self, key: int) -> bool:
        """Removes everything after `key`. Returns whether there was anything."""
        self.head = min(self.head, key)
        dropped = [self._server.drop_after(key)]
        dropped += [timeline.drop_after(key) for timeline in self._databases.values()]
        dropped += [timeline.drop_after(key) for timeline in self._tables.values()]
        return any(dropped)


def table_state(record: HistoryRecord) -> TableSchema | Stopped | DroppedTable:
    """Returns the state of a record's table. Raises KeyError or TypeError on a record of another structure."""
    if record.kind is RecordKind.STOPPED:
        return Stopped.from_json(record.database, record.table, record.content)
    schema = TableSchema.from_json(record.database, record.table, record.content)
    return DroppedTable(schema=schema) if record.kind is RecordKind.DROPPED else schema
