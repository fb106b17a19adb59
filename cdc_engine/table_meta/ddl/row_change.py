"""Finds the tables that a row change in statement format writes: INSERT, REPLACE, UPDATE, DELETE or LOAD DATA.

If an UPDATE or DELETE joins several tables, all of these tables count as written. The result is empty for statements that do not name
the tables that they write, such as CALL, and for an UPDATE or DELETE whose list of tables cannot be parsed.
"""

from __future__ import annotations

from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind
from sluice.cdc_engine.table_meta.ddl.names import read_table_name
from sluice.cdc_engine.table_meta.ddl.statement import TableName

# The modifiers that `_skip_modifiers` skips before the name of a table. Other modifiers (QUICK, HISTORY, DATA) are not reserved, and can be
# names of tables.
_MODIFIERS = {"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE"}
_JOINS = {"JOIN", "STRAIGHT_JOIN"}
_ENDS = {"UPDATE": {"SET"}, "DELETE": {"WHERE", "ORDER", "LIMIT", "RETURNING"}}
_OPEN, _CLOSE, _COMMA, _POINT, _STAR, _ESCAPE = (Token(TokenKind.SIGN, sign) for sign in "(),.*{")


def changed_tables(cursor: TokenCursor, kind: str) -> tuple[TableName, ...]:
    """Returns the tables that a statement writes. `kind` is the first word of the statement, and the cursor is after it. Raises
    UnreadableError if a name is missing.
    """
    match kind:
        case "LOAD":
            return _loaded(cursor)
        case "INSERT" | "REPLACE":
            _skip_modifiers(cursor)
            cursor.accept("INTO")
            return (read_table_name(cursor),)
        case "UPDATE":
            _skip_modifiers(cursor)
            return _joined(cursor, _ENDS[kind])
        case "DELETE":
            _skip_to_from(cursor)
            return _joined(cursor, _ENDS[kind])
        case _:
            return ()


def _skip_modifiers(cursor: TokenCursor) -> None:
    while cursor.peek().word in _MODIFIERS:
        cursor.next()


def _skip_to_from(cursor: TokenCursor) -> None:
    """Skips everything up to FROM. A statement DELETE t FROM … has its tables before FROM, and again after FROM."""
    while not cursor.accept("FROM"):
        if cursor.at_end:
            raise cursor.unreadable()
        if cursor.next() == _POINT:
            cursor.next()  # After a point every word is a name.


def _loaded(cursor: TokenCursor) -> tuple[TableName, ...]:
    while not cursor.at_end:
        if cursor.accept("INTO", "TABLE"):
            return (read_table_name(cursor),)
        cursor.next()
    raise cursor.unreadable()


def _joined(cursor: TokenCursor, ends: set[str]) -> tuple[TableName, ...]:
    """Parses a list of tables up to SET or WHERE: `t`, `t JOIN (u, v)`, and after DELETE FROM also `t USING t JOIN u`."""
    found: list[TableName] = []
    indices = {0}  # The depths of parentheses at which a comma separates tables.
    # Whether the name of a table may follow, the depth of parentheses, and whether a join was read.
    named, depth, joined = True, 0, False
    while not cursor.at_end and not (depth == 0 and _ends(cursor, ends)):
        token = cursor.peek()
        if named and _is_name(cursor):
            found.append(_table_name(cursor))
            named = False
            continue
        cursor.next()
        if token == _ESCAPE:  # The ODBC escape { OJ t LEFT JOIN u ON … } is not parsed.
            return ()
        if token == _POINT:
            cursor.next()  # After a point, every word is the name of a column.
        depth += {_OPEN: 1, _CLOSE: -1}.get(token, 0)
        using = token.word == "USING" and depth == 0 and not joined
        if using:
            found.clear()  # The names before USING occur again after it.
        of_subquery = token.word == "FROM" and depth > 0
        if token == _OPEN or token.word == "SELECT" or of_subquery:
            indices = indices | {depth} if of_subquery or (token == _OPEN and named) else indices - {depth}
        joined = joined or token.word in _JOINS or using
        is_join = token.word in _JOINS or using or of_subquery
        named = (token == _COMMA and depth in indices) or is_join or (named and token == _OPEN)
    return tuple(dict.fromkeys(found))


def _ends(cursor: TokenCursor, ends: set[str]) -> bool:
    """Returns whether the list of tables ends at the cursor: at one of the words `ends`, or at MariaDB's FOR PORTION OF."""
    return cursor.peek().word in ends or cursor.words(3) == "FOR PORTION OF "


def _is_name(cursor: TokenCursor) -> bool:
    """Returns whether the name of a table is next, and not a subquery. LATERAL is a name on servers that do not have this keyword."""
    token = cursor.peek()
    if token.word == "LATERAL":
        return cursor.peek(1) != _OPEN
    return token == _POINT or (token.kind in {TokenKind.WORD, TokenKind.NAME} and token.word != "SELECT")


def _table_name(cursor: TokenCursor) -> TableName:
    """Parses `t`, `d.t`, and before USING also `t.*`."""
    if cursor.peek(1) == _POINT and cursor.peek(2) == _STAR:
        name = TableName("", cursor.expect_name())
    elif cursor.peek(3) == _POINT and cursor.peek(4) == _STAR:
        name = read_table_name(cursor)
    else:
        return read_table_name(cursor)
    cursor.next()
    cursor.next()
    return name
