"""The schema history with its list of tables written out after each change, for the asset definitions; runs on the parser's thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdc_engine.binlog.events.table_map import TableMap
from cdc_engine.contracts import NO_SESSION, Cascade, StatementSession, TableChange, TableVersion
from cdc_engine.position import Position
from cdc_engine.table_meta.history.history import TableHistory
from cdc_engine.table_meta.history.kept.known_schemas import KnownTable
from cdc_engine.table_meta.history.source.schema_snapshot import Snapshot
from cdc_engine.table_meta.history.tables_file import write_tables
from cdc_engine.table_meta.schema import TableSchema


class PublishedHistory:
    """Implements `ports.SchemaHistory` over a `TableHistory`, and keeps tables.json beside it.

    `fence` is called before whatever may write the history and raises when this process may write no more (`ports.Lease.check`).
    `share`: puts tables.json where runs on other hosts find it. `begins`: called before the stream is read from a place.
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
        self._begins = begins

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        self._fence()
        return self._history.resolve(table_map, position)

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        self._fence()
        before = self._history.all_cascades()
        changes = self._history.apply(statement, default_database, position, session)
        if changes or self._history.all_cascades() != before:
            self.publish(position)
        return changes

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        return self._history.cascades(database, table)

    def follows(self, database: str, table: str) -> bool:
        return self._history.follows(database, table)

    def all_cascades(self) -> tuple[Cascade, ...]:
        """As `TableHistory.all_cascades`."""
        return self._history.all_cascades()

    def rewind(self, position: Position) -> None:
        self._fence()
        self._begins()
        self._history.rewind(position)

    def seed(self, snapshot: Snapshot, position: Position) -> None:
        """As `TableHistory.seed`; while nothing reads the stream."""
        self._fence()
        self._history.seed(snapshot, position)
        self.publish(position)

    def take_anew(self, schema: TableSchema, position: Position) -> None:
        """As `TableHistory.take_anew`; while nothing reads the stream."""
        self._fence()
        self._history.take_anew(schema, position)
        self.publish(position)

    def state(self, database: str, table: str, position: Position) -> KnownTable:
        """As `TableHistory.state`; at the cursor or before it also while the parser is at work, which changes nothing there."""
        return self._history.state(database, table, position)

    def versions(self, position: Position) -> tuple[TableVersion, ...]:
        """As `TableHistory.versions`."""
        return self._history.versions(position)

    def publish(self, position: Position) -> None:
        tables = (*self._history.versions(position), *self._history.stopped_versions(position))
        in_order = tuple(sorted(tables, key=lambda table: table.name))
        write_tables(self._tables_file, in_order, self._history.all_cascades())
        self._share(self._tables_file.read_bytes())
