"""Reads the triggers and views of the server. The schema history needs them to find the tables that a row change in statement format may
affect.
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import Cursor

from sluice.cdc_engine.table_meta.change.stored_objects import StoredObject, StoredObjects
from sluice.cdc_engine.table_meta.ddl.lexer import Notation, UnreadableError, tokens
from sluice.cdc_engine.table_meta.ddl.routine_call import CallRules, body_calls_routine
from sluice.cdc_engine.table_meta.ddl.stored_object import TRIGGER, VIEW, words_of

# The definers of the views and triggers in the databases sys and mysql.
_OF_SERVER = "('mysql.sys@localhost', 'mariadb.sys@localhost', 'mysql.infoschema@localhost')"
_TRIGGERS = (
    "SELECT trigger_schema, trigger_name, event_object_schema, event_object_table, action_statement, sql_mode "
    f"FROM information_schema.triggers WHERE definer NOT IN {_OF_SERVER}"
)
_VIEWS = (
    "SELECT table_schema, table_name, table_schema, table_name, view_definition, '' "
    f"FROM information_schema.views WHERE definer NOT IN {_OF_SERVER}"
)


def read_stored_objects(connection: Connection[Any], flavour: str) -> StoredObjects:
    """Returns the current triggers and views. The account must be allowed to see all of them. Raises pymysql.MySQLError
    if a query fails.
    """
    found: list[StoredObject] = []
    for what, query in ((TRIGGER, _TRIGGERS), (VIEW, _VIEWS)):
        with connection.cursor(Cursor) as cursor:
            cursor.execute(query)
            found += [_object(what, row, flavour) for row in cursor.fetchall()]
    return StoredObjects(objects=tuple(sorted(found, key=lambda each: each.key)))


def _object(what: str, row: tuple[Any, ...], flavour: str) -> StoredObject:
    database, name, of_database, table, body, mode = row
    text, modes = str(body or ""), str(mode).upper().split(",")
    notation = Notation(
        ansi_quotes="ANSI_QUOTES" in modes,
        backslash_escapes="NO_BACKSLASH_ESCAPES" not in modes,
    )
    rules = CallRules(flavour=flavour, ignore_space="IGNORE_SPACE" in modes, oracle="ORACLE" in modes)
    try:
        words = tokens(text, notation)
    except UnreadableError:
        words = []
    return StoredObject(
        what=what,
        database=database,
        name=name,
        table=(of_database, table),
        words=words_of(words),
        # A trigger or view whose body the server hides, or whose body cannot be parsed, counts as calling a routine.
        calls=not words or body_calls_routine(words, rules),
    )
