"""What a DDL statement says, as values: what `ddl` reads and `evolution` acts on."""

from __future__ import annotations

import dataclasses

from cdc_engine.table_meta.column_definition import ColumnDefinition


@dataclasses.dataclass(frozen=True)
class TableName:
    """`database` is empty where the statement does not say it."""

    database: str
    table: str


@dataclasses.dataclass(frozen=True)
class Nothing:
    """Touches no column and no row of any table."""

    kind: str


@dataclasses.dataclass(frozen=True)
class CreateTable:
    """`charset`: as said for the table, None where the database's applies. `like`: CREATE TABLE … LIKE. `selects`: it brings rows."""

    kind: str
    name: TableName
    columns: tuple[ColumnDefinition, ...] = ()
    key: tuple[str, ...] = ()
    charset: str | None = None
    like: TableName | None = None
    selects: bool = False
    if_not_exists: bool = False
    replaces: bool = False


@dataclasses.dataclass(frozen=True)
class AlterTable:
    """`additions` in their order. `charset`: a new default for columns, also for those added here. `unsupported`: actions not handled."""

    kind: str
    name: TableName
    additions: tuple[ColumnDefinition, ...] = ()
    charset: str | None = None
    unsupported: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Truncate:
    kind: str
    name: TableName


@dataclasses.dataclass(frozen=True)
class Unsupported:
    """A form that is known and not handled. `if_exists`: nothing happens to tables that are not there."""

    kind: str
    names: tuple[TableName, ...]
    if_exists: bool = False


@dataclasses.dataclass(frozen=True)
class SetDatabase:
    """CREATE and ALTER DATABASE. `name` None: the default database; `charset` None: not said."""

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
    that is named by one of `words` (lower case)."""

    kind: str
    reason: str
    names: tuple[TableName, ...] = ()
    words: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class RowChange:
    """A change of rows in statement form; it may concern every table that is named by one of `words` (lower case)."""

    kind: str
    words: frozenset[str]


Statement = (
    CreateTable | AlterTable | Truncate | Unsupported | SetDatabase | DropDatabase | Unread | RowChange | Nothing
)
