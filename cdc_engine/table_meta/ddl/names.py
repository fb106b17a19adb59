"""Parses names of tables, and the columns of a key, in DDL."""

from __future__ import annotations

from sluice.cdc_engine.table_meta.ddl.declared_type import is_type
from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind
from sluice.cdc_engine.table_meta.ddl.statement import TableName


def read_table_name(cursor: TokenCursor) -> TableName:
    """Parses `t`, `d.t` or `.t`. For `.t`, as for `t`, the database is the default database."""
    if cursor.accept_sign("."):
        return TableName("", cursor.expect_name())
    first = cursor.expect_name()
    return TableName(first, cursor.expect_name()) if cursor.accept_sign(".") else TableName("", first)


def read_table_names(cursor: TokenCursor) -> tuple[TableName, ...]:
    """Parses `(t, d.u)`. The parentheses may be empty."""
    names: list[TableName] = []
    cursor.expect_sign("(")
    while not cursor.accept_sign(")"):
        names.append(read_table_name(cursor))
        cursor.accept_sign(",")
    return tuple(names)


def read_key_columns(cursor: TokenCursor) -> tuple[str, ...]:
    """Parses PRIMARY KEY [name] [USING x] (a, b(10) DESC) and the index options after it, up to a comma or parenthesis. Returns the
    columns.
    """
    while cursor.peek().text != "(" or cursor.peek().kind is not TokenKind.SIGN:
        if cursor.at_end:
            raise cursor.unreadable()
        cursor.next()
    cursor.expect_sign("(")
    columns = [_key_part(cursor)]
    while cursor.accept_sign(","):
        columns.append(_key_part(cursor))
    cursor.expect_sign(")")
    skip_to_comma(cursor)
    return tuple(columns)


class PeriodName(str):
    """The name of a period in a key part `name WITHOUT OVERLAPS` (MariaDB). The key then has the period's end column and begin column, in
    this order.
    """

    __slots__ = ()


def _key_part(cursor: TokenCursor) -> str:
    column = cursor.expect_name()
    if cursor.accept("WITHOUT", "OVERLAPS"):
        return PeriodName(column)
    if cursor.accept_sign("("):
        cursor.expect_number()
        cursor.expect_sign(")")
    if cursor.peek().word in {"ASC", "DESC"}:
        cursor.next()
    return column


def is_vector_index(cursor: TokenCursor) -> bool:
    """Returns whether MariaDB's index VECTOR (v) or VECTOR name (v) is next. VECTOR may also be the name of a column; then a
    type follows.
    """
    if cursor.peek().word != "VECTOR":
        return False
    opening = Token(TokenKind.SIGN, "(")
    return cursor.peek(1) == opening or (cursor.peek(2) == opening and not is_type(cursor.peek(1).word))


def skip_to_comma(cursor: TokenCursor) -> None:
    """Moves the cursor to the next comma or closing parenthesis, or to the end. Parentheses on the way are skipped with their contents."""
    while not cursor.at_end:
        token = cursor.peek()
        if token.kind is TokenKind.SIGN and token.text in {",", ")"}:
            return
        if token.kind is TokenKind.SIGN and token.text == "(":
            cursor.skip_parentheses()
        else:
            cursor.next()
