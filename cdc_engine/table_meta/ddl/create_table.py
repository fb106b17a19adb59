"""Parses the rest of a CREATE TABLE after the table's name: columns, primary key, foreign keys, LIKE, SELECT, and the table options that
affect columns or rows.
"""

from __future__ import annotations

import dataclasses
import re

from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END
from sluice.cdc_engine.table_meta.ddl.column_definition import (
    ColumnDefinition,
    accept_default,
    read_charset,
    read_collation,
    read_column,
    read_comment,
)
from sluice.cdc_engine.table_meta.ddl.foreign_key import ForeignKeyDefinition, read_foreign_key
from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind, UnreadableError
from sluice.cdc_engine.table_meta.ddl.names import (
    PeriodName,
    is_vector_index,
    read_key_columns,
    read_table_name,
    read_table_names,
    skip_to_comma,
)
from sluice.cdc_engine.table_meta.ddl.statement import CreateTable, TableName

_INDEX = re.compile(r"(?:INDEX|KEY|UNIQUE|FULLTEXT|SPATIAL|VECTOR INDEX|VECTOR KEY|CHECK) ")
_PRIMARY = re.compile(r"PRIMARY KEY ")
_PERIOD = re.compile(r"PERIOD FOR ")
_OPEN = Token(TokenKind.SIGN, "(")
_QUERIES = {"SELECT", "WITH", "VALUES", "TABLE"}
_SELECTS = {*_QUERIES, "AS", "IGNORE", "REPLACE"}


def read_create_table(cursor: TokenCursor, name: TableName, flavour: str) -> CreateTable:
    """Parses the rest of a CREATE TABLE. Raises UnreadableError at an unknown element."""
    statement = CreateTable("", name)
    if cursor.accept("LIKE"):
        return dataclasses.replace(statement, like=read_table_name(cursor))
    if _is_query(cursor):
        return dataclasses.replace(statement, selects=True)
    if cursor.accept_sign("("):
        if cursor.accept("LIKE"):
            return dataclasses.replace(statement, like=read_table_name(cursor))
        columns, key, foreign_keys = _read_elements(cursor, flavour)
        versioned = any(column.versioned for column in columns)
        statement = dataclasses.replace(
            statement, columns=columns, key=key, foreign_keys=foreign_keys, versioned=versioned
        )
    return _read_options(cursor, statement)


def _read_elements(
    cursor: TokenCursor, flavour: str
) -> tuple[tuple[ColumnDefinition, ...], tuple[str, ...], tuple[ForeignKeyDefinition, ...]]:
    columns: list[ColumnDefinition] = []
    foreign_keys: list[ForeignKeyDefinition] = []
    key: tuple[str, ...] = ()
    periods: dict[str, tuple[str, ...]] = {}
    while True:
        symbol = ""
        if cursor.accept("CONSTRAINT") and cursor.peek().word not in {"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"}:
            symbol = cursor.expect_name()
        words = cursor.words(2)
        if _PRIMARY.match(words):
            key = read_key_columns(cursor)
        elif _PERIOD.match(words):
            periods |= _read_period(cursor)
        elif words == "FOREIGN KEY ":
            foreign_keys.append(read_foreign_key(cursor, symbol))
        elif _INDEX.match(words) or is_vector_index(cursor):
            skip_to_comma(cursor)
        else:
            columns.append(read_column(cursor, flavour))
            foreign_keys += filter(None, (columns[-1].references,))
        if cursor.accept_sign(")"):
            in_period = {name.lower() for names in periods.values() for name in names}
            for column in columns:
                column.nullable = column.nullable and column.name.lower() not in in_period
            ends = {column.name.lower() for column in columns if column.generated == ROW_END}
            key = key or tuple(column.name for column in columns if column.primary)
            key = _without_periods(key, periods)
            # The server adds the row end column to every key of a table with system versioning, and SHOW CREATE TABLE prints this column
            # in the key. The declared key does not contain the column.
            key = tuple(name for name in key if name.lower() not in ends)
            return tuple(columns), key, tuple(foreign_keys)
        cursor.expect_sign(",")


def _read_period(cursor: TokenCursor) -> dict[str, tuple[str, ...]]:
    """Parses MariaDB's PERIOD FOR name (begin, end), which makes both columns NOT NULL."""
    cursor.expect("PERIOD")
    cursor.expect("FOR")
    name = cursor.expect_name().lower()
    return {name: read_key_columns(cursor)}


def _without_periods(key: tuple[str, ...], periods: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the key with each `period WITHOUT OVERLAPS` replaced by the period's end column and begin column. Raises UnreadableError if
    the statement does not define the period.
    """
    found: list[str] = []
    for name in key:
        if isinstance(name, PeriodName) and name.lower() not in periods:
            raise UnreadableError(f"the statement does not define the period {name}")
        found += reversed(periods[name.lower()]) if isinstance(name, PeriodName) else (name,)
    return tuple(found)


def _read_options(cursor: TokenCursor, statement: CreateTable) -> CreateTable:
    """Parses table options. Uses the options that affect columns or insert rows, and skips all other options, including unknown ones."""
    charset: str | None = None
    while not cursor.at_end:
        if cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET"):
            charset = None if accept_default(cursor) else read_charset(cursor)
        elif cursor.accept("COLLATE"):
            charset = charset if accept_default(cursor) else read_collation(cursor) or charset
        elif cursor.accept("ENGINE") or cursor.accept("TYPE"):
            cursor.accept_sign("=")
            statement = dataclasses.replace(statement, engine=cursor.expect_name())
        elif cursor.accept("COMMENT"):
            statement = dataclasses.replace(statement, comment=read_comment(cursor))
        elif cursor.accept("UNION"):
            cursor.accept_sign("=")
            statement = dataclasses.replace(statement, union=read_table_names(cursor))
        elif cursor.accept("SEQUENCE"):
            cursor.accept_sign("=")
            statement = dataclasses.replace(statement, sequence=cursor.next().text not in {"0", "NO"})
        elif cursor.accept("WITH", "SYSTEM", "VERSIONING"):
            statement = dataclasses.replace(statement, versioned=True)
        elif cursor.accept("PARTITION", "BY"):
            return dataclasses.replace(statement, charset=charset, selects=_selects_after(cursor))
        elif cursor.peek().word in _SELECTS or _is_query(cursor):
            return dataclasses.replace(statement, charset=charset, selects=True)
        elif cursor.peek() == _OPEN:
            cursor.skip_parentheses()
        else:
            _skip_option(cursor)
    return dataclasses.replace(statement, charset=charset)


def _skip_option(cursor: TokenCursor) -> None:
    """Skips the keyword of an option, and the value after an equals sign. A value that is not skipped could be taken for a keyword."""
    cursor.next()
    if cursor.accept_sign("=") and cursor.peek() != _OPEN:
        cursor.next()


def _is_query(cursor: TokenCursor) -> bool:
    """Returns whether a query in parentheses is next. A query begins with a reserved word, so a list of columns cannot be taken for a
    query.
    """
    ahead = 0
    while cursor.peek(ahead) == _OPEN:
        ahead += 1
    return ahead > 0 and cursor.peek(ahead).word in _QUERIES


def _selects_after(cursor: TokenCursor) -> bool:
    """Returns whether a query follows the definition of partitions. In the definition of partitions, a word with which a query begins
    occurs only in parentheses.
    """
    while not cursor.at_end:
        if cursor.peek().word in _SELECTS or _is_query(cursor):
            return True
        if cursor.peek() == _OPEN:
            cursor.skip_parentheses()
        else:
            cursor.next()
    return False
