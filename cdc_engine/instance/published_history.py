"""Wraps the schema history, and writes the list of tables for the asset definitions after each change. Runs on the parser's thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.durable_files import keep_file
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable, comments_of
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.history.tables_file import TablesText
from sluice.cdc_engine.table_meta.schema import TableSchema


class PublishedHistory:
    """Implements `ports.SchemaHistory` over a `TableHistory`, and writes tables.json.

    `fence`: called before anything that may write the history; raises if this process may not write any more (`ports.Lease.check`).
    `share`: puts tables.json where runs on other hosts find it. `begins`: called before the stream is read from a position.
    """

    def __init__(
        self,
        history: TableHistory,
        tables_file: Path,
        fence: Callable[[], None],
        share: Callable[[bytes], None] = lambda _: None,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        self._history, self._tables_file, self._fence, self._share = history, tables_file, fence, share
        self._begins, self._text = begins, TablesText()

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        self._fence()
        return self._history.resolve(table_map, position)

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        self._fence()
        before = (self._history.all_cascades(), self._history.revision)
        changes = self._history.apply(statement, default_database, position, session)
        if changes or (self._history.all_cascades(), self._history.revision) != before:
            self.publish(position)
        return changes

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        return self._history.cascades(database, table)

    def follows(self, database: str, table: str) -> bool:
        return self._history.follows(database, table)

    def all_cascades(self) -> tuple[Cascade, ...]:
        """Returns all cascades, as `TableHistory.all_cascades`."""
        return self._history.all_cascades()

    def rewind(self, position: Position) -> None:
        self._fence()
        self._begins()
        self._history.rewind(position)

    def seed(self, snapshot: SchemaSnapshot, position: Position) -> None:
        """Sets the schemas at a position, as `TableHistory.seed`; only while the stream is not read."""
        self._fence()
        self._history.seed(snapshot, position)
        self.publish(position)

    def resnapshot(self, schema: TableSchema, position: Position) -> None:
        """Replaces the schema of a table, as `TableHistory.resnapshot`; only while the stream is not read."""
        self._fence()
        self._history.resnapshot(schema, position)
        self.publish(position)

    def state(self, database: str, table: str, position: Position) -> KnownTable:
        """Returns the state of a table, as `TableHistory.state` does. It may be called while the parser runs for positions up to the
        cursor, where the parser changes nothing.
        """
        return self._history.state(database, table, position)

    def versions(self, position: Position) -> tuple[TableVersion, ...]:
        """Returns the table versions at a position, as `TableHistory.versions`."""
        return self._history.versions(position)

    def publish(self, position: Position) -> None:
        tables = (*self._history.versions(position), *self._history.stopped_versions(position))
        in_order = tuple(sorted(tables, key=lambda table: table.name))
        states = ((each.name, self._history.state(each.database, each.table, position)) for each in in_order)
        comments = {name: found for name, state in states if (found := comments_of(state))}
        content = self._text.of(in_order, self._history.all_cascades(), comments).encode()
        keep_file(self._tables_file, content)
        self._share(content)
