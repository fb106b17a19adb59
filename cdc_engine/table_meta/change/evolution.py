"""Computes the schema that a CREATE TABLE creates, and converts a parsed column definition to a column. Pure functions.

If a function cannot determine the schema, it raises CannotFollowError, which has the state in which the table stops and a sentence for the
operator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.binlog.charsets.statement_text import Literals, LiteralUnknownError
from sluice.cdc_engine.contracts import NO_SESSION, StatementSession
from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.foreign_keys import RULES_OF_SHOWN, ForeignKeyRules, of_created
from sluice.cdc_engine.table_meta.change.initial_value import known_default
from sluice.cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from sluice.cdc_engine.table_meta.ddl.declared_type import DeclaredType, declared_type, fitted
from sluice.cdc_engine.table_meta.ddl.default_value import EXPRESSION, DefaultNotation
from sluice.cdc_engine.table_meta.ddl.statement import CreateTable, TableName
from sluice.cdc_engine.table_meta.schema import DeclaredColumn, TableSchema, kept_engine, with_row_times

SchemaOf = Callable[[TableName], TableSchema | None]
Fills = tuple[tuple[str, str], ...]

VARCHAR_BYTES_MAX = 65535
DDL_UNSUPPORTED, ROWS_ELSEWHERE, SCHEMA_UNKNOWN, SCHEMA_MISMATCH = (
    TableState.DDL_UNSUPPORTED,
    TableState.ROWS_ELSEWHERE,
    TableState.SCHEMA_UNKNOWN,
    TableState.SCHEMA_MISMATCH,
)


class CannotFollowError(Exception):
    """Raised if the lake cannot follow a statement. The statement's table stops in `state`. `reason` is a sentence for the operator, to
    which the caller adds the position.
    """

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(state, reason)
        self.state, self.reason = state, reason


def created(
    statement: CreateTable,
    database: str,
    database_charset: str | None,
    schema_of: SchemaOf,
    rules: ForeignKeyRules = RULES_OF_SHOWN,
    *,
    session: StatementSession = NO_SESSION,
) -> TableSchema:
    """Returns the schema of a table that a CREATE TABLE creates in `database`. `database_charset` is the default charset of the database,
    or None if unknown. `schema_of` returns the schema of the table that CREATE TABLE … LIKE copies, or None if unknown. `rules` says how
    the server interprets foreign keys, and `session` is the session that ran the statement.

    Raises CannotFollowError if the schema cannot be determined.
    """
    if statement.selects:
        raise CannotFollowError(
            DDL_UNSUPPORTED, "the table was created from a SELECT, whose columns the binlog does not describe"
        )
    if statement.like is not None:
        return _copied(statement, database, statement.like, schema_of)
    charset = statement.charset or database_charset or ""
    columns = tuple(declared_column(definition, charset, session) for definition in statement.columns)
    key = named_as_declared(statement.key, columns)
    columns = tuple(in_key(column, key) for column in columns)
    schema = TableSchema(
        database=database,
        table=statement.name.table,
        charset=charset,
        columns=columns,
        key=key,
        engine=kept_engine(statement.engine),
        comment=statement.comment,
    )
    schema = with_row_times(schema) if statement.versioned else schema
    return dataclasses.replace(schema, foreign_keys=of_created(statement, schema, rules))


def declared_column(
    definition: ColumnDefinition, table_charset: str, session: StatementSession = NO_SESSION
) -> DeclaredColumn:
    """Converts a column definition to a column. If the definition names no charset, the column gets the table's charset."""
    declared, charset = with_charset(definition.type, definition.charset or table_charset)
    definition = stored(definition, charset)
    declared = dataclasses.replace(declared, labels=definition.type.labels)
    return DeclaredColumn(
        name=definition.name,
        type=declared.text,
        charset=charset,
        nullable=definition.nullable and not _null_must_be_said(definition, session),
        generated=definition.generated,
        visible=definition.visible,
        default=known_default(dataclasses.replace(definition, type=declared, charset=charset), session),
        comment=definition.comment,
    )


def _null_must_be_said(definition: ColumnDefinition, session: StatementSession) -> bool:
    """Returns whether the server makes a column NOT NULL because the definition does not contain NULL. The server does so for a TIMESTAMP
    if explicit_defaults_for_timestamp is off.
    """
    plain = definition.type.base == "timestamp" and not definition.says_null and not definition.generated
    return plain and session.explicit_timestamps is False


def stored(definition: ColumnDefinition, charset: str) -> ColumnDefinition:
    """Returns a column definition whose labels (values of an ENUM or SET) and DEFAULT are converted to the form in which a column with this
    charset stores them. A DEFAULT that cannot be converted becomes EXPRESSION, whose value is unknown. Raises CannotFollowError if a label
    cannot be converted.
    """
    literals, default = definition.literals, definition.default
    try:
        labels = tuple(literals.stored(label, charset) for label in definition.type.labels)
    except LiteralUnknownError as error:
        raise CannotFollowError(SCHEMA_UNKNOWN, f"a label of {definition.name} is unknown: {error}") from error
    plain = default is not None and default.notation is DefaultNotation.STRING and not default.said
    if default is not None and default.value is not None and plain and definition.type.has_charset:
        try:
            default = dataclasses.replace(default, value=literals.stored(default.value, charset))
        except LiteralUnknownError:
            default = EXPRESSION
    return dataclasses.replace(
        definition, type=dataclasses.replace(definition.type, labels=labels), default=default, literals=Literals()
    )


def in_key(column: DeclaredColumn, key: tuple[str, ...]) -> DeclaredColumn:
    """Returns the column, changed to NOT NULL if the key contains it. If the default of a changed column was NULL, the default becomes
    the type's zero value.
    """
    if column.name not in key or not column.nullable:
        return column
    bare = ColumnDefinition(column.name, declared_type(column.type), column.charset, nullable=False)
    default = known_default(bare) if column.default == (None,) else column.default
    return dataclasses.replace(column, nullable=False, default=default)


def with_charset(declared: DeclaredType, charset_name: str) -> tuple[DeclaredType, str]:
    """Returns the type that the server creates for a declared type with a charset, and the name of the column's charset. The name is
    `binary` for byte strings, and empty for a type without charset.
    """
    if declared.is_binary_string:
        return fitted(_short_enough(declared, 1), 1), "binary"
    if not declared.has_charset:
        return declared, ""
    charset = charset_of_name(charset_name)
    if charset is None:
        raise CannotFollowError(
            SCHEMA_UNKNOWN,
            f"the character set {charset_name!r} of a column, or of the table or database, is unknown to Sluice",
        )
    declared = fitted(_short_enough(declared, charset.bytes_max), charset.bytes_max)
    return (declared.as_binary() if charset.name == "binary" else declared), charset.name


def _short_enough(declared: DeclaredType, bytes_max: int) -> DeclaredType:
    """Returns TEXT or BLOB instead of a VARCHAR or VARBINARY that is too long for a row, as a server outside strict mode does. Returns any
    other type unchanged.
    """
    longer = {"varchar": "text", "varbinary": "blob"}.get(declared.base)
    if longer is None or declared.length * bytes_max <= VARCHAR_BYTES_MAX:
        return declared
    return dataclasses.replace(declared, base=longer)


def _copied(statement: CreateTable, database: str, like: TableName, schema_of: SchemaOf) -> TableSchema:
    source = schema_of(like)
    if source is None:
        reason = f"the table was created LIKE {like.database or database}.{like.table}, which the schema history does not have"
        raise CannotFollowError(SCHEMA_UNKNOWN, reason)
    return dataclasses.replace(source, database=database, table=statement.name.table, foreign_keys=())


def named_as_declared(key: tuple[str, ...], columns: tuple[DeclaredColumn, ...]) -> tuple[str, ...]:
    """Returns the columns of a key or period in the spelling of the column definitions. The spelling may differ, because column names
    ignore case. Raises CannotFollowError if a column is missing.
    """
    spelling = {column.name.lower(): column.name for column in columns}
    missing = [name for name in key if name.lower() not in spelling]
    if missing:
        raise CannotFollowError(
            SCHEMA_UNKNOWN, f"the table has no column {missing[0]}, which a primary key or a period names"
        )
    return tuple(spelling[name.lower()] for name in key)


def same_name(name: str, other: str) -> bool:
    """Returns whether two column names are equal, ignoring case."""
    return name.lower() == other.lower()
