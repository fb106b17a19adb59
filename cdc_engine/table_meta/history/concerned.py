"""Finds the tables that a statement with an unknown effect may affect. The result can have too many tables, but never too few. Pure
functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.statement import (
    DropDatabase,
    SetDatabase,
    Statement,
    StatementRowChange,
    TableName,
    Unread,
    is_named,
    mentioned,
    mentioned_in,
    names_in,
)
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownSchemas, TableKey

_ABOUT_DATABASES = re.compile(r"(?<![\w$])(?:DATABASE|SCHEMA)(?![\w$])", re.IGNORECASE)


def concerned(
    statement: Statement, known: KnownSchemas, full_name: Callable[[TableName], TableKey], default_database: str
) -> list[TableKey]:
    """Returns the tables that the statement names. If the statement names no table, returns all known tables that it may affect. No table
    occurs twice.
    """
    return list(dict.fromkeys(_concerned(statement, known, full_name, default_database)))


def _concerned(
    statement: Statement, schemas: KnownSchemas, full_name: Callable[[TableName], TableKey], default_database: str
) -> Iterable[TableKey]:
    if names := names_in(statement):
        return [full_name(name) for name in names]
    known = schemas.table_names()
    if isinstance(statement, Unread) and statement.text:
        databases = databases_in(statement.text, schemas.database_names(), default_database)
        return [*mentioned_in(known, statement.text), *(name for name in known if name[0] in databases)]
    if isinstance(statement, Unread | StatementRowChange):
        return mentioned(known, statement.words)
    if isinstance(statement, SetDatabase | DropDatabase):
        return [name for name in known if lowered(name[0]) == lowered(statement.name or default_database)]
    return []


def databases_in(text: str, known: Iterable[str], default_database: str) -> set[str]:
    """Returns the databases that a statement with this text may drop or alter as a whole: the databases of `known` that the text names, or
    the default database if it names none. Returns an empty set if the text contains neither DATABASE nor SCHEMA.
    """
    if not _ABOUT_DATABASES.search(text):
        return set()
    there = lowered(text)
    return {database for database in known if is_named(database, there)} or {default_database}
