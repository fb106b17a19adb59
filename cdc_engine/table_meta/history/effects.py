"""Computes what a DDL statement does to tables, from the statement and the schema history before the statement. Pure functions. If a
policy, an approval or an operator's schema is needed, `effects_of` returns a question (`questions`).

EFFECTS has one function per kind of statement. The functions follow the schemas of all tables, including stopped tables and tables that are
not captured. The engine needs the schema of such a table when the table's stop is resolved, or when a RENAME gives the table a name that
conf/ captures. Only captured tables that are not stopped get changes for the lake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sluice.batch_manifest.values import Alteration
from sluice.cdc_engine.binlog.charsets.statement_text import shown
from sluice.cdc_engine.contracts import TableChangeKind
from sluice.cdc_engine.states import RESOLVABLE
from sluice.cdc_engine.table_meta.change import foreign_keys
from sluice.cdc_engine.table_meta.change.alteration import Altered, altered, difference, followed
from sluice.cdc_engine.table_meta.change.evolution import (
    DDL_UNSUPPORTED,
    ROWS_ELSEWHERE,
    SCHEMA_UNKNOWN,
    CannotFollowError,
    created,
)
from sluice.cdc_engine.table_meta.change.policy import (
    DROP_PARTITION,
    DROP_TABLE,
    TRUNCATE,
    ChangeDecision,
    Item,
    PendingChange,
    PolicyAnswer,
    alterations_of,
    choices,
    decide,
    items_of,
    why_reprinted,
)
from sluice.cdc_engine.table_meta.change.renaming import is_copy, is_remains, moved
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.reader import defect_text
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    CreateTable,
    DropDatabase,
    DropTables,
    Query,
    RenameTables,
    SetDatabase,
    Statement,
    StatementRowChange,
    Truncate,
    Unread,
    dropped_database,
)
from sluice.cdc_engine.table_meta.history.concerned import concerned
from sluice.cdc_engine.table_meta.history.ddl_context import DdlContext, DdlEffect, shortened
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable, TableKey
from sluice.cdc_engine.table_meta.history.questions import Answers, Question, UnansweredError
from sluice.cdc_engine.table_meta.history.renamed_tables import may_move_rows, taken_over, under_name, why_stopped
from sluice.cdc_engine.table_meta.history.row_changes import changed_by_query, changed_in_doubt, changed_without_rows
from sluice.cdc_engine.table_meta.schema import DroppedTable, Stopped, TableSchema, rows_elsewhere


def effects_of(statement: Statement, context: DdlContext) -> tuple[DdlEffect, ...] | Question:
    """Returns the effects in the order of the statement's tables, or a question if `context.answers` lacks an answer that is needed."""
    statement = context.executed(statement)
    if (doubtful := changed_in_doubt(statement, context)) is not None:
        return tuple(_stopped_by(doubtful, statement.kind, context))
    find = EFFECTS.get(type(statement))
    try:
        effects = [each for effect in (find(statement, context) if find else ()) for each in _resolved(effect, context)]
    except UnansweredError as error:
        return error.question
    return tuple(_pointing(statement, context, effects))


def _pointing(statement: Statement, context: DdlContext, effects: list[DdlEffect]) -> Iterator[DdlEffect]:
    """Yields `effects`, and effects on other tables with foreign keys to renamed tables or columns. These keys get the new names."""
    tables, columns = _new_names(statement, context)
    states = {effect.name: effect.state for effect in effects if effect.state is not None}
    for effect in effects:
        yield dataclasses.replace(effect, state=_pointed(states.get(effect.name), tables, columns))
    for name in context.tables() if tables or columns else ():
        if name not in states:
            yield from _repointed(statement, context, name, tables, columns)


def _repointed(
    statement: Statement,
    context: DdlContext,
    name: TableKey,
    tables: dict[TableKey, TableKey],
    columns: dict[TableKey, dict[str, str]],
) -> Iterator[DdlEffect]:
    """Yields the effect on a table whose foreign keys refer to renamed tables or columns. An unexpected error stops only this table."""
    there = context.state(name)
    try:
        state = _pointed(there, tables, columns)
    except Exception as error:
        why = CannotFollowError(
            SCHEMA_UNKNOWN, f"Sluice cannot follow the foreign keys of the table: {defect_text(error)}"
        )
        yield _stop(context, name, statement.kind, why)
        return
    if state != there:
        yield DdlEffect(name, None, state)


def _new_names(
    statement: Statement, context: DdlContext
) -> tuple[dict[TableKey, TableKey], dict[TableKey, dict[str, str]]]:
    """Returns the new names of tables and columns that a statement renames, for foreign keys that refer to them. Leaves out tables whose
    engine has no foreign keys: a foreign key to such a table (possible with foreign_key_checks=0) keeps the old name.
    """
    pairs: list[tuple[TableKey, TableKey]] = []
    columns: dict[TableKey, dict[str, str]] = {}
    if isinstance(statement, RenameTables):
        pairs = [(context.full_name(old), context.full_name(new)) for old, new in statement.pairs]
    elif isinstance(statement, AlterTable):
        name = context.full_name(statement.name)
        pairs = [(name, context.full_name(statement.renames_to))] if statement.renames_to else []
        if names := foreign_keys.column_names(statement):
            columns[name] = names
    new = {origin: name for name, origin in moved(pairs).items() if origin is not None}
    apart = {name for name in (*new, *columns) if getattr(context.schema(name), "engine", "")}
    return (
        {origin: name for origin, name in new.items() if origin not in apart},
        {name: names for name, names in columns.items() if name not in apart},
    )


def _pointed(
    state: KnownTable, tables: dict[TableKey, TableKey], columns: dict[TableKey, dict[str, str]]
) -> KnownTable:
    if isinstance(state, Stopped) and state.schema is not None:
        return dataclasses.replace(state, schema=foreign_keys.pointing(state.schema, tables, columns))
    return foreign_keys.pointing(state, tables, columns) if isinstance(state, TableSchema) else state


def _resolved(effect: DdlEffect, context: DdlContext) -> Iterable[DdlEffect]:
    """Returns `effect`. If `effect` stops a table in a RESOLVABLE state, and an operator gave a schema, returns that schema's effects."""
    if not isinstance(effect.state, Stopped) or effect.change is None or effect.state.state not in RESOLVABLE:
        return (effect,)
    schema = context.answers.resolved(effect.name, effect.state.reason)
    if schema is None:
        return (effect,)
    return _become(context, effect.name, "schema resolve", followed(context.schema(effect.name), schema))


def _stop(
    context: DdlContext, name: TableKey, kind: str, why: CannotFollowError, schema: TableSchema | None = None
) -> DdlEffect:
    """Returns the effect that stops a table. `schema` is the table's schema after the statement, or None if unknown. A table that is
    already stopped keeps its earlier reason. A table that conf/ does not capture does not stop if `schema` is known: only the schema is
    stored. If the schema of such a table is unknown, the stop is stored, but the lake does not get it.
    """
    there = context.state(name)
    if isinstance(there, Stopped):
        return DdlEffect(name, None, dataclasses.replace(there, schema=schema, gone=False))
    if not context.captured(*name) and schema is not None:
        return DdlEffect(name, None, schema)
    reason = shown(f"{kind} at {context.position}: {why.reason}")
    stopped = Stopped(state=why.state, reason=reason, schema=schema)
    return DdlEffect(name, TableChangeKind.STOPPED if context.captured(*name) else None, stopped)


def _become(
    context: DdlContext, name: TableKey, kind: str, done: Altered, rows_lost: tuple[str, ...] = ()
) -> Iterator[DdlEffect]:
    """Yields the effects on a table that gets the schema `done.schema`. Stops the table if the policy does not allow the change, or if the
    lake needs a re-snapshot (`done.unknown`). If the table is not captured or is stopped, only its schema changes. `rows_lost` are actions
    that deleted or inserted rows without row events. The policy decides about the actions in PARTITION_LOST. Other actions stop the table.
    """
    if not done.unknown and context.running(name):
        done = dataclasses.replace(done, unknown=why_reprinted(done.alterations, context.answers.policy(name)))
    items = [*items_of(done.alterations), *(Item(kind=DROP_PARTITION, what=words.lower()) for words in rows_lost)]
    unknown = done.unknown or ", ".join(words for words in rows_lost if words not in PARTITION_LOST)
    if unknown or not context.running(name):
        reason = unknown if done.unknown else f"{unknown} is not supported"
        effect = _stop(context, name, kind, CannotFollowError(DDL_UNSUPPORTED, reason), done.schema)
        yield dataclasses.replace(effect, alterations=done.alterations)
        return
    refused = _reviewed(context, name, kind, items, done.schema)
    if isinstance(refused, DdlEffect):
        yield refused
        return
    there = context.state(name)
    unchanged = isinstance(there, TableSchema) and there.columns == done.schema.columns and not refused.alterations
    yield DdlEffect(name, None if unchanged else TableChangeKind.SCHEMA, done.schema, done.fills, refused.alterations)


def _reviewed(
    context: DdlContext, name: TableKey, kind: str, items: list[Item], schema: TableSchema | None
) -> ChangeDecision | DdlEffect:
    """Applies the table's policy. Returns the decision if the lake follows the statement, otherwise the effect that stops the table."""
    policy = context.answers.policy(name)
    decision = decide(items, policy, context.answers.approved(name))
    if decision.verdict is PolicyAnswer.FOLLOW:
        return decision
    if decision.verdict is PolicyAnswer.STOPPED:
        reason = (
            f"the lake does not follow the statement ({', '.join(item.what for item in items)}), because `schema_changes` "
            "is stop for one of these changes"
        )
        effect = _stop(context, name, kind, CannotFollowError(decision.verdict.value, reason), schema)
        return dataclasses.replace(effect, alterations=alterations_of(items))
    pending = PendingChange(
        destination=context.destination,
        database=name[0],
        table=name[1],
        order_key=context.key + 1,
        position=context.position,
        statement=shortened(context.text),
        items=tuple(items),
        choices=choices(items, policy),
    )
    stopped = Stopped(state=decision.verdict.value, reason=pending.reason, schema=schema)
    return DdlEffect(name, TableChangeKind.STOPPED, stopped, alterations=alterations_of(items), pending=pending)


def _create(statement: CreateTable, context: DdlContext) -> Iterator[DdlEffect]:
    name = context.full_name(statement.name)
    there = context.state(name)
    if statement.if_not_exists and isinstance(there, TableSchema | Stopped) and not getattr(there, "gone", False):
        return
    if statement.selects:
        by_query = changed_by_query(statement.select_words, context, calls=statement.select_calls)
        yield from _stopped_by(by_query, statement.kind, context)
    yield from _members(statement, name, context)
    if statement.if_not_exists and context.may_exist(name):
        # It is unknown whether the table existed. So the table's schema stays unknown until a table map or an operator provides it.
        return
    charset = context.known.database_charset(name[0], context.key)
    # With OR REPLACE, the flag thread_specific is always set, so it does not show whether the table is temporary.
    of_temporary = context.session.thread_specific and not statement.replaces
    try:
        schema = created(
            statement,
            name[0],
            charset,
            lambda like: None if of_temporary else context.schema(context.full_name(like)),
            context.rules,
            session=context.session,
        )
    except CannotFollowError as error:
        yield _stop(context, name, statement.kind, error)
        return
    schema = dataclasses.replace(schema, table=name[1], from_create=context.captured(*name))
    if apart := elsewhere(rows_elsewhere(schema.engine)):
        yield _stop(context, name, statement.kind, apart, schema)
        return
    existed = isinstance(there, TableSchema) or context.may_exist(name)
    created_again = isinstance(there, DroppedTable) or (existed and statement.replaces)
    if created_again and context.running(name):
        # The lake has rows of an earlier table with this name. The rows of the earlier table are deleted first, because the new table does
        # not have them.
        yield DdlEffect(name, TableChangeKind.TRUNCATE, early=True)
        context = dataclasses.replace(context, answers=Answers(recreated=True))
    last = there.schema if isinstance(there, DroppedTable) else there if isinstance(there, TableSchema) else None
    yield from _become(context, name, statement.kind, Altered(schema=schema, alterations=_since(last, schema)))


def _since(last: TableSchema | None, schema: TableSchema) -> tuple[Alteration, ...]:
    """Returns the alterations from `last`, the schema of an earlier table with this name, to `schema`. Returns () if `last` is None."""
    return () if last is None else difference(last, schema)


def elsewhere(engine: str) -> CannotFollowError | None:
    """Returns why a table with this engine (a result of `rows_elsewhere`) stops, or None if `engine` is empty."""
    reason = f"row events do not contain the rows of a table of ENGINE={engine}"
    return CannotFollowError(ROWS_ELSEWHERE, reason) if engine else None


def _members(statement: CreateTable | AlterTable, name: TableKey, context: DdlContext) -> Iterator[DdlEffect]:
    """Stops the captured tables in a MERGE table, because the row events of a write through the MERGE table name only the MERGE table."""
    for member in map(context.full_name, statement.union):
        if context.captured(*member):
            reason = (
                f"the MERGE table {name[0]}.{name[1]} contains the table, so rows can change without row events "
                "of the table"
            )
            yield _stop(
                context, member, statement.kind, CannotFollowError(ROWS_ELSEWHERE, reason), context.schema(member)
            )


def _others(statement: AlterTable, name: TableKey, context: DdlContext) -> Iterator[DdlEffect]:
    """Yields the effects on other tables whose rows move into or out of the altered table, for example by EXCHANGE PARTITION."""
    for other, what in statement.others:
        there = context.full_name(other)
        if what == "CONVERT TABLE":
            yield from _gone(context, there, statement.kind, f"the table became a partition of {name[0]}.{name[1]}")
            continue
        schema = context.schema(there)
        if what == "CONVERT PARTITION" and (of := context.schema(name)) is not None:
            schema = dataclasses.replace(of, database=there[0], table=there[1], foreign_keys=())
        if context.captured(*there) or schema is not None:
            reason = f"{what} of {name[0]}.{name[1]} replaced rows of the table without row events"
            yield _stop(context, there, statement.kind, CannotFollowError(DDL_UNSUPPORTED, reason), schema)


def _alter(statement: AlterTable, context: DdlContext) -> Iterator[DdlEffect]:
    name, new_name = context.full_name(statement.name), context.new_name(statement)
    schema = context.schema(name)
    yield from _others(statement, name, context)
    yield from _members(statement, name, context)
    if schema is None:
        anything = statement.items or statement.rows_lost or new_name or rows_elsewhere(statement.engine)
        if context.running(name) and anything:
            why = CannotFollowError(SCHEMA_UNKNOWN, "the schema history does not have the table")
            yield _stop(context, name, statement.kind, why)
        return
    try:
        done = altered(statement, schema, context.known.database_charset(name[0], context.key), context.session)
    except CannotFollowError as error:
        yield _stop(context, name, statement.kind, error)
        return
    own = foreign_keys.of_altered(statement, schema, done.schema, context.rules, renamed=new_name is not None)
    done = dataclasses.replace(done, schema=dataclasses.replace(done.schema, foreign_keys=own))
    if new_name is not None:
        yield from _renamed(context, statement.kind, [(name, new_name)], {name: done})
    if apart := elsewhere(rows_elsewhere(statement.engine)):
        yield _stop(context, new_name or name, statement.kind, apart, done.schema)
    elif new_name is not None:
        if statement.rows_lost:
            reason = f"{', '.join(statement.rows_lost)} is not supported"
            yield _stop(context, new_name, statement.kind, CannotFollowError(DDL_UNSUPPORTED, reason), done.schema)
    elif statement.rows_lost or done.unknown or done.schema != schema or done.schema.comments != schema.comments:
        yield from _become(context, name, statement.kind, done, statement.rows_lost)


def _rename(statement: RenameTables, context: DdlContext) -> Iterator[DdlEffect]:
    pairs = [(context.full_name(old), context.full_name(new)) for old, new in statement.pairs]
    objects = context.known.stored_objects(context.key)
    views = objects.views() if objects is not None else ()
    pairs = [(old, new) for old, new in pairs if old not in views]
    return _renamed(context, statement.kind, pairs, {})


def _renamed(
    context: DdlContext, kind: str, pairs: list[tuple[TableKey, TableKey]], altered_to: dict[TableKey, Altered]
) -> Iterator[DdlEffect]:
    """Yields the effects of renames. `altered_to` has the tables that the statement also alters, by their old names."""
    now = moved(pairs)
    swapped = {
        origin for name, origin in now.items() if origin is not None and is_copy(name, origin) and name in now.values()
    }
    for name, origin in now.items():
        if origin is None:
            yield from _gone(context, name, kind, "the table was renamed", is_change=name not in swapped)
            continue
        before = context.schema(origin)
        done = altered_to.get(origin) or (None if before is None else Altered(schema=before))
        if done is not None:
            done = dataclasses.replace(done, schema=under_name(done.schema, name))
        if done is not None and before is not None and may_move_rows(context, name, origin):
            yield from _taken_over(context, kind, origin, under_name(before, name), done)
        elif context.schema(origin) is not None or context.captured(*name):
            yield _came(context, name, origin, kind, done.schema if done else None)


def _taken_over(
    context: DdlContext, kind: str, origin: TableKey, before: TableSchema, done: Altered
) -> Iterator[DdlEffect]:
    """Yields the effects of a rename that the lake follows: the table with the new name takes over the rows and columns of the table
    `origin`. Then the statement's other alterations follow. `before` is the schema before the statement, but already under the new name.
    """
    name = (before.database, before.table)
    if name == origin:
        return
    altered_too = (before.columns, before.key) != (done.schema.columns, done.schema.key) or bool(done.unknown)
    yield taken_over(name, origin, before, early=altered_too)
    if altered_too:
        yield from _become(context, name, kind, done)
    elif done.schema != before or done.schema.comments != before.comments:
        yield DdlEffect(name, None, done.schema)


def _came(context: DdlContext, name: TableKey, origin: TableKey, kind: str, schema: TableSchema | None) -> DdlEffect:
    """Returns the effect of a rename that the lake cannot follow, from `origin` to `name`: if `name` is captured, the table `name` stops.

    If both names are captured, the effect has the change STOPPED even if the table `name` was already stopped. The reason: consumers also
    get rows of stopped tables, and must stop at this rename if conf/ has different filters, masks or transforms for the two names. The
    effect has no change if a schema change tool renamed the original table to `name`, for example to `_t_del`.
    """
    effect = _stop(context, name, kind, why_stopped(context, origin, schema), schema)
    if is_remains(name, origin):
        return dataclasses.replace(effect, change=None)
    if not (context.captured(*name) and context.captured(*origin)):
        return effect
    return dataclasses.replace(effect, change=TableChangeKind.STOPPED, renamed_from=origin)


def _gone(context: DdlContext, name: TableKey, kind: str, what: str, *, is_change: bool = True) -> Iterator[DdlEffect]:
    """Yields the effects on a table that was dropped or renamed. `what` says which, for the operator. `is_change` is False if a schema
    change tool renamed its copy: the lake then changes nothing for the copy's old name.
    """
    there = context.state(name)
    if isinstance(there, Stopped):
        yield _without_table(_stop(context, name, kind, CannotFollowError(DDL_UNSUPPORTED, what)))
    elif isinstance(there, TableSchema) or context.may_exist(name):
        if is_change and context.running(name):
            item = Item(kind=DROP_TABLE, what=what)
            decision = _reviewed(context, name, kind, [item], None)
            if isinstance(decision, DdlEffect):
                yield _without_table(decision)
                return
            if decision.plans == ("apply",):
                yield DdlEffect(name, TableChangeKind.TRUNCATE)
        yield DdlEffect(name, None, DroppedTable(schema=there if isinstance(there, TableSchema) else None))


def _without_table(effect: DdlEffect) -> DdlEffect:
    """Marks a stopped table as dropped, so that a later CREATE TABLE IF NOT EXISTS creates it."""
    if not isinstance(effect.state, Stopped):
        return effect
    return dataclasses.replace(effect, state=dataclasses.replace(effect.state, gone=True))


def _truncate(statement: Truncate, context: DdlContext) -> Iterator[DdlEffect]:
    name = context.full_name(statement.name)
    if not context.running(name):
        return
    decision = _reviewed(
        context, name, statement.kind, [Item(kind=TRUNCATE, what="deletes all rows")], context.schema(name)
    )
    if isinstance(decision, DdlEffect):
        yield decision
    elif decision.plans == ("apply",):
        yield DdlEffect(name, TableChangeKind.TRUNCATE)


def _drop(statement: DropTables, context: DdlContext) -> Iterator[DdlEffect]:
    for name in dict.fromkeys(context.full_name(name) for name in statement.names):
        yield from _gone(context, name, statement.kind, "the table was dropped")


def _drop_database(statement: DropDatabase | SetDatabase, context: DdlContext) -> Iterator[DdlEffect]:
    dropped = dropped_database(statement)
    if dropped is None:
        return
    database = lowered(dropped) if context.lower_case_names else dropped
    for name in context.tables():
        if name[0] == database:
            yield from _gone(context, name, statement.kind, "the table is dropped with its database")


def _unread(statement: Unread, context: DdlContext) -> Iterable[DdlEffect]:
    """Stops the tables in `statement.names`. If there are none, stops all known tables that the statement may affect."""
    return _stops(
        statement, CannotFollowError(SCHEMA_UNKNOWN, f"the statement cannot be read: {statement.reason}"), context
    )


def refused(error: Exception, statement: Statement, context: DdlContext) -> tuple[DdlEffect, ...]:
    """Returns the effects after a defect of Sluice: every table that the statement may affect stops. A row change may affect any table."""
    why = CannotFollowError(SCHEMA_UNKNOWN, f"Sluice cannot follow the statement: {defect_text(error)}")
    if isinstance(statement, StatementRowChange | Query):
        return tuple(_stopped_by(dict.fromkeys(context.tables(), why), statement.kind, context))
    return tuple(_stops(statement, why, context))


def _stops(statement: Statement, why: CannotFollowError, context: DdlContext) -> Iterator[DdlEffect]:
    for name in concerned(statement, context.known, context.full_name, context.default_database):
        if context.captured(*name) or context.schema(name) is not None:
            yield _stop(context, name, statement.kind, why)


def _row_change(statement: StatementRowChange, context: DdlContext) -> Iterator[DdlEffect]:
    return _stopped_by(changed_without_rows(statement, context), statement.kind, context)


def _query(statement: Query, context: DdlContext) -> Iterator[DdlEffect]:
    return _stopped_by(changed_by_query(statement.words, context, calls=statement.calls), statement.kind, context)


def _stopped_by(found: Mapping[TableKey, CannotFollowError], kind: str, context: DdlContext) -> Iterator[DdlEffect]:
    for name, why in found.items():
        if context.running(name):
            yield _stop(context, name, kind, why, context.schema(name))


PARTITION_LOST = {"DROP PARTITION", "TRUNCATE"}  # Actions of ALTER TABLE that delete rows and do nothing else.
EFFECTS: dict[type, Callable[[Any, DdlContext], Iterable[DdlEffect]]] = {
    CreateTable: _create,
    AlterTable: _alter,
    Truncate: _truncate,
    RenameTables: _rename,
    DropTables: _drop,
    DropDatabase: _drop_database,
    SetDatabase: _drop_database,
    Unread: _unread,
    StatementRowChange: _row_change,
    Query: _query,
}
