"""Stores the schema history of one destination: the schema of every captured table at any position of the stream.

The parser calls `apply` for every statement and `resolve` for every new table map, in the order of the stream. The parser calls `rewind`
when the stream starts again at a position. If the history is empty, the engine calls `seed` with the schemas of the source's tables.
`apply` and `resolve` write to disk before they return, so the engine never hands out a change whose schema is not in the history. If the
history is ahead of the acked position, `rewind` removes the later records, and the same statements produce the same changes again.

A history belongs to one stream. The history starts with the schemas at one position. Later statements change these schemas. `compact`
removes records that are not needed at any position to which the stream may return. A table stays stopped until `seed` or `resnapshot`
stores a new schema, `forget_dropped` ends the stop, or `rewind` returns to a position before the stop.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.charsets.statement_text import Literals
from sluice.cdc_engine.binlog.events.table_map import TableMap
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession, TableChange, TableVersion
from sluice.cdc_engine.errors import MetaError, NotATableError, SluiceError, TableStoppedError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.evolution import SCHEMA_UNKNOWN
from sluice.cdc_engine.table_meta.change.foreign_keys import ForeignKeyRules
from sluice.cdc_engine.table_meta.change.policy import SchemaDecisions
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL
from sluice.cdc_engine.table_meta.ddl.lexer import UnreadableError
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.reader import defect_text, leading_words, read_statement
from sluice.cdc_engine.table_meta.ddl.statement import (
    OF_SESSION,
    DropDatabase,
    SetDatabase,
    Statement,
    Unread,
)
from sluice.cdc_engine.table_meta.history.cascades import Cascades
from sluice.cdc_engine.table_meta.history.concerned import databases_in
from sluice.cdc_engine.table_meta.history.ddl_context import DdlContext, DdlEffect
from sluice.cdc_engine.table_meta.history.effects import effects_of, refused
from sluice.cdc_engine.table_meta.history.fitting import fit, is_sequence
from sluice.cdc_engine.table_meta.history.kept.holding import needed
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas, KnownTable, TableKey
from sluice.cdc_engine.table_meta.history.kept.repository import (
    WITHOUT_IT,
    HistoryRecord,
    RecordKind,
    Repository,
    SchemaRepository,
)
from sluice.cdc_engine.table_meta.history.kept.table_records import (
    dropped_record,
    snapshot_records,
    stopped_record,
    table_record,
)
from sluice.cdc_engine.table_meta.history.object_records import object_records, seeded_objects
from sluice.cdc_engine.table_meta.history.questions import Question, Unknown
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DroppedTable, Stopped, TableSchema, has_transactions

logger = logging.getLogger(__name__)

_UNKNOWN_SERVER = DdlServerFacts(flavour=MYSQL, charset="")


class TableHistory:
    """The schema history of one destination. `captured` returns whether a table belongs to this destination. Methods that change the
    history raise MetaError if it cannot be stored.
    """

    def __init__(
        self, kept: Path | Repository, captured: Callable[[str, str], bool], review: SchemaDecisions | None = None
    ) -> None:
        """Loads the history from `kept`, a file or a repository. `review` has the policies and approvals that decide which changes the
        lake follows. Raises MetaError if the history is damaged.
        """
        self._review = review or SchemaDecisions()
        self._repository: Repository = SchemaRepository(kept) if isinstance(kept, Path) else kept
        self._captured = captured
        self._known, self._count = KnownSchemas(), 0
        self._known_cascades: Cascades | None = None
        self.revision = 0  # How many times this object has written records to the repository.
        # The tables that changed since `list_written` was called; None means that any table may have changed.
        self.unlisted: set[TableKey] | None = None
        self._added = 0  # How many records were added since the last compaction or the last attempt at one.
        try:
            self._remember(self._repository.load())
        except (KeyError, TypeError, ValueError, UnreadableError) as error:
            raise MetaError(
                f"{self._repository} has a record that this version of Sluice cannot read; run the version "
                f"that wrote the record, or move the schema history away: {WITHOUT_IT}"
            ) from error

    def covers(self, position: Position) -> bool:
        """Returns whether the history has schemas at `position`. If not, the caller must call `seed` before the stream begins at
        `position`.
        """
        return self._known.server(position.order_key) is not None

    def seed(self, snapshot: SchemaSnapshot, position: Position) -> None:
        """Stores the schemas of the source's tables as the schemas at `position`. Later statements of the stream change them."""
        self.rewind(position)
        objects = seeded_objects(snapshot.stored_objects, self._known.stored_objects(position.order_key), position)
        self._store([*snapshot_records(snapshot, position), *objects])

    def follows_objects(self, position: Position) -> bool:
        """Returns whether the history has a record of the triggers and views at `position`, even an incomplete one. Without such a
        record, the parser refuses binlog_format MIXED. With an incomplete record, a row change in statement format stops every table.
        """
        return self._known.stored_objects(position.order_key) is not None

    def knows_objects(self, position: Position) -> bool:
        """Returns whether the history has all triggers and views at `position`."""
        there = self._known.stored_objects(position.order_key)
        return there is not None and there.complete

    def note_objects(self, objects: StoredObjects, position: Position) -> None:
        """Stores the triggers and views that apply from `position` on. Call it when the stream starts again at `position`."""
        self.rewind(position)
        self._store(seeded_objects(objects, self._known.stored_objects(position.order_key), position))

    def resolve(self, table_map: TableMap, position: Position) -> TableVersion:
        """Returns the version of a table whose row events follow at `position`.

        Raises TableStoppedError with the state SCHEMA_UNKNOWN, SCHEMA_MISMATCH or TYPE_UNSUPPORTED, or with the state in which the table
        is already stopped. The error's `version` is the table version with which consumers decode the rows. Raises NotATableError for a
        sequence of MariaDB.
        """
        try:
            version, learnt = self._resolved(table_map, position)
        except TableStoppedError as error:
            error.version = self._for_consumers(table_map, position, error)
            raise
        except SluiceError:
            raise
        except Exception as error:  # An unexpected error stops only this table, not the stream.
            reason = f"the table map at {position} cannot be followed: {defect_text(error)}"
            stopped = TableStoppedError(table_map.database, table_map.table, SCHEMA_UNKNOWN, reason)
            stopped.version = _unreadable(stopped)
            raise stopped from error
        if learnt is not None:
            self._go_back_to(position)
            self._store([table_record(RecordKind.TABLE_MAP, position, learnt)])
        return version

    def _resolved(self, table_map: TableMap, position: Position) -> tuple[TableVersion, TableSchema | None]:
        state = self._known.table((table_map.database, table_map.table), position.order_key)
        if isinstance(state, Stopped):
            raise TableStoppedError(table_map.database, table_map.table, state.state, state.reason)
        server = self._known.server(position.order_key) or _UNKNOWN_SERVER
        if not isinstance(state, TableSchema) and server.flavour == MARIADB and is_sequence(table_map):
            raise NotATableError(f"{table_map.database}.{table_map.table} is a sequence")
        schema = state if isinstance(state, TableSchema) else None
        version, learnt = self._fitted(table_map, schema, position.order_key, mariadb=server.flavour == MARIADB)
        if learnt is not None and schema is not None:
            # A table map has no foreign keys, engine and comments, so these are copied from the earlier schema.
            learnt = dataclasses.replace(learnt, foreign_keys=schema.foreign_keys, engine=schema.engine)
            learnt = learnt.with_comments(schema.comments)
        return version, learnt

    def _for_consumers(self, table_map: TableMap, position: Position, error: TableStoppedError) -> TableVersion:
        """Returns the version with which consumers decode the rows of a stopped table. The version comes from the table's schema at
        `position`, which the history has although the table is stopped for the lake. If the schema is unknown or does not fit the table
        map, the version has the reason instead of columns.
        """
        state = self._known.table((table_map.database, table_map.table), position.order_key)
        if not isinstance(state, Stopped):
            return _unreadable(error)
        server = self._known.server(position.order_key) or _UNKNOWN_SERVER
        try:
            version, _ = fit(table_map, state.schema, mariadb=server.flavour == MARIADB)
        except TableStoppedError as why:
            return _unreadable(why)
        except Exception as defect:
            return _unreadable(TableStoppedError(error.database, error.table, SCHEMA_UNKNOWN, defect_text(defect)))
        return dataclasses.replace(version, stopped=True)

    def _fitted(
        self, table_map: TableMap, schema: TableSchema | None, order_key: int, *, mariadb: bool
    ) -> tuple[TableVersion, TableSchema | None]:
        """Finds the version that fits a table map (`fit`). If no version fits, uses the schema that an operator gave for the resulting
        stop. Raises TableStoppedError if no operator gave a schema, or if the given schema does not fit either.
        """
        try:
            return fit(table_map, schema, mariadb=mariadb)
        except TableStoppedError as error:
            resolved = self._review.resolved(error.database, error.table, order_key, error.reason, "")
            if resolved is None:
                raise
        version, learnt = fit(table_map, resolved, mariadb=mariadb)
        return version, learnt or resolved

    def apply(
        self, statement: str, default_database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> tuple[TableChange, ...]:
        """Applies the statement whose event ends at `position`, and returns the resulting changes of tables. The same statement at the same
        position gives the same changes again.
        """
        self._go_back_to(position)
        key = position.order_key - 1
        server = self._known.server(key) or _UNKNOWN_SERVER
        context = DdlContext(
            self._known,
            key,
            self._captured,
            default_database,
            server.lower_case_names,
            str(position),
            text=statement,
            destination=self._review.destination,
            session=server.known(session),
            rules=ForeignKeyRules(
                inline=server.inline_references,
                indexed=server.flavour == MARIADB,
                lower_case=server.lower_case_names,
                match_ends=server.match_ends,
                same_names=server.flavour == MARIADB,
            ),
        )
        effects, records, changes = _taken(context, self._review, server, position)
        for effect in effects:
            if effect.pending is not None:
                self._review.note(effect.pending)
        self._store([record for record in records if not self._known.holds(record)])
        return changes

    def cascades(self, database: str, table: str) -> tuple[Cascade, ...]:
        """Returns the cascades that a change of this table's rows can trigger, according to the newest schemas."""
        return self._cascades().below((database, table))

    def follows(self, database: str, table: str) -> bool:
        """Returns whether foreign keys can change rows of this table, according to the newest schemas."""
        return (database, table) in self._cascades().children

    def is_undone(self, database: str, table: str) -> bool:
        """Returns whether a ROLLBACK undoes changes of this table's rows: whether the storage engine in the newest schema has transactions.
        True if the schema is unknown.
        """
        state = self._known.table((database, table), self._known.head)
        schema = state.schema if isinstance(state, Stopped) else state
        return not isinstance(schema, TableSchema) or has_transactions(schema.engine)

    def all_cascades(self) -> tuple[Cascade, ...]:
        """Returns every foreign key that may change rows of a captured table without row events, according to the newest schemas."""
        return self._cascades().all

    def _cascades(self) -> Cascades:
        if self._known_cascades is None:
            head = self._known.head
            server = self._known.server(head)
            states = [self._known.table(name, head) for name in self._known.table_names()]
            schemas = [state.schema if isinstance(state, Stopped) else state for state in states]
            tables = [schema for schema in schemas if isinstance(schema, TableSchema)]
            logged = server is not None and server.logs_cascades
            self._known_cascades = Cascades([] if logged else tables, self._captured)
        return self._known_cascades

    def rewind(self, position: Position) -> None:
        """Removes all records after `position`. Call it when the stream starts again at `position`."""
        self._known_cascades = None
        if self._known.drop_after(position.order_key):
            self.unlisted = None
            self._repository.append([HistoryRecord(kind=RecordKind.REWIND, position=position)])
            self._added += 1

    def resnapshot(self, schema: TableSchema, position: Position) -> None:
        """Stores a stopped table's new schema, which applies from `position` on. Call it when the stream starts again at `position`."""
        self.rewind(position)
        self._store([table_record(RecordKind.SNAPSHOT, position, schema)])

    def forget_dropped(self, name: TableKey, position: Position) -> None:
        """Ends the stop of a table that was dropped before `position`, at which the stream starts again. A later CREATE TABLE of this name
        begins a new table.
        """
        self.rewind(position)
        self._store([dropped_record(position, name, DroppedTable(schema=None))])

    def compact(self, positions: Collection[Position], records_min: int = 1) -> int:
        """Removes the records that are not needed to continue from any of `positions`, and old approvals and schemas of operators. Returns
        how many records of the history were removed.

        Removes no record of the history if fewer than `records_min` could be removed, or if an executed set cannot be parsed. During the
        call, other threads may call `state` and `versions` for `positions` and for later positions.
        """
        self._review.forget(min((each.order_key for each in positions), default=0))
        records = self._repository.load()
        self._count, self._added = len(records), 0
        try:
            kept = needed(records, positions)
        except ValueError:
            return 0
        if len(records) - len(kept) < records_min:
            return 0
        self._repository.replace(kept)
        self._remember(kept)
        return len(records) - len(kept)

    def has_doubled(self, records_min: int) -> bool:
        """Returns whether `compact` is due: since the last compaction, at least `records_min` records were added, and the number of
        records has doubled. So the cost of compaction per record does not depend on the number of records.
        """
        return self._added >= max(records_min, self._count)

    def _remember(self, records: Collection[HistoryRecord]) -> None:
        """Replaces the history in memory by `records`."""
        known = KnownSchemas()
        for record in records:
            known.remember(record)
        self._known, self._count, self._added = known, len(records), 0

    def versions(self, position: Position) -> tuple[TableVersion, ...]:
        """Returns the versions of all captured tables that have a schema at `position` and are not stopped, ordered by name."""
        states = self._captured_at(position, self.table_names())
        return tuple(_versions(each for each in states if isinstance(each, TableSchema)))

    def listed_versions(self, position: Position, names: Iterable[TableKey]) -> tuple[TableVersion, ...]:
        """Returns the versions of the tables in `names` that are captured and have a schema at `position`, even if a statement stopped
        them.
        """
        schemas = (each.schema if isinstance(each, Stopped) else each for each in self._captured_at(position, names))
        return tuple(_versions(each for each in schemas if isinstance(each, TableSchema)))

    def list_written(self, position: Position) -> None:
        """Empties `unlisted`, the set of tables that changed since the last call. Called if the destination's list of tables was written
        with the states at `position`. If the history has later records, sets `unlisted` to None: these records may be about any table.
        """
        self.unlisted = set() if position.order_key >= self._known.head else None

    def _captured_at(self, position: Position, names: Iterable[TableKey]) -> list[KnownTable]:
        return [self._known.table(name, position.order_key) for name in names if self._captured(*name)]

    def state(self, database: str, table: str, position: Position) -> KnownTable:
        """Returns what the history knows about a table at `position`: its schema, its stop, or that it was dropped. Returns None if the
        table has no record up to `position`, or if its record says that its schema is unknown.
        """
        return self._known.table((database, table), position.order_key)

    def table_names(self) -> list[TableKey]:
        """Returns the names of all tables with a record in the history, including tables that are not captured."""
        return self._known.table_names()

    def _go_back_to(self, position: Position) -> None:
        if self._known.head > position.order_key:
            self.rewind(position)

    def _store(self, records: list[HistoryRecord]) -> None:
        if records:
            self._repository.append(records)
            self.revision += 1
            self._added += len(records)
        if self.unlisted is not None:
            self.unlisted |= {(record.database, record.table) for record in records if record.table}
        for record in records:
            self._known.remember(record)
            if self._known_cascades is not None and self._changes_cascades(self._known_cascades, record):
                self._known_cascades = None

    def _changes_cascades(self, cascades: Cascades, record: HistoryRecord) -> bool:
        if not record.table or record.kind is RecordKind.OBJECT:
            # A record about the server may change the cascades, because some servers write row events for changes by foreign keys.
            return record.kind is RecordKind.SERVER
        name = (record.database, record.table)
        return cascades.depend_on(name, self._known.table(name, record.position.order_key))


def _unreadable(error: TableStoppedError) -> TableVersion:
    """Returns a version without columns, which decodes no rows, with the reason of the error."""
    reason = f"{error.state}: {error.reason}"
    return TableVersion(database=error.database, table=error.table, columns=(), stopped=True, unreadable=reason)


_Taken = tuple[tuple[DdlEffect, ...], list[HistoryRecord], tuple[TableChange, ...]]


def _taken(context: DdlContext, review: SchemaDecisions, server: DdlServerFacts, position: Position) -> _Taken:
    """Returns what a statement does: its effects, the records to store, and the changes of tables. After an unexpected error, the result
    stops all tables that the statement may affect.
    """
    read: Statement = Unread(leading_words(context.text), "", text=context.text)
    try:
        read = read_statement(
            context.text,
            server.dialect,
            context.session.sql_mode,
            Literals(context.session.client, context.session.connection),
        )
        return _recorded(read, _meant(read, context, review), context, server, position)
    except SluiceError:
        raise
    except Exception as error:
        return _recorded(read, refused(error, read, context), context, server, position)


def _meant(read: Statement, context: DdlContext, review: SchemaDecisions) -> tuple[DdlEffect, ...]:
    """Returns the effects of a statement. Asks `review` for the policies, approvals and schemas that `effects_of` requests. Raises the
    errors of `review`.
    """
    while isinstance(meant := effects_of(read, context), Question):
        context = dataclasses.replace(
            context, answers=context.answers.with_answer(meant, _answer(meant, context, review))
        )
    return meant


def _answer(question: Question, context: DdlContext, review: SchemaDecisions) -> Any:
    if question.what is Unknown.POLICY:
        return review.policy(*question.table)
    if question.what is Unknown.APPROVAL:
        return review.approved(*question.table, context.key + 1)
    return review.resolved(*question.table, context.key + 1, question.reason, context.position)


def _recorded(
    read: Statement, effects: tuple[DdlEffect, ...], context: DdlContext, server: DdlServerFacts, position: Position
) -> _Taken:
    records = [
        *_database_records(read, context, server, position),
        *object_records(read, context, position),
        *_effect_records(effects, position),
    ]
    return effects, records, tuple(_changes(effects, position))


def _versions(schemas: Iterable[TableSchema]) -> Iterator[TableVersion]:
    """Yields the table version of each schema. After an unexpected error, leaves the table out; the next table map of this
    table stops it.
    """
    for schema in schemas:
        try:
            yield schema.version()
        except Exception:
            logger.exception(
                "the schema of table %s.%s cannot be decoded because of an unexpected error; the table stops at its next table map",
                schema.database,
                schema.table,
            )


def _database_records(
    statement: Statement, context: DdlContext, server: DdlServerFacts, position: Position
) -> Iterator[HistoryRecord]:
    if isinstance(statement, Unread) and statement.text:  # The statement may have changed the charset of a database.
        for name in databases_in(statement.text, context.known.database_names(), context.default_database):
            yield _charset_record(name, "", position)
    if not isinstance(statement, SetDatabase | DropDatabase):
        return
    database = statement.name or context.default_database
    name = lowered(database) if server.lower_case_names else database
    there = context.known.database_charset(name, context.key)
    if isinstance(statement, DropDatabase):
        charset: str | None = ""
    elif statement.kind.endswith("NOT EXISTS") and there:
        charset = None
    else:
        charset = statement.charset
        if charset == OF_SESSION or (charset is None and statement.creates):
            charset = context.session.server or server.charset
    if charset is not None and charset != there:
        yield _charset_record(name, charset, position)


def _charset_record(database: str, charset: str, position: Position) -> HistoryRecord:
    return HistoryRecord(kind=RecordKind.DATABASE, position=position, database=database, content={"charset": charset})


def _effect_records(effects: tuple[DdlEffect, ...], position: Position) -> Iterator[HistoryRecord]:
    for effect in effects:
        if isinstance(effect.state, Stopped):
            yield stopped_record(position, effect.name, effect.state)
        elif isinstance(effect.state, DroppedTable):
            yield dropped_record(position, effect.name, effect.state)
        elif effect.state is not None:
            yield table_record(RecordKind.DDL, position, effect.state)


def _changes(effects: tuple[DdlEffect, ...], position: Position) -> Iterator[TableChange]:
    for effect in effects:
        if effect.change is None:
            continue
        stopped = effect.state if isinstance(effect.state, Stopped) and effect.lake_schema is None else None
        schema = effect.lake_schema or (stopped.schema if stopped else effect.state)
        yield TableChange(
            kind=effect.change,
            database=effect.name[0],
            table=effect.name[1],
            order_key=position.order_key - effect.early,
            time_us=position.time_us,
            schema=schema.version() if isinstance(schema, TableSchema) else None,
            fills=effect.fills,
            alterations=effect.alterations,
            renamed_from=".".join(effect.renamed_from or ()),
            state=stopped.state if stopped else "",
            reason=stopped.reason if stopped else "",
        )
