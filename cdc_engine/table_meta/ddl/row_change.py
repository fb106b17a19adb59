"""Finds the tables that a row change in statement format writes: INSERT, REPLACE, UPDATE, DELETE, LOAD DATA. Called by `reader`.

If a statement has several tables, every table that it reads is assumed to be written. The result is empty if the tables are unknown: a
function or a procedure may write any table.
"""

from __future__ import annotations

from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind
from sluice.cdc_engine.table_meta.ddl.names import read_table_name
from sluice.cdc_engine.table_meta.ddl.statement import TableName

_MODIFIERS = {
    *("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE", "CONCURRENT", "LOCAL"),
    *("DATA", "XML", "INTO", "FROM", "HISTORY"),
}
_JOINS = {"JOIN", "STRAIGHT_JOIN", "FROM"}
_ENDS = {"UPDATE": {"SET"}, "DELETE": {"WHERE", "ORDER", "LIMIT", "RETURNING"}}
_OPEN, _CLOSE, _COMMA, _POINT, _STAR = (Token(TokenKind.SIGN, sign) for sign in "(),.*")


def changed_tables(cursor: TokenCursor, kind: str) -> tuple[TableName, ...]:
    """Returns the tables. `kind`: the statement's first word; the cursor is after it. Raises UnreadableError if a name is expected and
    missing.
    """
    if kind == "LOAD":
        return _loaded(cursor)
    if kind in {"INSERT", "REPLACE"}:
        _skip_modifiers(cursor)
        return (read_table_name(cursor),)
    return _joined(cursor, _ENDS[kind]) if kind in _ENDS else ()


def _skip_modifiers(cursor: TokenCursor) -> None:
    while cursor.peek().word in _MODIFIERS:
        cursor.next()


def _loaded(cursor: TokenCursor) -> tuple[TableName, ...]:
    while not cursor.at_end:
        if cursor.accept("INTO", "TABLE"):
            return (read_table_name(cursor),)
        cursor.next()
    raise cursor.unreadable()


def _joined(cursor: TokenCursor, ends: set[str]) -> tuple[TableName, ...]:
    """Parses UPDATE t SET, UPDATE t JOIN (u, v) SET, DELETE FROM t, DELETE t FROM t JOIN u, DELETE FROM t USING t JOIN u."""
    found: list[TableName] = []
    places = {0}  # nesting depths at which a comma separates tables
    _skip_modifiers(cursor)
    named, depth = True, 0  # whether a table's name may be next
    while not cursor.at_end and not (depth == 0 and cursor.peek().word in ends):
        token = cursor.peek()
        if named and token.kind in {TokenKind.WORD, TokenKind.NAME} and token.word not in {"SELECT", "LATERAL"}:
            found.append(_table_name(cursor))
            named = False
            continue
        cursor.next()
        depth += {_OPEN: 1, _CLOSE: -1}.get(token, 0)
        using = token.word == "USING" and cursor.peek() != _OPEN
        if depth == 0 and (using or token.word == "FROM"):
            found.clear()  # those names only refer to tables that follow
        if token == _OPEN or token.word in {"SELECT", "FROM"}:
            places = places | {depth} if token.word == "FROM" or (token == _OPEN and named) else places - {depth}
        named = (token == _COMMA and depth in places) or token.word in _JOINS or using or (named and token == _OPEN)
    return tuple(dict.fromkeys(found))


def _table_name(cursor: TokenCursor) -> TableName:
    """Parses `t`, `d.t`, and before FROM also `t.*`."""
    if cursor.peek(1) == _POINT and cursor.peek(2) == _STAR:
        name = TableName("", cursor.expect_name())
    elif cursor.peek(3) == _POINT and cursor.peek(4) == _STAR:
        name = read_table_name(cursor)
    else:
        return read_table_name(cursor)
    cursor.next()
    cursor.next()
    return name
