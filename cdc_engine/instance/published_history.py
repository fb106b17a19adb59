"""Writes the list of captured tables whenever the schema history changes. Dagster's asset definitions are made from the list. Runs on the
parser's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set

import structlog

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import LeaseLostError, MetaError, StaleWriteError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable, TableKey, comments_of
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import TableSchema
from sluice.cdc_engine.table_meta.table_list.writing import TableListWriter

log = structlog.get_logger()

COMPACTED_RECORDS_MIN = 500  # A schema history is compacted if that removes at least this number of records.


class PublishedHistory:
    """A schema history (`ports.SchemaHistory`) that wraps a `TableHistory` and writes the list of its captured tables after each change.

    `fence` is called before each write, and raises an error if this process has lost its lease (`ports.Lease.check`). `begins` is called
    each time before the stream starts at a position. `kept` returns the positions from which changes may be read again. Without `kept`, the
    schema history is not compacted.
    """

    def __init__(
        self,
        history: TableHistory,
        listed: TableListWriter,
        fence: Callable[[], None],
        begins: Callable[[], None] = lambda: None,
        kept: Callable[[], Collection[Position]] | None = None,
    ) -> None:
        self._history, self._listed, self._fence, self._begins = history, listed, fence, begins
        self._kept = kept
        self._listed_cascades: tuple[Cascade, ...] | None = None  # The cascades of the list that was written last.

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        self._fence()
        version = self._history.resolve(table_map, position)
        self._compact()
        return version

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        self._fence()
        before = (self._history.all_cascades(), self._history.revision)
        changes = self._history.apply(statement, default_database, position, session)
        if changes or (self._history.all_cascades(), self._history.revision) != before:
            self._publish_changed(position)
        self._compact()
        return changes

    def _compact(self) -> None:
        """Removes records of the schema history that are no longer needed, if there are many. If the removal fails, the current statement
        is still applied, and a later statement tries the removal again.
        """
        if self._kept is None or not self._history.has_doubled(COMPACTED_RECORDS_MIN):
            return
        self._fence()
        try:
            removed = self._history.compact(self._kept(), COMPACTED_RECORDS_MIN)
        except MetaError as error:
            log.warning("schema_history_not_compacted", reason=str(error))
        else:
            log.info("schema_history_compacted", records=removed)

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        return self._history.cascades(database, table)

    def is_undone(self, database: str, table: str) -> bool:
        return self._history.is_undone(database, table)

    def follows(self, database: str, table: str) -> bool:
        return self._history.follows(database, table)

    def all_cascades(self) -> tuple[Cascade, ...]:
        """Returns all foreign keys that change rows of captured tables without row events."""
        return self._history.all_cascades()

    def rewind(self, position: Position) -> None:
        self._fence()
        self._begins()
        self._history.rewind(position)

    def seed(self, snapshot: SchemaSnapshot, position: Position) -> None:
        """Sets the schemas at a position, and writes the list of captured tables. Call it only while the stream is not read."""
        self._fence()
        self._history.seed(snapshot, position)
        self.publish(position)

    def resnapshot(self, schema: TableSchema, position: Position) -> None:
        """Replaces the schema of a table from a position on, and writes the list of captured tables. Call it only while the stream is not
        read.
        """
        self._fence()
        self._history.resnapshot(schema, position)
        self.publish(position)

    def forget_dropped(self, name: TableKey, position: Position) -> None:
        """Removes a dropped table from the schema history, and writes the list of captured tables. Call it only while the stream is not
        read.
        """
        self._fence()
        self._history.forget_dropped(name, position)
        self.publish(position)

    def state(self, database: str, table: str, position: Position) -> KnownTable:
        """Returns what the schema history knows about a table at a position. While the parser runs, call this method only for positions up
        to the cursor, because the parser may still change the history at later positions.
        """
        return self._history.state(database, table, position)

    @property
    def names(self) -> frozenset[str]:
        """The captured tables ("database.table") at the position up to which the parser has read."""
        return self._listed.names

    def versions(self, position: Position) -> tuple[TableVersion, ...]:
        """Returns the versions of all captured tables at a position."""
        return self._history.versions(position)

    def publish(self, position: Position) -> None:
        """Writes the list of all captured tables at a position."""
        self._write(position, self._history.table_names(), self._history.all_cascades(), None)

    def _publish_changed(self, position: Position) -> None:
        """Writes the list of captured tables at a position, but examines only the tables whose state or foreign keys have changed since the
        last list.
        """
        changed, listed, now = self._history.unlisted, self._listed_cascades, self._history.all_cascades()
        if changed is None or listed is None:
            self.publish(position)
            return
        differ = set() if listed is now else set(listed) ^ set(now)
        tables = changed | {each.child for each in differ}
        cascades = [each for each in now if each.child in tables]
        self._write(position, tables, cascades, {".".join(each) for each in tables})

    def _write(
        self, position: Position, tables: Iterable[TableKey], cascades: Iterable[Cascade], only: Set[str] | None
    ) -> None:
        versions = self._history.listed_versions(position, tables)
        states = ((each.name, self._history.state(each.database, each.table, position)) for each in versions)
        comments = {name: found for name, state in states if (found := comments_of(state))}
        try:
            self._listed.write(versions, cascades, comments, only)
        except StaleWriteError as error:
            raise LeaseLostError(
                f"{error}: this engine writes no more; it takes the destination again when the lease is free"
            ) from error
        # Marks the tables as listed only after a successful write. After an error, they count as unlisted, and the next statement writes
        # them too.
        self._history.list_written(position)
        self._listed_cascades = self._history.all_cascades()
