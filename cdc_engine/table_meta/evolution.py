"""How a statement changes the schema of one table. Pure; called by `history` for captured tables.

Raises CannotFollowError where the table cannot go on, with the state and the sentence for the operator; nothing is ever guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cdc_engine.binlog.charsets import charset_of_name
from cdc_engine.table_meta.column_definition import ColumnDefinition
from cdc_engine.table_meta.declared import DeclaredType, fitted
from cdc_engine.table_meta.initial_value import InitialValueUnknownError, initial_value
from cdc_engine.table_meta.schema import DeclaredColumn, TableSchema
from cdc_engine.table_meta.statement import AlterTable, CreateTable, TableName

SchemaOf = Callable[[TableName], TableSchema | None]
Fills = tuple[tuple[str, str], ...]

DDL_UNSUPPORTED, SCHEMA_UNKNOWN, SCHEMA_MISMATCH = "DDL_UNSUPPORTED", "SCHEMA_UNKNOWN", "SCHEMA_MISMATCH"


class CannotFollowError(Exception):
    """The table stops in `state`; `reason` is a sentence without the place, which the caller knows."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(state, reason)
        self.state, self.reason = state, reason


def created(statement: CreateTable, database: str, database_charset: str | None, schema_of: SchemaOf) -> TableSchema:
    """The schema of a table that a CREATE TABLE makes in `database`. `database_charset`: its default, None where not known."""
    if statement.selects:
        raise CannotFollowError(DDL_UNSUPPORTED, "the table was created from a SELECT")
    if statement.like is not None:
        return _copied(statement, database, statement.like, schema_of)
    charset = statement.charset or database_charset or ""
    columns = tuple(declared_column(definition, charset) for definition in statement.columns)
    key = _named_as_declared(statement.key, columns)
    columns = tuple(dataclasses.replace(column, nullable=False) if column.name in key else column for column in columns)
    return TableSchema(database=database, table=statement.name.table, charset=charset, columns=columns, key=key)


def altered(statement: AlterTable, schema: TableSchema) -> tuple[TableSchema, Fills]:
    """The schema after an ALTER TABLE, and the values that rows already there got in the columns that were added."""
    if statement.unsupported:
        raise CannotFollowError(DDL_UNSUPPORTED, f"{', '.join(statement.unsupported)} is not supported yet")
    schema = dataclasses.replace(schema, charset=statement.charset or schema.charset)
    fills: list[tuple[str, str]] = []
    for addition in statement.additions:
        if any(_same(addition.name, column.name) for column in schema.columns):
            if addition.if_not_exists:
                continue
            raise CannotFollowError(
                SCHEMA_MISMATCH, f"it adds the column {addition.name}, which the schema history already has"
            )
        value = _fill(addition)
        column = declared_column(addition, schema.charset)
        schema = dataclasses.replace(schema, columns=_inserted(schema.columns, column, addition.after))
        if value is not None:
            fills.append((column.name, value))
    return schema, tuple(fills)


def declared_column(definition: ColumnDefinition, table_charset: str) -> DeclaredColumn:
    """A definition with its charset decided: the column's own, else the table's default."""
    declared, charset = _with_charset(definition.type, definition.charset or table_charset)
    return DeclaredColumn(
        name=definition.name,
        type=declared.text,
        charset=charset,
        nullable=definition.nullable,
        generated=definition.generated,
        visible=definition.visible,
    )


def _with_charset(declared: DeclaredType, charset_name: str) -> tuple[DeclaredType, str]:
    if declared.is_binary_string:
        return fitted(declared, 1), "binary"
    if not declared.has_charset:
        return declared, ""
    charset = charset_of_name(charset_name)
    if charset is None:
        raise CannotFollowError(
            SCHEMA_UNKNOWN, f"the default character set of its columns, {charset_name!r}, is not known"
        )
    declared = fitted(declared, charset.bytes_max)
    return (declared.as_binary() if charset.name == "binary" else declared), charset.name


def _copied(statement: CreateTable, database: str, like: TableName, schema_of: SchemaOf) -> TableSchema:
    source = schema_of(like)
    if source is None:
        reason = (
            f"the table was created like {like.database or database}.{like.table}, which is not in the schema history"
        )
        raise CannotFollowError(SCHEMA_UNKNOWN, reason)
    return dataclasses.replace(source, database=database, table=statement.name.table)


def _fill(addition: ColumnDefinition) -> str | None:
    if addition.primary:
        raise CannotFollowError(DDL_UNSUPPORTED, f"it adds the primary key column {addition.name}")
    try:
        return initial_value(addition)
    except InitialValueUnknownError as error:
        reason = f"the column {addition.name} got values in rows already there that the binlog does not tell: {error}"
        raise CannotFollowError(DDL_UNSUPPORTED, reason) from error


def _inserted(
    columns: tuple[DeclaredColumn, ...], column: DeclaredColumn, after: str | None
) -> tuple[DeclaredColumn, ...]:
    if after is None:
        return (*columns, column)
    if not after:
        return (column, *columns)
    for index, existing in enumerate(columns):
        if _same(existing.name, after):
            return (*columns[: index + 1], column, *columns[index + 1 :])
    raise CannotFollowError(
        SCHEMA_MISMATCH, f"it adds the column {column.name} after {after}, which the schema history does not have"
    )


def _named_as_declared(key: tuple[str, ...], columns: tuple[DeclaredColumn, ...]) -> tuple[str, ...]:
    """Key columns in the spelling of their definitions: column names have no case."""
    spelling = {column.name.lower(): column.name for column in columns}
    missing = [name for name in key if name.lower() not in spelling]
    if missing:
        raise CannotFollowError(SCHEMA_UNKNOWN, f"the primary key column {missing[0]} is not among the columns")
    return tuple(spelling[name.lower()] for name in key)


def _same(name: str, other: str) -> bool:
    return name.lower() == other.lower()
