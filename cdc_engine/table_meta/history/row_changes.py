"""Finds the captured tables in which a statement may have changed rows without row events, and the reasons with which these tables stop.
Pure functions.

A session without row format writes its INSERT, UPDATE or DELETE to the binlog as text, which does not say which rows changed. These tables
stop:

- the tables that the statement writes, and the tables in which foreign keys then change rows;
- the tables to which triggers and views of the written tables may write, directly or through other tables;
- if the source's triggers and views are unknown, and the statement writes to a name that is no known table: all tables in the database of
  this name, because a view may have this name;
- if the statement does not name the tables that it writes: every table that the statement mentions, every table of a database that it
  mentions, and every table of the default database;
- if the statement calls a stored function or procedure, which may write to any table: every table.

A captured table also stops at a TRUNCATE, ALTER or RENAME of its name if the session may have a temporary table with this name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.evolution import CannotFollowError
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.statement import (
    AlterTable,
    RenameTables,
    Statement,
    StatementRowChange,
    Truncate,
    mentioned,
)
from sluice.cdc_engine.table_meta.history.cascades import Cascades
from sluice.cdc_engine.table_meta.history.ddl_context import DdlContext
from sluice.cdc_engine.table_meta.history.kept.known_schemas import TableKey
from sluice.cdc_engine.table_meta.schema import TableSchema, is_of_users

_UNKNOWN = (
    "the server logged a change of rows as a statement, so Sluice knows neither the changed rows nor their new values"
)
_CALLS = "the statement calls a function or a procedure that may write to any table"
_WAY_OUT = (
    "set binlog_format=ROW in every session, and re-snapshot the table and the tables to which its triggers write"
)


def changed_in_doubt(statement: Statement, context: DdlContext) -> dict[TableKey, CannotFollowError] | None:
    """Returns the tables that a TRUNCATE, ALTER or RENAME stops, each with the reason. A permanent table stops if the session may have a
    temporary table of the same name, because the binlog does not say which of the two tables the statement changed.

    Servers mark a statement that depends on its session with the flag thread_specific. Returns None for a statement without this flag, and
    for any other kind of statement.
    """
    if not context.session.thread_specific:
        return None
    match statement:
        case Truncate(name=name):
            what, names = "emptied", [name]
        case AlterTable(name=name):
            what, names = "altered", [name]
        case RenameTables(pairs=pairs):
            what, names = "renamed", [old for old, _ in pairs]
        case _:
            return None
    why = (
        "the session may have had a temporary table of this name, so Sluice does not know whether this table was "
        f"{what}"
    )
    stop = CannotFollowError(
        TableState.STATEMENT_FORMAT, f"{why}; set binlog_format=ROW in every session, and re-snapshot the table"
    )
    there = context.tables()
    return {name: stop for name in map(context.full_name, names) if name in there}


def changed_without_rows(statement: StatementRowChange, context: DdlContext) -> dict[TableKey, CannotFollowError]:
    """Returns the tables that a row change in statement format stops, each with the reason."""
    there, objects = context.tables(), context.known.stored_objects(context.key)
    schemas = [schema for name in there if (schema := context.schema(name)) is not None]
    if statement.calls:
        return everything(there, _CALLS)
    names = list(map(context.full_name, statement.names))
    found = _named(names, context, there, objects)
    changed = [*names, *found]
    if not names:
        about = {lowered(context.default_database), *statement.words}
        concerned = [*mentioned(there, statement.words), *(each for each in there if lowered(each[0]) in about)]
        why = f"{_UNKNOWN}, nor the changed tables; {_WAY_OUT}"
        found |= {each: CannotFollowError(TableState.STATEMENT_FORMAT, why) for each in concerned}
        views = objects.views() if objects is not None else ()
        changed = [*found, *mentioned(views, statement.words), *(each for each in views if lowered(each[0]) in about)]
    # If the list of triggers and views is incomplete, `reached` stops every table. So with an incomplete list, `reached` is not called for
    # a statement that names only tables of the server's own databases. For example, RDS writes a heartbeat to such a database.
    if objects is not None and (objects.complete or not names or any(is_of_users(database) for database, _ in names)):
        reach = objects.reached(changed, statement.words, there)
        if reach.everything:
            return everything(there, reach.everything)
        for table, through in reach.tables.items():
            if table not in found and table in there:
                why = f"{_UNKNOWN}, and {through} may have written to this table; {_WAY_OUT}"
                found[table] = CannotFollowError(TableState.STATEMENT_FORMAT, why)
    return _unseen(found, context) | _below(found, schemas, context.captured) | found


def _named(
    names: Collection[TableKey], context: DdlContext, there: Collection[TableKey], objects: StoredObjects | None
) -> dict[TableKey, CannotFollowError]:
    """Returns the tables that stop because of the names to which a statement writes (`names`), each with the reason.

    A name that is not a known table may be a view or a temporary table of the session. The caller finds the tables that a view uses with
    `StoredObjects.reached`. Any other unknown name is a table whose schema the history does not have. This table stops too if it is
    captured. If the triggers and views are unknown (`objects` is None), an unknown name may be a view, so all tables in its database stop.
    """
    views = objects.views() if objects is not None else frozenset[TableKey]()
    found: dict[TableKey, CannotFollowError] = {}
    for name in names:
        unknown = context.state(name) is None and name not in views and not context.session.thread_specific
        if name in there or (objects is not None and unknown and context.captured(*name)):
            found[name] = CannotFollowError(TableState.STATEMENT_FORMAT, f"{_UNKNOWN}; {_WAY_OUT}")
        elif objects is None:
            why = f"{_UNKNOWN}: {'.'.join(name)} is not a known table and may be a view of this table; {_WAY_OUT}"
            found |= {each: CannotFollowError(TableState.STATEMENT_FORMAT, why) for each in there if each[0] == name[0]}
    return found


def changed_by_query(words: Collection[str], context: DdlContext, *, calls: bool) -> dict[TableKey, CannotFollowError]:
    """Returns the tables that stop because the SELECT of a CREATE TABLE may have written to them through a routine. Servers log this
    SELECT only as text. `calls` tells whether the SELECT itself calls a routine. If not, a view among the names in `words` may call one.
    """
    objects = context.known.stored_objects(context.key)
    there = context.tables()
    why = _CALLS if calls else objects.reached((), words, there).everything if objects is not None else ""
    return everything(there, why) if why else {}


def everything(tables: Collection[TableKey], why: str) -> dict[TableKey, CannotFollowError]:
    """Returns a stop for each of `tables`, because the statement may have written to any table."""
    stop = CannotFollowError(TableState.STATEMENT_FORMAT, f"{_UNKNOWN}; {why}; {_WAY_OUT}")
    return dict.fromkeys(tables, stop)


def _unseen(parents: Collection[TableKey], context: DdlContext) -> dict[TableKey, CannotFollowError]:
    """Returns the tables whose foreign keys are unknown, each with the reason for its stop. These foreign keys may have changed rows of the
    tables together with rows of `parents`.
    """
    if not parents:
        return {}
    why = (
        "the columns and foreign keys of the table are unknown at this position, so foreign keys may have changed its rows "
        f"together with rows of {'.'.join(min(parents))}. For {'.'.join(min(parents))}, {_UNKNOWN}; set "
        "binlog_format=ROW in every session, and re-snapshot the table"
    )
    return dict.fromkeys(context.unknown_tables(), CannotFollowError(TableState.CASCADE_UNSEEN, why))


def _below(
    parents: Collection[TableKey], schemas: Sequence[TableSchema], captured: Callable[[str, str], bool]
) -> dict[TableKey, CannotFollowError]:
    """Returns the captured tables in which foreign keys change rows when rows of `parents` change, directly or through other tables. Each
    table comes with the reason for its stop.
    """
    cascades = Cascades(schemas, captured)
    found: dict[TableKey, CannotFollowError] = {}
    for parent in parents:
        why = (
            f"foreign keys change rows of the table when rows of {'.'.join(parent)} change. For "
            f"{'.'.join(parent)}, {_UNKNOWN}; set binlog_format=ROW in every session, and re-snapshot the "
            "table"
        )
        children = (each.child for each in cascades.below(parent) if each.captured)
        found |= {child: CannotFollowError(TableState.CASCADE_UNSEEN, why) for child in children}
    return found
