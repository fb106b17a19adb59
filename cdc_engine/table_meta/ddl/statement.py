"""Defines the values into which `reader` parses DDL statements."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from sluice.cdc_engine.binlog.charsets.statement_text import has_no_character
from sluice.cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from sluice.cdc_engine.table_meta.ddl.default_value import Default
from sluice.cdc_engine.table_meta.ddl.foreign_key import ForeignKeyDefinition
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered

OF_SESSION = "DEFAULT"


@dataclasses.dataclass(frozen=True)
class TableName:
    """A table's name. `database` is empty if the statement does not name the database."""

    database: str
    table: str

    def key(self, default_database: str, *, lower_case: bool) -> tuple[str, str]:
        """Returns (database, table) as the server stores it. `lower_case` tells whether the server's lower_case_table_names is not 0."""
        key = (self.database or default_database, self.table)
        return (lowered(key[0]), lowered(key[1])) if lower_case else key


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A statement that changes no column and no row of any table."""

    kind: str


@dataclasses.dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE.

    - `charset`: the charset in the statement, or None if the database's charset applies. `comment`: the table's comment.
    - `like`: the other table in CREATE TABLE … LIKE.
    - `selects`: whether the statement inserts rows from a SELECT. `select_words`: all names and keywords of such a statement, in lower
      case. `select_calls`: whether the SELECT calls a routine.
    - `foreign_keys`: in the order of the statement, including the foreign keys in column definitions.
    - `engine`: the name as written, or empty for the server's default. `union`: the tables that have the rows of a MERGE table.
    - `versioned`: MariaDB stores earlier versions of rows (WITH SYSTEM VERSIONING).
    - `sequence`: the statement creates a sequence of MariaDB instead of a table (SEQUENCE=1).
    """

    kind: str
    name: TableName
    columns: tuple[ColumnDefinition, ...] = ()
    key: tuple[str, ...] = ()
    charset: str | None = None
    like: TableName | None = None
    selects: bool = False
    select_words: frozenset[str] = frozenset()
    select_calls: bool = False
    if_not_exists: bool = False
    replaces: bool = False
    foreign_keys: tuple[ForeignKeyDefinition, ...] = ()
    engine: str = ""
    union: tuple[TableName, ...] = ()
    versioned: bool = False
    sequence: bool = False
    comment: str = ""


@dataclasses.dataclass(frozen=True)
class AddColumn:
    definition: ColumnDefinition


@dataclasses.dataclass(frozen=True)
class DropColumn:
    name: str
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class ChangeColumn:
    """MODIFY or CHANGE of a column. `name` is the column's name before the statement, and `definition` the whole new definition."""

    name: str
    definition: ColumnDefinition
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class RenameColumn:
    name: str
    new_name: str
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class SetVisible:
    """ALTER COLUMN … SET VISIBLE or SET INVISIBLE."""

    name: str
    visible: bool


@dataclasses.dataclass(frozen=True)
class SetDefault:
    """ALTER COLUMN … SET DEFAULT or DROP DEFAULT. `default` is None for DROP DEFAULT."""

    name: str
    default: Default | None
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class SetCharset:
    """A change of the charset for new columns of the table. None means the database's charset. With `converts` (CONVERT TO), existing
    columns are converted too.
    """

    charset: str | None
    converts: bool = False


@dataclasses.dataclass(frozen=True)
class SetKey:
    """ADD PRIMARY KEY."""

    columns: tuple[str, ...]
    if_not_exists: bool = False


@dataclasses.dataclass(frozen=True)
class DropKey:
    """DROP PRIMARY KEY, in any of its spellings."""


@dataclasses.dataclass(frozen=True)
class AddForeignKey:
    definition: ForeignKeyDefinition


@dataclasses.dataclass(frozen=True)
class DropForeignKey:
    """DROP FOREIGN KEY, or DROP CONSTRAINT. `certain` is False for DROP CONSTRAINT, which may drop another kind of constraint."""

    name: str
    certain: bool
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class SetVersioning:
    """ADD or DROP SYSTEM VERSIONING. This class has no field for the columns ROW START and ROW END, because they are hidden, or other items
    of the same ALTER TABLE add them.
    """

    versioned: bool


@dataclasses.dataclass(frozen=True)
class SetPeriod:
    """ADD PERIOD FOR name (begin, end), which makes the period's columns NOT NULL."""

    columns: tuple[str, ...]
    if_not_exists: bool = False


AlterItem = (
    AddColumn
    | DropColumn
    | ChangeColumn
    | RenameColumn
    | SetVisible
    | SetDefault
    | SetCharset
    | SetKey
    | DropKey
    | AddForeignKey
    | DropForeignKey
    | SetVersioning
    | SetPeriod
)


@dataclasses.dataclass(frozen=True)
class AlterTable:
    """ALTER TABLE.

    - `items`: in the order of the statement.
    - `rows_lost`: actions that remove or insert rows without row events, for example DROP PARTITION. `others`: other tables that exchange
      rows with this table through such an action, each with the action.
    - `renames_to`: the table's new name, or None. `alters`: the statement has another action than RENAME TO. `comment`: the new comment,
      or None if the statement has none.
    - `strict`: the session refused values that a new type cannot store. Outside strict mode, the server replaces NULL by another value if a
      column becomes NOT NULL.
    - `engine`: the new engine as written, or empty if the statement names none. `union`: the tables that have the rows of a MERGE table.
    """

    kind: str
    name: TableName
    items: tuple[AlterItem, ...] = ()
    rows_lost: tuple[str, ...] = ()
    renames_to: TableName | None = None
    alters: bool = True
    strict: bool = False
    others: tuple[tuple[TableName, str], ...] = ()
    engine: str = ""
    union: tuple[TableName, ...] = ()
    comment: str | None = None


@dataclasses.dataclass(frozen=True)
class RenameTables:
    """RENAME TABLE, as pairs of old and new name. The server executes them from left to right. With `if_exists`, it skips a pair whose old
    name does not exist.
    """

    kind: str
    pairs: tuple[tuple[TableName, TableName], ...]
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class DropTables:
    """DROP TABLE. With `if_exists`, the server skips tables that do not exist."""

    kind: str
    names: tuple[TableName, ...]
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class Truncate:
    kind: str
    name: TableName


@dataclasses.dataclass(frozen=True)
class SetDatabase:
    """CREATE or ALTER DATABASE. `name` is None for the default database. `charset` is None if the statement has none, and OF_SESSION for
    the charset of collation_server.
    """

    kind: str
    name: str | None
    charset: str | None
    creates: bool


@dataclasses.dataclass(frozen=True)
class DropDatabase:
    kind: str
    name: str


@dataclasses.dataclass(frozen=True)
class Unread:
    """A statement that could not be parsed. `names` are the tables that the statement affects. If `names` is empty, the statement may
    affect every table whose name is one of `words` (in lower case). If the statement could not be split into words, the statement may
    affect every table whose name occurs in `text`, or whose database the statement may drop or alter.
    """

    kind: str
    reason: str
    names: tuple[TableName, ...] = ()
    words: frozenset[str] = frozenset()
    text: str = ""


@dataclasses.dataclass(frozen=True)
class StatementRowChange:
    """A row change in statement format. `names` are the tables that the statement writes. If `names` is empty, the statement may affect
    every table of the default database, and every table whose name, or whose database's name, is one of `words` (in lower case). `calls`
    tells whether the statement calls a routine, which may write to any table.
    """

    kind: str
    words: frozenset[str]
    names: tuple[TableName, ...] = ()
    calls: bool = False


@dataclasses.dataclass(frozen=True)
class Query:
    """A SELECT in the binlog. Such a statement writes only to a temporary table, or through a routine that the SELECT calls. `words` are
    the names and keywords of the statement, in lower case. `calls` tells whether the SELECT calls a routine.
    """

    kind: str
    words: frozenset[str]
    calls: bool


@dataclasses.dataclass(frozen=True)
class CreateStoredObject:
    """CREATE or ALTER of a trigger or view. `what` is TRIGGER or VIEW. `table` is the trigger's table, or None for a view. `words` are all
    names and keywords of the body, in lower case. `calls` tells whether the body calls a routine. If the statement could not be parsed,
    `name` and `table` are None, and `what` is empty.
    """

    kind: str
    what: str = ""
    name: TableName | None = None
    table: TableName | None = None
    words: frozenset[str] = frozenset()
    calls: bool = False


@dataclasses.dataclass(frozen=True)
class DropStoredObjects:
    """DROP TRIGGER or DROP VIEW."""

    kind: str
    what: str
    names: tuple[TableName, ...]


Statement = (
    CreateTable
    | AlterTable
    | RenameTables
    | DropTables
    | Truncate
    | SetDatabase
    | DropDatabase
    | Unread
    | StatementRowChange
    | Query
    | CreateStoredObject
    | DropStoredObjects
    | Nothing
)


def dropped_database(statement: Statement) -> str | None:
    """Returns the database that the statement drops with its tables, or None. MariaDB's CREATE OR REPLACE DATABASE counts as a drop,
    because it drops the old database first.
    """
    if isinstance(statement, SetDatabase):
        return statement.name if "REPLACE" in statement.kind else None
    return statement.name if isinstance(statement, DropDatabase) else None


def names_in(statement: Statement) -> tuple[TableName, ...]:
    """Returns the tables that the statement names and may change."""
    match statement:
        case CreateTable():
            return (statement.name, *statement.union)
        case AlterTable():
            others = (*(name for name, _ in statement.others), *statement.union)
            return (statement.name, *((statement.renames_to,) if statement.renames_to else ()), *others)
        case Truncate():
            return (statement.name,)
        case RenameTables():
            return tuple(name for pair in statement.pairs for name in pair)
        case DropTables() | Unread():
            return tuple(statement.names)
        case _:
            return ()


def mentioned(tables: Iterable[tuple[str, str]], words: frozenset[str]) -> list[tuple[str, str]]:
    """Returns the tables of `tables` (database, name) whose name is one of the words of a statement. The words are in lower case."""
    return [table for table in tables if lowered(table[1]) in words]


def mentioned_in(tables: Iterable[tuple[str, str]], text: str) -> list[tuple[str, str]]:
    """Returns the tables of `tables` that a statement may affect because their names occur in its text, even in a string or a comment. If
    the text has bytes that are not valid characters, the result has all tables whose names have characters outside ASCII, because the bytes
    may be a part of their names.
    """
    there, garbled = lowered(text), has_no_character(text)
    return [table for table in tables if (garbled and not table[1].isascii()) or is_named(table[1], there)]


def is_named(name: str, text: str) -> bool:
    """Returns whether a name occurs in `text`, with or without quotes. `text` must be in lower case; the name may have capitals."""
    spellings = {lowered(name).replace(quote, 2 * quote) if quote else lowered(name) for quote in ("", "`", '"')}
    pieces = "|".join(re.escape(spelling) for spelling in spellings)
    return re.search(rf"(?<![\w$])(?:{pieces})(?![\w$])", text) is not None
