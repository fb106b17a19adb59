"""Names and lists of key parts inside DDL; used by the readers of its forms."""

from __future__ import annotations

from cdc_engine.table_meta.ddl.declared_type import is_type
from cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind
from cdc_engine.table_meta.ddl.statement import TableName


def read_table_name(cursor: TokenCursor) -> TableName:
    """`t`, `d.t`, or `.t` (the default database)."""
    if cursor.accept_sign("."):
        return TableName("", cursor.expect_name())
    first = cursor.expect_name()
    return TableName(first, cursor.expect_name()) if cursor.accept_sign(".") else TableName("", first)


def read_table_names(cursor: TokenCursor) -> tuple[TableName, ...]:
    """`(t, d.u)`, also with nothing in it."""
    names: list[TableName] = []
    cursor.expect_sign("(")
    while not cursor.accept_sign(")"):
        names.append(read_table_name(cursor))
        cursor.accept_sign(",")
    return tuple(names)


def read_key_columns(cursor: TokenCursor) -> tuple[str, ...]:
    """PRIMARY KEY [name] [USING x] (a, b(10) DESC) with the index options after it, up to the comma or parenthesis."""
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
    """A key part `name WITHOUT OVERLAPS` (MariaDB): it stands for the period's end and its begin, in this order."""

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
    """MariaDB's VECTOR (v) or VECTOR name (v); a column of that name has a type after it."""
    if cursor.peek().word != "VECTOR":
        return False
    opening = Token(TokenKind.SIGN, "(")
    return cursor.peek(1) == opening or (cursor.peek(2) == opening and not is_type(cursor.peek(1).word))


def skip_to_comma(cursor: TokenCursor) -> None:
    """To the next comma or closing parenthesis outside of any parentheses opened on the way, or to the end."""
    while not cursor.at_end:
        token = cursor.peek()
        if token.kind is TokenKind.SIGN and token.text in {",", ")"}:
            return
        if token.kind is TokenKind.SIGN and token.text == "(":
            cursor.skip_parentheses()
        else:
            cursor.next()
