"""Parses a foreign key in a DDL statement: FOREIGN KEY (…) REFERENCES … of a table, or REFERENCES … of a column.

When a row of the parent table is deleted or changed, the foreign key decides which rows of the child table the server deletes or changes
without row events.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.table_meta.ddl.lexer import TokenCursor, TokenKind

CASCADE, SET_NULL = "CASCADE", "SET NULL"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignKeyDefinition:
    """The definition of a foreign key.

    - `parent`: (database, table). The database is empty if the statement omits it.
    - `referenced`: the parent's columns, or empty if the statement does not list them.
    - `symbol`: the name after CONSTRAINT. `index`: the name after FOREIGN KEY, which MariaDB uses if there is no symbol.
    - `on_delete`, `on_update`: CASCADE, SET NULL, or empty for any other action, because no other action changes rows.
    - `inline`: the foreign key is part of a column definition. Some servers ignore such a foreign key.
    - `matches`: the statement has a MATCH before the actions. Some servers ignore actions after a MATCH.
    """

    columns: tuple[str, ...]
    parent: tuple[str, str]
    referenced: tuple[str, ...] = ()
    on_delete: str = ""
    on_update: str = ""
    symbol: str = ""
    index: str = ""
    inline: bool = False
    matches: bool = False
    if_not_exists: bool = False


def read_foreign_key(cursor: TokenCursor, symbol: str) -> ForeignKeyDefinition:
    """Parses a definition that begins with FOREIGN KEY, up to the next comma or parenthesis. Raises UnreadableError at
    an unknown element.
    """
    cursor.expect("FOREIGN")
    cursor.expect("KEY")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    index = "" if cursor.peek().text == "(" and cursor.peek().kind is TokenKind.SIGN else cursor.expect_name()
    columns = _names(cursor)
    cursor.expect("REFERENCES")
    found = read_references(cursor, columns)
    return dataclasses.replace(found, symbol=symbol, index=index, inline=False, if_not_exists=if_not_exists)


def read_references(cursor: TokenCursor, columns: tuple[str, ...]) -> ForeignKeyDefinition:
    """Parses what follows REFERENCES, for example `t (c) MATCH FULL ON DELETE SET NULL ON UPDATE NO ACTION`."""
    cursor.accept_sign(".")
    database, table = "", cursor.expect_name()
    if cursor.accept_sign("."):
        database, table = table, cursor.expect_name()
    referenced = _names(cursor) if cursor.peek().text == "(" else ()
    actions = {"DELETE": "", "UPDATE": ""}
    matches = cursor.accept("MATCH")
    if matches:
        cursor.next()
    while cursor.accept("ON"):
        event = cursor.next().word
        actions[event] = _action(cursor)
    return ForeignKeyDefinition(
        columns=columns,
        parent=(database, table),
        referenced=referenced,
        on_delete=actions["DELETE"],
        on_update=actions["UPDATE"],
        inline=True,
        matches=matches,
    )


def _action(cursor: TokenCursor) -> str:
    """Parses the action after ON DELETE or ON UPDATE. SET DEFAULT counts as RESTRICT, because InnoDB refuses SET DEFAULT or treats it as
    RESTRICT on all servers.
    """
    if cursor.accept("CASCADE"):
        return CASCADE
    if cursor.accept("SET", "NULL"):
        return SET_NULL
    if not cursor.accept("SET", "DEFAULT") and not cursor.accept("NO", "ACTION"):
        cursor.expect("RESTRICT")
    return ""


def _names(cursor: TokenCursor) -> tuple[str, ...]:
    """Parses (a, b). Ignores the length and direction of a column."""
    cursor.expect_sign("(")
    names = [_part(cursor)]
    while cursor.accept_sign(","):
        names.append(_part(cursor))
    cursor.expect_sign(")")
    return tuple(names)


def _part(cursor: TokenCursor) -> str:
    name = cursor.expect_name()
    if cursor.peek().text == "(":
        cursor.skip_parentheses()
    if cursor.peek().word in {"ASC", "DESC"}:
        cursor.next()
    return name
