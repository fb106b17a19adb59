"""Parses CREATE, ALTER and DROP of triggers and views, because a statement can change other tables through them.

Other stored programs need not be parsed: a statement that calls a routine stops every table in any case, and the statements of scheduled
events are in the binlog.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.names import read_table_name
from sluice.cdc_engine.table_meta.ddl.routine_call import CallRules, body_calls_routine
from sluice.cdc_engine.table_meta.ddl.statement import CreateStoredObject, DropStoredObjects, TableName

TRIGGER, VIEW = "TRIGGER", "VIEW"
_OTHERS = {"FUNCTION", "PROCEDURE", "EVENT", "PACKAGE"}
# Keywords that can stand between CREATE and the kind of object.
_BEFORE = {"ALGORITHM", "DEFINER", "SQL", "JSON", "RELATIONAL", "DUALITY", "MATERIALIZED"}


def read_stored_object(
    cursor: TokenCursor, kind: str, rules: CallRules
) -> CreateStoredObject | DropStoredObjects | None:
    """Parses a statement about a trigger or view. Returns None if the statement is about another kind of object. `kind` has the keywords
    before the cursor. Raises UnreadableError at an unknown element.
    """
    what = _what(cursor, kind.rsplit(maxsplit=1)[-1])
    if what not in (TRIGGER, VIEW):
        return None
    cursor.accept("IF", "NOT", "EXISTS")
    cursor.accept("IF", "EXISTS")
    name = read_table_name(cursor)
    if kind.startswith("DROP"):
        names = [name]
        while cursor.accept_sign(","):
            names.append(read_table_name(cursor))
        return DropStoredObjects(kind, what, tuple(names))
    table: TableName | None = None
    if what == TRIGGER:
        _skip_past(cursor, "ON")
        table = read_table_name(cursor)
    else:
        _skip_past(cursor, "AS")  # A list of the view's columns may come before AS.
    index = cursor.index
    cursor.skip_all()
    body = cursor.since(index)
    return CreateStoredObject(kind, what, name, table, words_of(body), body_calls_routine(body, rules))


def words_of(found: Iterable[Token]) -> frozenset[str]:
    """Returns all names and keywords of the tokens, in lower case."""
    return frozenset(lowered(token.text) for token in found if token.kind in {TokenKind.WORD, TokenKind.NAME})


def _what(cursor: TokenCursor, word: str) -> str:
    """Returns the kind of object (such as VIEW or TRIGGER) that the statement creates, alters or drops. `word` is the last word before the
    cursor.
    """
    while word in _BEFORE:
        if word == "DEFINER":
            cursor.accept_sign("=")
            cursor.next()
            if cursor.accept_sign("@"):
                cursor.next()
        elif word == "SQL":  # SQL SECURITY DEFINER or INVOKER
            cursor.next()
            cursor.next()
        while cursor.peek().word not in {TRIGGER, VIEW, *_OTHERS, *_BEFORE}:
            if cursor.at_end:
                raise cursor.unreadable()
            cursor.next()
        word = cursor.next().word
    return word


def _skip_past(cursor: TokenCursor, word: str) -> None:
    while not cursor.accept(word):
        if cursor.at_end:
            raise cursor.unreadable()
        cursor.next()
