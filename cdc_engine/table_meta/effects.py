"""What a statement means for the captured tables: one effect a table, from the statement and the state before it. Pure; used by `history`.

One function a kind of statement, in EFFECTS. A statement that concerns no captured table has no effect, whatever it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cdc_engine.contracts import TableChangeKind
from cdc_engine.table_meta.evolution import (
    DDL_UNSUPPORTED,
    SCHEMA_UNKNOWN,
    CannotFollowError,
    Fills,
    altered,
    created,
)
from cdc_engine.table_meta.known import Known, TableKey, TableState
from cdc_engine.table_meta.schema import Stopped, TableSchema
from cdc_engine.table_meta.statement import (
    AlterTable,
    CreateTable,
    DropDatabase,
    RowChange,
    Statement,
    TableName,
    Truncate,
    Unread,
    Unsupported,
)


@dataclasses.dataclass(frozen=True)
class Effect:
    """`change`: what the lake is told, None for nothing. `state`: what the history has from here on, None where it stays."""

    name: TableKey
    change: TableChangeKind | None
    state: TableSchema | Stopped | None = None
    fills: Fills = ()


@dataclasses.dataclass(frozen=True)
class Before:
    """The place of a statement and what held just before it (`key`). `place` is for sentences."""

    known: Known
    key: int
    captured: Callable[[str, str], bool]
    default_database: str
    lower_case_names: bool
    place: str

    def full_name(self, name: TableName) -> TableKey:
        full = (name.database or self.default_database, name.table)
        return (full[0].lower(), full[1].lower()) if self.lower_case_names else full

    def state(self, name: TableKey) -> TableState:
        return self.known.table(name, self.key)

    def schema(self, name: TableName) -> TableSchema | None:
        state = self.state(self.full_name(name))
        return state if isinstance(state, TableSchema) else None

    def running(self, name: TableKey) -> bool:
        """Captured, and not stopped by an earlier statement: that one's reason stays."""
        return self.captured(*name) and not isinstance(self.state(name), Stopped)

    def running_tables(self) -> list[TableKey]:
        """Tables with a schema here."""
        return [
            name
            for name in self.known.table_names()
            if self.captured(*name) and isinstance(self.state(name), TableSchema)
        ]


def effects_of(statement: Statement, before: Before) -> tuple[Effect, ...]:
    """The effects in the order of their tables in the statement."""
    find = EFFECTS.get(type(statement))
    return tuple(find(statement, before)) if find else ()


def _stop(before: Before, name: TableKey, state: str, kind: str, reason: str) -> Effect:
    sentence = f"{kind} at {before.place}: {reason}"
    return Effect(name, TableChangeKind.STOPPED, Stopped(state=state, reason=sentence))


def _stop_each(before: Before, names: Iterable[TableKey], state: str, kind: str, reason: str) -> Iterator[Effect]:
    return (_stop(before, name, state, kind, reason) for name in dict.fromkeys(names) if before.running(name))


def _create(statement: CreateTable, before: Before) -> Iterator[Effect]:
    name = before.full_name(statement.name)
    if not before.running(name):
        return
    there = before.state(name) is not None
    if there and statement.if_not_exists:
        return
    if there and statement.replaces:
        yield _stop(before, name, DDL_UNSUPPORTED, statement.kind, "it replaces a table, which is not supported yet")
        return
    try:
        schema = created(statement, name[0], before.known.database_charset(name[0], before.key), before.schema)
    except CannotFollowError as error:
        yield _stop(before, name, error.state, statement.kind, error.reason)
        return
    yield Effect(name, TableChangeKind.SCHEMA, dataclasses.replace(schema, table=name[1]))


def _alter(statement: AlterTable, before: Before) -> Iterator[Effect]:
    name = before.full_name(statement.name)
    if not before.running(name):
        return
    state = before.state(name)
    if not isinstance(state, TableSchema):
        if statement.additions or statement.unsupported:
            yield _stop(before, name, SCHEMA_UNKNOWN, statement.kind, "the table is not in the schema history")
        return
    try:
        schema, fills = altered(statement, state)
    except CannotFollowError as error:
        yield _stop(before, name, error.state, statement.kind, error.reason)
        return
    if schema != state:
        change = TableChangeKind.SCHEMA if schema.columns != state.columns else None
        yield Effect(name, change, schema, fills)


def _truncate(statement: Truncate, before: Before) -> Iterator[Effect]:
    name = before.full_name(statement.name)
    if before.running(name):
        yield Effect(name, TableChangeKind.TRUNCATE)


def _unsupported(statement: Unsupported, before: Before) -> Iterator[Effect]:
    names = [before.full_name(name) for name in statement.names]
    if statement.if_exists and before.known.server(before.key) is not None:
        names = [name for name in names if before.state(name) is not None]
    return _stop_each(before, names, DDL_UNSUPPORTED, statement.kind, "this is not supported yet")


def _drop_database(statement: DropDatabase, before: Before) -> Iterator[Effect]:
    database = statement.name.lower() if before.lower_case_names else statement.name
    names = [name for name in before.running_tables() if name[0] == database]
    return _stop_each(before, names, DDL_UNSUPPORTED, statement.kind, "dropping tables is not supported yet")


def _unread(statement: Unread, before: Before) -> Iterator[Effect]:
    """Where even the table's name could not be read, every table with a schema here that is named anywhere in it."""
    names = [before.full_name(name) for name in statement.names] or _named(before, statement.words)
    return _stop_each(before, names, SCHEMA_UNKNOWN, statement.kind, f"it cannot be read: {statement.reason}")


def _row_change(statement: RowChange, before: Before) -> Iterator[Effect]:
    reason = "rows were changed by a statement (binlog_format was not ROW)"
    return _stop_each(before, _named(before, statement.words), DDL_UNSUPPORTED, statement.kind, reason)


def _named(before: Before, words: frozenset[str]) -> list[TableKey]:
    return [name for name in before.running_tables() if name[1].lower() in words]


EFFECTS: dict[type, Callable[[Any, Before], Iterable[Effect]]] = {
    CreateTable: _create,
    AlterTable: _alter,
    Truncate: _truncate,
    Unsupported: _unsupported,
    DropDatabase: _drop_database,
    Unread: _unread,
    RowChange: _row_change,
}
