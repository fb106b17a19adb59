"""Finds the captured tables in which a statement changed rows without row events, and why they stop. Pure functions; called by `effects`.

A session that does not use row format logs its INSERT, UPDATE or DELETE as text, which does not show the changed rows. The tables that it
writes stop, and so do tables whose rows foreign keys change with them. An unknown table name (a view, a temporary table) may stand for
any table of its database, if the triggers and views of the source are not followed. If they are, tables stop that triggers of a changed
table or a changed view reach, over all levels. If the statement does not show what it writes, every table that it names and every table of
the databases that it mentions stops. If it calls a stored function or a procedure, which may write anywhere, every table stops. A TRUNCATE
of such a session may affect a temporary table that hides the captured one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sluice.cdc_engine.states import TableState
from sluice.cdc_engine.table_meta.change.evolution import CannotFollowError
from sluice.cdc_engine.table_meta.change.stored_objects import StoredObjects
from sluice.cdc_engine.table_meta.ddl.lower_case import lowered
from sluice.cdc_engine.table_meta.ddl.statement import CreateTable, mentioned
from sluice.cdc_engine.table_meta.history.cascades import Cascades
from sluice.cdc_engine.table_meta.history.kept.known_schemas import TableKey
from sluice.cdc_engine.table_meta.schema import TableSchema, is_of_users

_UNKNOWN = "a statement that changed rows was logged as a statement, so which rows changed, and how, is unknown"
_CALLS = "it calls a function or a procedure that may write to any table"
_WAY_OUT = "set binlog_format=ROW in every session, and re-snapshot the table and those that its triggers write to"


def emptied_in_doubt() -> CannotFollowError:
    """Returns the stop for a TRUNCATE that may have concerned a temporary table: it may be wrong to empty the captured table, and to keep
    its rows.
    """
    why = "the session may have had a temporary table of this name, so whether this table was emptied is unknown"
    return CannotFollowError(
        TableState.STATEMENT_FORMAT, f"{why}; set binlog_format=ROW in every session, and re-snapshot the table"
    )


def changed_without_rows(
    names: Mapping[TableKey, bool],
    words: Collection[str],
    default_database: str,
    schemas: Sequence[TableSchema],
    captured: Callable[[str, str], bool],
    *,
    calls: bool,
    objects: StoredObjects | None = None,
) -> dict[TableKey, CannotFollowError]:
    """Returns the tables that stop. `names`: the tables that the statement writes, and whether each one is known; empty if unknown.

    `words`: all names in the statement, in lower case. `schemas`: of the existing tables. `calls`: the statement calls a routine.
    `objects`: the triggers and views; None if they are not followed.
    """
    there = [(schema.database, schema.table) for schema in schemas]
    if calls:
        return everything(there, _CALLS)
    found: dict[TableKey, CannotFollowError] = {}
    for name, known in names.items():
        if known:
            found[name] = CannotFollowError(TableState.STATEMENT_FORMAT, f"{_UNKNOWN}; {_WAY_OUT}")
            continue
        if objects is not None:  # It is a view, which `reached` follows, or a temporary table.
            continue
        why = f"{_UNKNOWN}: {'.'.join(name)} is not a known table and may be a view of this one; {_WAY_OUT}"
        found |= {each: CannotFollowError(TableState.STATEMENT_FORMAT, why) for each in there if each[0] == name[0]}
    if not names:
        about = {lowered(default_database), *words}
        concerned = dict.fromkeys([*mentioned(there, frozenset(words)), *(t for t in there if lowered(t[0]) in about)])
        why = f"{_UNKNOWN}; which tables it wrote to is unknown, too; {_WAY_OUT}"
        found |= {each: CannotFollowError(TableState.STATEMENT_FORMAT, why) for each in concerned}
    if objects is not None and (not names or any(is_of_users(database) for database, _ in names)):
        reach = objects.reached([*names, *found], words, there)
        if reach.everything:
            return everything(there, reach.everything)
        for table, through in reach.tables.items():
            if table not in found and table in there:
                why = f"{_UNKNOWN}, and {through} may have written to this table; {_WAY_OUT}"
                found[table] = CannotFollowError(TableState.STATEMENT_FORMAT, why)
    return _below(found, schemas, captured) | found


def changed_by_query(
    statement: CreateTable, objects: StoredObjects | None, tables: Collection[TableKey]
) -> dict[TableKey, CannotFollowError]:
    """Returns the tables that stop because the SELECT of a CREATE TABLE may have written to them. Only statement format logs the SELECT."""
    if statement.select_calls:
        return everything(tables, _CALLS)
    why = objects.reached((), statement.select_words, tables).everything if objects is not None else ""
    return everything(tables, why) if why else {}


def everything(tables: Collection[TableKey], why: str) -> dict[TableKey, CannotFollowError]:
    """Returns the stops of all tables, for a statement that may have written to any of them."""
    stop = CannotFollowError(TableState.STATEMENT_FORMAT, f"{_UNKNOWN}; {why}; {_WAY_OUT}")
    return dict.fromkeys(tables, stop)


def _below(
    parents: Collection[TableKey], schemas: Sequence[TableSchema], captured: Callable[[str, str], bool]
) -> dict[TableKey, CannotFollowError]:
    """Returns the tables whose rows change when rows of the given tables change, over all levels."""
    cascades = Cascades(schemas, captured)
    found: dict[TableKey, CannotFollowError] = {}
    for parent in parents:
        why = (
            f"foreign keys change its rows with those of {'.'.join(parent)}, of which {_UNKNOWN}; set binlog_format=ROW in every session, "
            "and re-snapshot the table"
        )
        children = (each.child for each in cascades.below(parent) if each.captured)
        found |= {child: CannotFollowError(TableState.CASCADE_UNSEEN, why) for child in children}
    return found
