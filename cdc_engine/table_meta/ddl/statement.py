"""What a DDL statement says, as values: what `ddl` reads and `evolution` acts on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from cdc_engine.binlog.charsets.statement_text import has_no_character
from cdc_engine.table_meta.ddl.column_definition import ColumnDefinition
from cdc_engine.table_meta.ddl.default_value import Default
from cdc_engine.table_meta.ddl.foreign_key import ForeignKeyDefinition
from cdc_engine.table_meta.ddl.lower_case import lowered

OF_SESSION = "DEFAULT"


@dataclasses.dataclass(frozen=True)
class TableName:
    """`database` is empty where the statement does not say it."""

    database: str
    table: str

    def key(self, default_database: str, *, lower_case: bool) -> tuple[str, str]:
        """`known.TableKey`. `lower_case`: the server's lower_case_table_names is not 0."""
        key = (self.database or default_database, self.table)
        return (lowered(key[0]), lowered(key[1])) if lower_case else key


@dataclasses.dataclass(frozen=True)
class Nothing:
    """Touches no column and no row of any table."""

    kind: str


@dataclasses.dataclass(frozen=True)
class CreateTable:
    """`charset`: as said for the table, None where the database's applies. `like`: CREATE TABLE … LIKE. `selects`: it brings rows.

    `foreign_keys`: in the statement's order, with those of columns. `engine`: as said, empty for the server's default.
    `union`: the tables that the rows of a MERGE table are in. `versioned`: MariaDB keeps what its rows were (WITH SYSTEM VERSIONING).
    `sequence`: it is no table, but a sequence of MariaDB (SEQUENCE=1).
    """

    kind: str
    name: TableName
    columns: tuple[ColumnDefinition, ...] = ()
    key: tuple[str, ...] = ()
    charset: str | None = None
    like: TableName | None = None
    selects: bool = False
    if_not_exists: bool = False
    replaces: bool = False
    foreign_keys: tuple[ForeignKeyDefinition, ...] = ()
    engine: str = ""
    union: tuple[TableName, ...] = ()
    versioned: bool = False
    sequence: bool = False


@dataclasses.dataclass(frozen=True)
class AddColumn:
    definition: ColumnDefinition


@dataclasses.dataclass(frozen=True)
class DropColumn:
    name: str
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class ChangeColumn:
    """MODIFY and CHANGE: all of the column's definition anew. `name`: its name so far."""

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
    """ALTER COLUMN … SET VISIBLE and SET INVISIBLE."""

    name: str
    visible: bool


@dataclasses.dataclass(frozen=True)
class SetDefault:
    """ALTER COLUMN … SET DEFAULT and DROP DEFAULT: then None."""

    name: str
    default: Default | None
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class SetCharset:
    """`charset`: default of the table's columns to come, None for the database's. `converts`: CONVERT TO, for the columns there too."""

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
    """`certain`: it is one (DROP FOREIGN KEY); DROP CONSTRAINT may mean another kind."""

    name: str
    certain: bool
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class SetVersioning:
    """ADD and DROP SYSTEM VERSIONING; the times of rows are in columns that nobody named, or in those that are added."""

    versioned: bool


@dataclasses.dataclass(frozen=True)
class SetPeriod:
    """ADD PERIOD FOR a name: its columns are NOT NULL by it."""

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
    """`items` in their order. `rows_lost`: actions that take rows away or put rows in without row events (DROP PARTITION, …).

    `others`: second tables that such an action takes rows from, or puts rows into, with what it is. `engine`, `union`: as of CreateTable.

    `renames_to`: the table's new name, where it gets one. `strict`: the session refused values that a new type cannot hold; outside of
    strict mode NULL becomes a value where a column becomes NOT NULL.
    """

    kind: str
    name: TableName
    items: tuple[AlterItem, ...] = ()
    rows_lost: tuple[str, ...] = ()
    renames_to: TableName | None = None
    strict: bool = False
    others: tuple[tuple[TableName, str], ...] = ()
    engine: str = ""
    union: tuple[TableName, ...] = ()


@dataclasses.dataclass(frozen=True)
class RenameTables:
    """Pairs of old and new name, executed from left to right. `if_exists`: a pair whose old name is not there is passed over."""

    kind: str
    pairs: tuple[tuple[TableName, TableName], ...]
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class DropTables:
    """`if_exists`: nothing happens to tables that are not there."""

    kind: str
    names: tuple[TableName, ...]
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class Truncate:
    kind: str
    name: TableName


@dataclasses.dataclass(frozen=True)
class SetDatabase:
    """CREATE and ALTER DATABASE. `name` None: the default database; `charset` None: not said, OF_SESSION: that of collation_server."""

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
    """A statement that could not be read. `names`: the tables it is about where that much was clear; else it may concern every table
    that is named by one of `words` (lower case), or anywhere in `text` where it could not even be cut into words."""

    kind: str
    reason: str
    names: tuple[TableName, ...] = ()
    words: frozenset[str] = frozenset()
    text: str = ""


@dataclasses.dataclass(frozen=True)
class RowChange:
    """A change of rows in statement form. `names`: the tables that it writes to, none where that cannot be told: then it may concern
    every table of the databases, and every table, that is named by one of `words` (lower case)."""

    kind: str
    words: frozenset[str]
    names: tuple[TableName, ...] = ()


Statement = (
    CreateTable
    | AlterTable
    | RenameTables
    | DropTables
    | Truncate
    | SetDatabase
    | DropDatabase
    | Unread
    | RowChange
    | Nothing
)


def dropped_database(statement: Statement) -> str | None:
    """The database whose tables the statement drops; MariaDB's CREATE OR REPLACE DATABASE begins with that."""
    if isinstance(statement, SetDatabase):
        return statement.name if "REPLACE" in statement.kind else None
    return statement.name if isinstance(statement, DropDatabase) else None


def names_in(statement: Statement) -> tuple[TableName, ...]:
    """Every table that the statement names and may do something to."""
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
    """Those of the tables (database and name) that a statement with these words may be about."""
    return [table for table in tables if lowered(table[1]) in words]


def mentioned_in(tables: Iterable[tuple[str, str]], text: str) -> list[tuple[str, str]]:
    """Those of the tables that a statement with this text may be about: a name in it, also as a part of what is no name.

    Where some bytes of the text are no characters, they may be a name that has such.
    """
    there, garbled = lowered(text), has_no_character(text)
    return [table for table in tables if (garbled and not table[1].isascii()) or is_named(table[1], there)]


def is_named(name: str, text: str) -> bool:
    """Whether a name stands in a text in lower case, in quotes of any kind or in none."""
    spellings = {lowered(name).replace(quote, 2 * quote) if quote else lowered(name) for quote in ("", "`", '"')}
    pieces = "|".join(re.escape(spelling) for spelling in spellings)
    return re.search(rf"(?<![\w$])(?:{pieces})(?![\w$])", text) is not None
